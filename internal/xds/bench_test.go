package xds

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/meshd/meshd/internal/aggregate"
	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// BenchmarkEndpointChange is from a registry's catalog with one endpoint changed to the last stream having it: merged,
// translated and sent over loopback, with the clients in the same process. Each stream has all clusters by wildcard and names the endpoints of each. Its cost must not
// follow the number of services.
func BenchmarkEndpointChange(b *testing.B) {
	for _, protocol := range []Protocol{Delta, SotW} {
		for _, streams := range []int{1, 100} {
			for _, services := range []int{100, 1000, 10000} {
				if protocol == SotW && (streams > 1 || services > 1000) {
					continue // the acknowledgements' names decide
				}
				b.Run(fmt.Sprintf("%s/streams=%d/services=%d", protocol, streams, services), func(b *testing.B) {
					benchmarkChange(b, protocol, streams, services)
				})
			}
		}
	}
}

func benchmarkChange(b *testing.B, p Protocol, streams, services int) {
	var catalog mesh.Catalog
	names := make([]string, services)
	put := func(i, version int) {
		svc := benchService(b, i, version)
		catalog.Services = catalog.Services.With(svc.Key, svc)
		names[i] = "outbound|80||" + svc.Host.String()
	}
	for i := range services {
		put(i, 0)
	}
	var merged aggregate.Merged
	view := func() *mesh.View {
		merged, _ = aggregate.Merge(merged, []aggregate.Source{{Registry: "memory", Catalog: catalog, Synced: true}})
		return merged.View
	}
	s := New(hclog.NewNullLogger(), Options{})
	s.Apply(view())
	var lc net.ListenConfig
	l, err := lc.Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l) }()

	var clients sync.WaitGroup
	var arrived sync.WaitGroup
	arrived.Add(2 * streams)
	for range streams {
		clients.Go(func() { benchmarkClient(b, ctx, l.Addr().String(), p, names, &arrived) })
	}
	arrived.Wait()

	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		put(i%services, i)
		arrived.Add(streams)
		s.Apply(view())
		arrived.Wait()
	}
	b.StopTimer()
	cancel()
	clients.Wait()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}

// benchService is an HTTP service of three endpoints, of which one is another in each version.
func benchService(b *testing.B, i, version int) *mesh.Service {
	s := mesh.Service{
		Key: serviceKey(fmt.Sprintf("service-%05d", i)), Resolution: mesh.Static, Export: mesh.Visibility{All: true},
		Ports:  []mesh.Port{{Number: 80, Name: "http", Protocol: mesh.HTTP}},
		Origin: mesh.Origin{Registry: "memory"},
	}
	for e := range 3 {
		last := byte(1 + e)
		if e == 2 && version > 0 {
			last += byte(1 + version%199) // a prime: no version of a service is like the one before it
		}
		address := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), last})
		s.Endpoints = append(s.Endpoints, mesh.Endpoint{Address: mesh.IPAddress(address), Ports: []uint16{8080}, Weight: 1})
	}
	return mesh.Seal(s)
}

// benchmarkClient acknowledges all that comes and does no more.
func benchmarkClient(b *testing.B, ctx context.Context, address string, p Protocol, names []string, arrived *sync.WaitGroup) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newCodec()), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		b.Error(err)
		return
	}
	defer func() {
		if err := conn.Close(); err != nil {
			b.Error(err)
		}
	}()
	method := discovery.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName
	if p == SotW {
		method = discovery.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		b.Error(err)
		return
	}
	ack := func(t envoy.Type, version, nonce string) any {
		if p == Delta {
			return &discovery.DeltaDiscoveryRequest{TypeUrl: t.URL(), ResponseNonce: nonce}
		}
		r := &discovery.DiscoveryRequest{TypeUrl: t.URL(), VersionInfo: version, ResponseNonce: nonce}
		if t == eds {
			r.ResourceNames = names
		}
		return r
	}
	requests := []any{askDelta(cds), askDelta(eds, names...)}
	if p == SotW {
		requests = []any{ask(cds), ask(eds, names...)}
	}
	for _, r := range requests {
		if err := stream.SendMsg(r); err != nil {
			b.Error(err)
			return
		}
	}
	for {
		var m raw
		if err := stream.RecvMsg(&m); err != nil {
			if ctx.Err() == nil {
				b.Error(err)
			}
			return
		}
		var typ envoy.Type
		var version, nonce string
		_ = walk(m.bytes, func(n protowire.Number, v []byte) error {
			switch n {
			case versionNumber:
				version = string(v)
			case typeURLNumber:
				typ, _ = typeOf(v)
			case nonceNumber:
				nonce = string(v)
			}
			return nil
		})
		if err := stream.SendMsg(ack(typ, version, nonce)); err != nil {
			return
		}
		arrived.Done()
	}
}

// BenchmarkFirstState is a stream's session from its first requests to all of it being encoded: what a mass reconnect
// costs for each stream, without gRPC. All but the first share what they are sent.
func BenchmarkFirstState(b *testing.B) {
	for _, reconnect := range []string{"new", "reconnect"} {
		b.Run(reconnect, func(b *testing.B) {
			c := newClient(b, Delta)
			names := make([]envoy.Name, 2000)
			for i := range names {
				names[i] = envoy.Name(fmt.Sprintf("service-%05d", i))
				c.set(cds, string(names[i]), "0")
				c.set(eds, string(names[i]), "0")
			}
			c.publish()
			if reconnect == "reconnect" {
				for _, t := range []envoy.Type{cds, eds} {
					for n, r := range c.resources[t].All() {
						c.types[t].held[n] = r.Version
					}
				}
			}
			wires := [][]byte{}
			for _, m := range []struct {
				t     envoy.Type
				names []envoy.Name
			}{{cds, nil}, {eds, names}} {
				wires = append(wires, marshal(b, c.message(m.t, m.names, nil, "", "")))
			}
			b.ReportAllocs()
			for b.Loop() {
				s := session{protocol: Delta}
				for i, wire := range wires {
					r, err := parseRequest(Delta, wire)
					if err != nil {
						b.Fatal(err)
					}
					s.request(envoy.Type(i), r, time.Time{})
					for {
						resp := s.next(c.newest, time.Time{})
						if resp == nil {
							break
						}
						encode(Delta, nil, resp)
					}
				}
			}
		})
	}
}
