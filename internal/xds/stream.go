package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/meshd/meshd/internal/envoy"
)

// stream is one stream of a client. The handler's goroutine sends, another one receives; between them stands the
// session, so that requests are taken while the client does not read, and those who apply views and take requests can tell
// without waking anybody that there is nothing to send.
type stream struct {
	server   *Server
	protocol Protocol
	only     envoy.Type // the type of a service for one; allTypes: ADS
	wake     chan struct{}
	canary   atomic.Bool // is sent what is tried
	quota    *rate.Limiter

	mu        sync.Mutex
	session   session
	waits     bool        // the sender does, until it is woken
	ready     *response   // is for the sender to send
	alarm     *time.Timer // wakes the sender; nil before the first time
	throttled time.Time   // when a request last had to wait
	scope     *scope      // nil before the first request; the receiver sets it once
	info      NodeStatus  // without deliveries; set before the stream is a member of the scope, and not changed then
}

// allTypes is the type of a service for all of them.
const allTypes = envoy.Types

// serve runs a stream to its end.
func (s *Server) serve(ss grpc.ServerStream, p Protocol, only envoy.Type) error {
	x := &stream{
		server: s, protocol: p, only: only, wake: make(chan struct{}, 1), quota: newQuota(s.options.MaxRequestRate),
		session: session{protocol: p, grace: s.options.DrainGrace, retry: s.options.RetryRejected, rosters: &s.rosters},
	}
	received := make(chan error, 1)
	s.receivers.Go(func() { // it ends with the handler, which ends the stream's context
		err := x.receive(ss)
		x.leave(err)
		received <- err
	})
	return x.send(ss, received)
}

// send sends what is due until the stream ends.
func (x *stream) send(ss grpc.ServerStream, received <-chan error) error {
	for {
		if next := x.next(time.Now()); next != nil {
			if err := ss.SendMsg(next); err != nil {
				return err
			}
			continue
		}
		select {
		case <-x.wake:
		case err := <-received:
			return err
		case <-x.server.draining:
			return goElsewhere()
		}
	}
}

// goElsewhere is how streams end when the server does.
func goElsewhere() error { return status.Error(codes.Unavailable, "meshd is stopping") }

// next is what is to be sent now; nil: the sender waits.
func (x *stream) next(now time.Time) *frame {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.look(now)
	r := x.ready
	x.ready, x.waits = nil, r == nil
	if r == nil {
		return nil
	}
	f := encode(x.protocol, x.server.controlPlane, r)
	x.server.meter.sent(r, f.buffers.Len(), now)
	return f
}

// look makes ready what is due. If that is nothing, it sees to it that the sender looks again when time alone makes
// something due. It is called with mu held.
func (x *stream) look(now time.Time) {
	if x.ready != nil || x.scope == nil {
		return
	}
	newest := x.newest()
	if newest == nil {
		return
	}
	if x.ready = x.session.next(newest, now); x.ready != nil {
		return
	}
	switch at := x.session.alarm(now); {
	case at.IsZero(): // one that is set wakes the sender for nothing
	case x.alarm == nil:
		x.alarm = time.AfterFunc(at.Sub(now), x.signal)
	default:
		x.alarm.Reset(at.Sub(now))
	}
}

// newest is the edition to which the stream is brought.
func (x *stream) newest() *edition {
	switch {
	case x.server.scopes.canary == nil:
		return x.scope.newest.Load()
	case x.canary.Load():
		return x.scope.tried.Load()
	default:
		return x.scope.rest.Load()
	}
}

// signal makes the sender look.
func (x *stream) signal() { signal(x.wake) }

// signal fills a slot; one signal stands for many.
func signal(slot chan<- struct{}) {
	select {
	case slot <- struct{}{}:
	default:
	}
}

// offer tells a stream of its scope's new edition. It does not wait: a stream that is at work finds the edition itself.
func (x *stream) offer(from, to *edition) {
	if from != nil && x.mu.TryLock() {
		skipped := x.session.skips(from, to)
		x.mu.Unlock()
		if skipped {
			return
		}
	}
	x.signal()
}

// receive takes requests until the stream ends or one is wrong.
func (x *stream) receive(ss grpc.ServerStream) error {
	requests := reader{protocol: x.protocol, rosters: &x.server.rosters}
	for {
		var message raw
		switch err := ss.RecvMsg(&message); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := x.pay(ss.Context(), len(message.bytes)); err != nil {
			return err
		}
		r, err := requests.read(message.bytes)
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		if r.claimed.n > 0 { // the session may keep it until it answers
			r.release = message.release
		}
		if err := x.identify(ss.Context(), r); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		t, known := typeOf(r.typeURL)
		if len(r.typeURL) == 0 {
			if x.only == allTypes {
				return status.Error(codes.InvalidArgument, "type_url: is empty")
			}
			t, known = x.only, true
		}
		if known && (x.only == allTypes || x.only == t) { // to all else silence (rule 8)
			x.request(t, r)
		}
		if r.release == nil {
			message.release()
		}
	}
}

