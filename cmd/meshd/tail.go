package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/xds"
)

// How long meshd tail waits before it connects again, from the first time to the longest, and how a dead connection is noticed.
const (
	tailWait      = 500 * time.Millisecond
	tailWaitMax   = 10 * time.Second
	tailPing      = 30 * time.Second
	tailPingReply = 10 * time.Second
	// What a node is sent may be large, and is not refused here.
	tailMaxResponse = 1 << 30
)

func newTail() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tail --node-id ID",
		Short: "Follow what a node is sent, as it changes",
		Long: `tail connects to a running daemon as the node that the flags describe, and prints what that is sent: a line for each
type at first, then a line for each resource that is added (+), changed (~) or removed (-), with its version, and below it
which of its fields are others. Of endpoints, the line says which addresses came and went and what became of the others:

  10:31:02  endpoints  ~ outbound|80||pay.mesh.internal  +10.0.0.3:8080  -10.0.0.2:8080  10.0.0.1:8080 unhealthy

It takes all that it is sent, as an Envoy would that has no objections, and is shown by meshd status while it runs, under
the node's id. When the connection is lost, it says so on standard error and connects again, with longer and longer
pauses; what has changed meanwhile is shown then. Ctrl-C ends it.

With -o json each line is an object: {time, event: connected|lost|state|update, type, version, …}; an update has
differences like those of meshd diff.

Exit codes: 0 told to stop, 2 no daemon answers, or it refuses the node (or wrong flags).`,
		Example: `  meshd tail --node-id web-1
  meshd tail --node-id web-1 --type endpoints
  meshd tail --node-id shop-1 --grpc --full
  meshd tail --node-id web-1 -o json | jq -r '.differences[]? | select(.change == "removed") | .name'`,
		Args: cobra.NoArgs,
	}
	var node nodeFlags
	node.register(cmd)
	var secure tlsFlags
	secure.register(cmd)
	types := choices{}
	for t := range envoy.Types {
		types.words = append(types.words, t.String())
	}
	var server address
	flags := cmd.Flags()
	flags.Var(&types, "type", "print this type only; give it several times for more")
	flags.Var(&server, "xds", "where the daemon serves xDS (default: what its settings say, else 127.0.0.1:15010)")
	full := flags.Bool("full", false, "print the first state, and what is added, with all fields")
	sotw := flags.Bool("sotw", false, "speak xDS in its state-of-the-world variant, instead of delta")
	output := outputFlag(cmd)
	types.complete(cmd, "type")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		n, _, err := node.scope()
		if err != nil {
			return err
		}
		if err := secure.check(); err != nil {
			return err
		}
		n.Cluster = n.Id
		n.UserAgentName = strings.TrimSpace(n.UserAgentName + " meshd tail")
		t := &tail{
			node: n, server: server.String(), secure: secure, feed: newFeed(xds.Delta),
			teller: teller{out: cmd.OutOrStdout(), aside: cmd.ErrOrStderr(), json: output.value == "json", full: *full, types: types.values},
		}
		if server == (address{}) {
			t.server = installedXDS()
		}
		if *sotw {
			t.feed = newFeed(xds.SotW)
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		return t.run(ctx)
	}
	return cmd
}

// tail follows what a server sends to a node.
type tail struct {
	node   *corev3.Node
	server string // host:port
	secure tlsFlags
	feed   *feed
	teller teller
}

// run follows until ctx ends. The error is that the server did not answer at first, or refuses the node.
func (t *tail) run(ctx context.Context) error {
	wait, lost, connections := tailWait, "", 0
	for {
		opened := time.Time{}
		err := t.follow(ctx, func() error {
			opened, lost = time.Now(), ""
			connections++
			return t.teller.tell(event{Event: connected, Server: t.server, Node: t.node.Id})
		})
		code := status.Code(err)
		switch final := (*finalError)(nil); {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &final):
			return final.error
		case code == codes.InvalidArgument:
			return fmt.Errorf("the daemon at %s refuses the node: %s", t.server, status.Convert(err).Message())
		case code == codes.Unimplemented:
			return fmt.Errorf("what answers at %s does not serve xDS; say with --xds where the daemon does", t.server)
		case connections == 0:
			return fmt.Errorf("no daemon answers at %s (%s); %s", t.server, reason(err), t.remedy(err))
		}
		if !opened.IsZero() && time.Since(opened) > wait {
			wait = tailWait
		}
		if r := reason(err); r != lost { // the same is not said with each try
			lost = r
			if err := t.teller.tell(event{Event: disconnected, Server: t.server, Reason: r}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, tailWaitMax)
	}
}

// remedy is what to do about an error of the first connection.
func (t *tail) remedy(err error) string {
	cause, ok := errors.AsType[*net.OpError](err)
	switch {
	case ok && cause.Op == "dial":
		return "start it with meshd serve, or say with --xds where it is"
	case t.secure.ca == "":
		return "something is there: if it is meshd and speaks TLS, say --xds-ca-file"
	case t.secure.cert == "":
		return "something is there: if it is meshd and wants a certificate, say --xds-cert-file and --xds-key-file"
	}
	return "something is there: meshd's log says whom it does not let in"
}

