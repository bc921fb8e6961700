package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// startWire lays a gRPC proxy between an Envoy and meshd that swaps a text for another one of the same length, and back in what the
// Envoy says. So an Envoy can be given what meshd would never send, or what is meant for another machine. It gives the bootstrap
// with the wire in meshd's place.
func startWire(t *testing.T, bootstrap []byte, theirs, ours string) []byte {
	t.Helper()
	if len(theirs) != len(ours) {
		t.Fatalf("%q is not as long as %q", ours, theirs)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+xdsAddress, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(plain{})))
	if err != nil {
		t.Fatal(err)
	}
	swap := func(from, to string) func([]byte) []byte {
		return func(m []byte) []byte { return bytes.ReplaceAll(m, []byte(from), []byte(to)) }
	}
	var passing sync.WaitGroup
	g := grpc.NewServer(grpc.ForceServerCodecV2(plain{}), grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.UnknownServiceHandler(func(_ any, envoy grpc.ServerStream) error {
			method, ok := grpc.MethodFromServerStream(envoy)
			if !ok {
				return status.Error(codes.Internal, "a stream without a method")
			}
			meshd, err := conn.NewStream(envoy.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
			if err != nil {
				return err
			}
			passing.Go(func() {
				_ = pass(envoy, meshd, swap(ours, theirs)) // that it has ended shows in the other direction
				_ = meshd.CloseSend()
			})
			return pass(meshd, envoy, swap(theirs, ours))
		}))
	passing.Go(func() { _ = g.Serve(l) })
	t.Cleanup(func() {
		g.Stop()
		passing.Wait()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})

	_, port, err := net.SplitHostPort(xdsAddress)
	if err != nil {
		t.Fatal(err)
	}
	const field = `"port_value": `
	if bytes.Count(bootstrap, []byte(field+port)) != 1 {
		t.Fatalf("meshd's port is not once in the bootstrap:\n%s", bootstrap)
	}
	return bytes.Replace(bootstrap, []byte(field+port), fmt.Appendf(nil, "%s%d", field, l.Addr().(*net.TCPAddr).Port), 1)
}

// pass hands messages on, changed, until there are no more.
func pass(from interface{ RecvMsg(any) error }, to interface{ SendMsg(any) error }, change func([]byte) []byte) error {
	for {
		var m []byte
		switch err := from.RecvMsg(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := to.SendMsg(change(m)); err != nil {
			return err
		}
	}
}

// plain leaves messages as they are.
type plain struct{}

func (plain) Marshal(m any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(m.([]byte))}, nil
}

func (plain) Unmarshal(text mem.BufferSlice, m any) error {
	*m.(*[]byte) = text.Materialize()
	return nil
}

func (plain) Name() string { return "proto" }
