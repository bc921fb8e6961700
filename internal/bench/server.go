package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"

	"github.com/meshd/meshd/internal/aggregate"
	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/xds"
)

// serverCommand makes this program a server. It prints its address and then answers each line of standard input with one: the
// time when it began, in nanoseconds, or what went wrong. It ends with standard input.
const serverCommand = "server"

// changer is a server that can be told to send one change.
type changer interface {
	// change brings service to mark and returns when it began to be sent.
	change(service, mark int) (time.Time, error)
	run(context.Context, net.Listener) error
}

func serverMain(args []string, in io.Reader, out io.Writer) (err error) {
	f := flag.NewFlagSet(serverCommand, flag.ContinueOnError)
	services := f.Int("services", 0, "services of an xDS server")
	state := f.String("state", "", "what a broadcast sends first")
	change := f.String("change", "", "what it sends as a change")
	if err := f.Parse(args); err != nil {
		return err
	}
	var s changer
	if *state != "" {
		s, err = newBroadcast(*state, *change)
	} else {
		s, err = newXDS(*services)
	}
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx, l) }()
	fmt.Fprintln(out, l.Addr())
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if at, err := obey(s, lines.Text()); err != nil {
			fmt.Fprintln(out, "error", err)
		} else {
			fmt.Fprintln(out, at.UnixNano())
		}
	}
	cancel()
	return <-ended
}

// obey does what a line says.
func obey(s changer, line string) (time.Time, error) {
	var service, mark int
	var name string
	if _, err := fmt.Sscanf(line, "change %d %d", &service, &mark); err == nil {
		return s.change(service, mark)
	}
	if _, err := fmt.Sscanf(line, "profile %s", &name); err == nil {
		file, err := os.Create(name) // closed with the process
		if err != nil {
			return time.Time{}, err
		}
		return time.Now(), pprof.StartCPUProfile(file)
	}
	if _, err := fmt.Sscanf(line, "heap %s", &name); err == nil {
		file, err := os.Create(name)
		if err != nil {
			return time.Time{}, err
		}
		return time.Now(), errors.Join(pprof.WriteHeapProfile(file), file.Close())
	}
	switch line {
	case "free":
		debug.FreeOSMemory()
		debug.FreeOSMemory() // a pool lets go at the second
		return time.Now(), nil
	case "profiled":
		pprof.StopCPUProfile()
		return time.Now(), nil
	}
	return time.Time{}, fmt.Errorf("unknown command %q", line)
}

// xdsServer is the package xds with services from memory.
type xdsServer struct {
	*xds.Server
	catalog mesh.Catalog
	merged  aggregate.Merged
}

func newXDS(services int) (*xdsServer, error) {
	s := &xdsServer{Server: xds.New(hclog.NewNullLogger(), xds.Options{})}
	for i := range services {
		if err := s.put(i, 0); err != nil {
			return nil, err
		}
	}
	s.Apply(s.view())
	return s, nil
}

func (s *xdsServer) put(service, mark int) error {
	d, err := described(service, mark)
	if err != nil {
		return err
	}
	s.catalog.Services = s.catalog.Services.With(d.Key, d)
	return nil
}

func (s *xdsServer) view() *mesh.View {
	s.merged, _ = aggregate.Merge(s.merged, []aggregate.Source{{Registry: "memory", Catalog: s.catalog, Synced: true}})
	return s.merged.View
}

func (s *xdsServer) run(ctx context.Context, l net.Listener) error { return s.Run(ctx, l) }

func (s *xdsServer) change(service, mark int) (time.Time, error) {
	if err := s.put(service, mark); err != nil {
		return time.Time{}, err
	}
	view := s.view()
	began := time.Now()
	s.Apply(view)
	return began, nil
}

// broadcast is the least that gRPC can do: it sends the same bytes to each stream, and reads nothing of what comes. Its settings are
// those of the xDS server. A change is sent by as many workers as there are processors, straight on the streams.
type broadcast struct {
	state []mem.BufferSlice
	bytes mem.BufferSlice // the change

	mu      sync.Mutex
	streams []grpc.ServerStream
}

func newBroadcast(state, change string) (*broadcast, error) {
	first, err := readMessages(state)
	if err != nil {
		return nil, err
	}
	then, err := readMessages(change)
	if err != nil {
		return nil, err
	}
	if len(then) != 1 {
		return nil, fmt.Errorf("%s: %d messages", change, len(then))
	}
	b := &broadcast{bytes: mem.BufferSlice{mem.SliceBuffer(then[0])}}
	for _, m := range first {
		b.state = append(b.state, mem.BufferSlice{mem.SliceBuffer(m)})
	}
	return b, nil
}

func (b *broadcast) run(ctx context.Context, l net.Listener) error {
	const window = 1 << 20
	g := grpc.NewServer(
		grpc.ForceServerCodecV2(broadcastCodec{encoding.GetCodecV2(proto.Name)}),
		grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error { return b.serve(s) }),
		grpc.MaxRecvMsgSize(64<<20), grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	)
	stop := context.AfterFunc(ctx, g.Stop)
	defer stop()
	return g.Serve(l)
}

func (b *broadcast) serve(s grpc.ServerStream) error {
	if err := s.RecvMsg(nil); err != nil {
		return err
	}
	for _, m := range b.state {
		if err := s.SendMsg(m); err != nil {
			return err
		}
	}
	b.mu.Lock()
	b.streams = append(b.streams, s)
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.streams = slices.DeleteFunc(b.streams, func(o grpc.ServerStream) bool { return o == s })
	}()
	for {
		switch err := s.RecvMsg(nil); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func (b *broadcast) change(int, int) (time.Time, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	began := time.Now()
	workers := runtime.GOMAXPROCS(0)
	var sending sync.WaitGroup
	for w := range workers {
		sending.Go(func() {
			for i := w; i < len(b.streams); i += workers {
				_ = b.streams[i].SendMsg(b.bytes) // one that has ended
			}
		})
	}
	sending.Wait()
	return began, nil
}

// broadcastCodec passes bytes on, and drops what comes.
type broadcastCodec struct{ encoding.CodecV2 }

func (broadcastCodec) Marshal(v any) (mem.BufferSlice, error) { return v.(mem.BufferSlice), nil }
func (broadcastCodec) Unmarshal(mem.BufferSlice, any) error   { return nil }

// writeMessages and readMessages keep messages in a file, each after a line with its length.
func writeMessages(name string, messages ...[]byte) error {
	var b bytes.Buffer
	for _, m := range messages {
		fmt.Fprintln(&b, len(m))
		b.Write(m)
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}

func readMessages(name string) ([][]byte, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var messages [][]byte
	for len(b) > 0 {
		var n int
		line, rest, _ := bytes.Cut(b, []byte("\n"))
		if _, err := fmt.Sscan(string(line), &n); err != nil || n > len(rest) {
			return nil, fmt.Errorf("%s: not messages", name)
		}
		messages, b = append(messages, rest[:n]), rest[n:]
	}
	return messages, nil
}