// finalError is one that no new connection mends.
type finalError struct{ error }

// follow makes one connection, calls opened, and follows until the connection ends, with an error that says why.
func (t *tail) follow(ctx context.Context, opened func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var undialled atomic.Pointer[error] // why the newest connection could not be made; gRPC tells it in its own words
	transport, err := t.secure.credentials()
	if err != nil {
		return &finalError{err}
	}
	conn, err := grpc.NewClient("passthrough:///"+t.server,
		grpc.WithTransportCredentials(transport),
		grpc.WithContextDialer(func(ctx context.Context, where string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, statusTimeout)
			defer cancel()
			c, err := new(net.Dialer).DialContext(ctx, "tcp", where)
			if err != nil {
				undialled.Store(&err)
			}
			return c, err
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: tailPing, Timeout: tailPingReply}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(tailMaxResponse)))
	if err != nil {
		return err
	}
	defer conn.Close()
	s, err := openStream(ctx, conn, t.feed.protocol, t.node)
	if err != nil {
		if cause := undialled.Load(); cause != nil {
			err = *cause
		}
		return err
	}
	if err := opened(); err != nil {
		return &finalError{err}
	}
	orders := t.feed.begin()
	for {
		for _, o := range orders {
			if err := s.send(o); err != nil && !errors.Is(err, io.EOF) { // of which receive says more
				return err
			}
		}
		r, err := s.receive()
		if err != nil {
			return err
		}
		var all []news
		if all, orders, err = t.feed.take(r); err != nil {
			return &finalError{err}
		}
		for _, n := range all {
			if err := t.teller.news(t.feed, n); err != nil {
				return &finalError{err}
			}
		}
	}
}

// reason is an error of a connection, for people.
func reason(err error) string {
	if cause, ok := errors.AsType[*net.OpError](err); ok {
		return cause.Err.Error() // without the address
	}
	if errors.Is(err, io.EOF) {
		return "the daemon has closed the stream"
	}
	return status.Convert(err).Message()
}

// installedXDS is where the daemon that is installed here serves xDS, as far as its settings can be read.
func installedXDS() string {
	if settings, err := installedSettings(); err == nil {
		return reachable(string(settings.XDSListen), "15010")
	}
	return reachable("", "15010")
}

// stream is a stream of aggregated resources.
type stream interface {
	send(order) error
	receive() (response, error)
}

// openStream connects, and opens a stream on which the first request names the node.
func openStream(ctx context.Context, conn *grpc.ClientConn, p xds.Protocol, node *corev3.Node) (stream, error) {
	client := discovery.NewAggregatedDiscoveryServiceClient(conn)
	if p == xds.Delta {
		s, err := client.DeltaAggregatedResources(ctx)
		return &deltaStream{s, node}, err
	}
	s, err := client.StreamAggregatedResources(ctx)
	return &sotwStream{s, node}, err
}

type deltaStream struct {
	grpc discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node *corev3.Node // until it has been sent
}

func (s *deltaStream) send(o order) error {
	r := &discovery.DeltaDiscoveryRequest{
		Node: s.node, TypeUrl: o.typ.URL(), ResponseNonce: o.nonce,
		ResourceNamesSubscribe: o.subscribe, ResourceNamesUnsubscribe: o.unsubscribe, InitialResourceVersions: o.initial,
	}
	if len(o.subscribe)+len(o.unsubscribe) > 0 {
		r.ResponseNonce = "" // it acknowledges nothing
	}
	s.node = nil
	return s.grpc.Send(r)
}

func (s *deltaStream) receive() (response, error) {
	m, err := s.grpc.Recv()
	if err != nil {
		return response{}, err
	}
	r := response{version: m.GetSystemVersionInfo(), nonce: m.GetNonce(), removed: m.GetRemovedResources()}
	for _, one := range m.GetResources() {
		r.resources = append(r.resources, resource{one.GetVersion(), one.GetResource()})
	}
	r.typ, err = typeOf(m.GetTypeUrl())
	return r, err
}

type sotwStream struct {
	grpc discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	node *corev3.Node // until it has been sent
}

func (s *sotwStream) send(o order) error {
	r := &discovery.DiscoveryRequest{Node: s.node, TypeUrl: o.typ.URL(), ResponseNonce: o.nonce, VersionInfo: o.version, ResourceNames: o.names}
	s.node = nil
	return s.grpc.Send(r)
}

func (s *sotwStream) receive() (response, error) {
	m, err := s.grpc.Recv()
	if err != nil {
		return response{}, err
	}
	r := response{version: m.GetVersionInfo(), nonce: m.GetNonce()}
	for _, one := range m.GetResources() {
		r.resources = append(r.resources, resource{any: one})
	}
	r.typ, err = typeOf(m.GetTypeUrl())
	return r, err
}

func typeOf(url string) (envoy.Type, error) {
	for t := range envoy.Types {
		if t.URL() == url {
			return t, nil
		}
	}
	return 0, fmt.Errorf("the daemon sends what was not asked for, %s", url)
}