// pay waits until a request of a size is within the rate of the stream. As long as it waits, gRPC lets the client send no more than
// a window ahead.
func (x *stream) pay(ctx context.Context, size int) error {
	now := time.Now()
	wait := spend(x.quota, size, now)
	if wait == 0 {
		return nil
	}
	x.mu.Lock()
	x.throttled = now
	x.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// request gives a request to the session.
func (x *stream) request(t envoy.Type, r *request) {
	x.mu.Lock()
	now := time.Now()
	v := x.session.request(t, r, now)
	if x.waits { // it need not be woken to find that nothing is due, as after most acknowledgements
		x.look(now)
	}
	ready := x.ready != nil
	x.mu.Unlock()
	if ready {
		x.signal()
	}
	if v.rejected {
		x.server.meter.types[t].rejections.Add(1)
	}
	if v.rejected && !v.known && x.server.scopes.canary != nil {
		x.failed(fmt.Sprintf("node %q rejected %s (%s)", x.info.ID, t, strings.Join(strings.Fields(trim(r.message)), " ")))
	}
	if v.found != nil {
		x.server.log.Warn("node rejected resources", "node", x.info.ID, "type", t, "resources", v.found.Resources,
			"origins", x.origins(v.found), "message", strings.ReplaceAll(v.found.Message, "\n", "; "))
	}
}

// failed stops the roll-out of a change if the node is one of those that try it.
func (x *stream) failed(cause string) {
	if x.server.scopes.canary.fail(x, cause) {
		x.server.log.Warn("a change goes no further than the first nodes", "cause", cause)
	}
}

// origins says from where the services of a rejection come.
func (x *stream) origins(r *Rejection) []string {
	var out []string
	newest := x.scope.newest.Load()
	for _, key := range r.Services {
		if s, ok := newest.View.Services.Get(key); ok {
			out = append(out, key.String()+" "+s.Origin.String())
		} else {
			out = append(out, key.String())
		}
	}
	return out
}

// errNoNode is the error of a stream that does not say whose it is.
var errNoNode = &envoy.FieldError{Field: "node", Message: "is missing from the stream's first request"}

// identify reads the node from a stream's first request, which must hold it, and joins its scope.
func (x *stream) identify(ctx context.Context, r *request) error {
	if x.scope != nil {
		return nil
	}
	if r.node == nil {
		return errNoNode
	}
	node := &corev3.Node{}
	if err := proto.Unmarshal(r.node, node); err != nil {
		return &envoy.FieldError{Field: "node", Message: err.Error()}
	}
	key, err := envoy.ScopeOf(node)
	if err != nil {
		return err
	}
	now := time.Now()
	info := NodeStatus{
		ID: node.GetId(), Cluster: node.GetCluster(), Scope: key,
		UserAgent: node.GetUserAgentName(), Version: versionOf(node),
		Connected: now, Protocol: x.protocol, Aggregated: x.only == allTypes,
	}
	if p, ok := peer.FromContext(ctx); ok {
		info.Peer, info.Identity = p.Addr.String(), identityOf(p.AuthInfo)
	}
	x.mu.Lock()
	x.info = info
	x.mu.Unlock()
	scope := x.server.scopes.join(key, x)
	x.mu.Lock()
	x.scope = scope
	x.mu.Unlock()
	x.server.scopes.refresh(scope)
	x.server.limits.visit(info.ID, info.Peer, now)
	x.server.log.Debug("node connected", "node", info.ID, "peer", info.Peer, "protocol", x.protocol, "scope", key)
	return nil
}

// leave ends the membership in the scope.
func (x *stream) leave(reason error) {
	if x.scope == nil {
		return
	}
	x.server.scopes.leave(x.scope, x)
	// A connection that has reached its age is ended by gRPC, at the earliest after nine tenths of it.
	if x.server.scopes.canary != nil && time.Since(x.info.Connected) < x.server.options.MaxConnectionAge/10*9 && !x.server.stopping() {
		x.failed(fmt.Sprintf("node %q left", x.info.ID))
	}
	x.server.log.Debug("node disconnected", "node", x.info.ID, "peer", x.info.Peer, "reason", reason)
}

func (x *stream) status() NodeStatus {
	x.mu.Lock()
	defer x.mu.Unlock()
	st := x.info
	st.Throttled, st.Deliveries = x.throttled, x.session.deliveries()
	return st
}

// count adds to gauges.
func (x *stream) count(st *Stats) {
	x.mu.Lock()
	defer x.mu.Unlock()
	st.Streams[x.protocol]++
	for t := range x.session.tracks {
		k := &x.session.tracks[t]
		if k.flight != nil {
			st.Pending++
		}
		st.Types[t].Held += len(x.session.heldBack(envoy.Type(t)))
	}
}
