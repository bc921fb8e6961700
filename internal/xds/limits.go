package xds

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshd/meshd/internal/mesh"
)

const (
	// requestUnit is how many bytes of a request count as one request.
	requestUnit = 64 << 10
	// requestBurst is for how long's worth of requests a client may be ahead of its rate: one that connects asks for much at once.
	requestBurst = 5 * time.Second
	// manyVisits is how often a node may connect within lately without being told of. An Envoy without ADS has five streams, and
	// begins each anew after a failure at longer and longer intervals.
	manyVisits = 30
	// sweepPause is the least time between two looks for what is over, when there is as much as may be.
	sweepPause = 100 * time.Millisecond
	// lately is for how long after it happened the last time a node's conduct is a problem, and how long it may leave a response unanswered.
	lately = time.Minute
)

// limits bound what clients can take of the server, and know who asked for more.
type limits struct {
	log  hclog.Logger
	most int // streams at one time, and connections

	streams atomic.Int64
	refused atomic.Uint64 // streams and connections

	mu                      sync.Mutex
	connections             []net.Conn         // some may have been closed
	sweep                   int                // at this number those are looked for
	swept                   time.Time          // when they were
	refusedAt, refusedSince time.Time          // the last time, and the first of those that are no more than lately apart
	visits                  map[string]*visits // by node id
	forgot                  time.Time          // when those that are over were last looked for
}

// visits are how often a node has connected within some time.
type visits struct {
	since time.Time
	n     int
	peer  string
	many  time.Time // when there were last too many
}

// enter counts a call, until leave is called. The error is that there are too many.
func (l *limits) enter() (leave func(), err error) {
	if n := l.streams.Add(1); n > int64(l.most) {
		l.streams.Add(-1)
		l.refuse()
		return nil, status.Errorf(codes.ResourceExhausted, "meshd has %d streams already, as many as it may: raise max-streams, or add a replica", l.most)
	}
	return func() { l.streams.Add(-1) }, nil
}

func (l *limits) refuse() {
	l.refused.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.refusedAt) > lately {
		l.refusedSince = now
		l.log.Warn("nodes are refused: there are as many streams or connections as may be", "max-streams", l.most)
	}
	l.refusedAt = now
}

// stream and unary see to it that calls are counted, whatever they are of.
func (l *limits) stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	leave, err := l.enter()
	if err != nil {
		return err
	}
	defer leave()
	return handle(srv, ss)
}

func (l *limits) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	leave, err := l.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	return handle(ctx, request)
}

// limitedListener closes the connections that are too many.
type limitedListener struct {
	net.Listener
	limits *limits
}

// Accept returns the next connection that is not too many.
func (l limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.limits.connect(c, time.Now()) {
			return c, err
		}
		l.limits.refuse()
		_ = c.Close() // nobody waits for how it ends
	}
}

// connect counts a connection until it is closed, and tells whether it is not too many. It is not wrapped, since gRPC reads from one of TCP
// without keeping a buffer for it: which have been closed is seen when there are many.
func (l *limits) connect(c net.Conn, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.connections); n >= l.sweep && (n < l.most || now.Sub(l.swept) > sweepPause) {
		l.connections = slices.DeleteFunc(l.connections, closed)
		l.sweep, l.swept = min(l.most, 2*len(l.connections)+64), now
	}
	if len(l.connections) >= l.most {
		return false
	}
	l.connections = append(l.connections, c)
	return true
}

// closed tells whether a connection has been closed at this end. Of one that is not the system's it cannot be told.
func closed(c net.Conn) bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	return err != nil || raw.Control(func(uintptr) {}) != nil
}

// disconnect closes all connections. gRPC does not close those that have not said yet who they are, and waits for them.
func (l *limits) disconnect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.connections {
		_ = c.Close() // most have been
	}
}

// newQuota is what a stream may ask for.
func newQuota(perSecond int) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(perSecond), perSecond*int(requestBurst/time.Second))
}

// spend takes a request of a size out of a quota, and returns how long to wait until it is paid for.
func spend(quota *rate.Limiter, size int, now time.Time) time.Duration {
	return quota.ReserveN(now, min(1+size/requestUnit, quota.Burst())).DelayFrom(now)
}

// visit notes that a node has connected.
func (l *limits) visit(node, peer string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.visits[node]
	if v == nil {
		if len(l.visits) >= 2*l.most && now.Sub(l.forgot) > sweepPause {
			l.forgot = now
			maps.DeleteFunc(l.visits, func(_ string, v *visits) bool { return now.Sub(v.since) > lately })
		}
		if len(l.visits) >= 2*l.most {
			return
		}
		v = &visits{since: now}
		if l.visits == nil {
			l.visits = map[string]*visits{}
		}
		l.visits[node] = v
	}
	if now.Sub(v.since) > lately {
		v.since, v.n = now, 0
	}
	v.n++
	v.peer = peer
	if v.n > manyVisits {
		v.many = now
	}
}

// conduct is what clients have done lately that they should not, as problems.
func (s *Server) conduct(now time.Time) (all []mesh.Problem) {
	add := func(severity mesh.Severity, code, message string, since time.Time) {
		all = append(all, mesh.Problem{Severity: severity, Code: code, Origin: mesh.Origin{Registry: "xds"}, Message: message, Since: since})
	}
	var again, throttled, silent offenders
	l := &s.limits
	l.mu.Lock()
	refusing, refusedSince := now.Sub(l.refusedAt) < lately, l.refusedSince
	for id, v := range l.visits {
		if now.Sub(v.many) < lately {
			again.add(id, v.peer, v.since)
		}
	}
	l.mu.Unlock()
	streams, _ := s.scopes.streams()
	for _, x := range streams {
		x.mu.Lock()
		if now.Sub(x.throttled) < lately {
			throttled.add(x.info.ID, x.info.Peer, x.throttled)
		}
		if at := x.session.unanswered(); !at.IsZero() && now.Sub(at) > lately {
			silent.add(x.info.ID, x.info.Peer, at)
		}
		x.mu.Unlock()
	}

	if refusing {
		add(mesh.Error, "too-many-streams", fmt.Sprintf("nodes are refused, since there are %d streams or connections already; raise max-streams, or add a replica", l.most), refusedSince)
	}
	if again.some() {
		add(mesh.Warning, "node-reconnects", fmt.Sprintf("%s connected more than %d times within a minute; see in its log why, and whether two have one id", again.who(), manyVisits), again.since)
	}
	if throttled.some() {
		add(mesh.Warning, "node-throttled", fmt.Sprintf("%s sent more than max-request-rate, %d requests a second, and had to wait; see in its log why", throttled.who(), s.options.MaxRequestRate), throttled.since)
	}
	if silent.some() {
		add(mesh.Warning, "node-silent", fmt.Sprintf("%s did not answer what it was sent for more than a minute, and is sent nothing new of that; see whether it hangs", silent.who()), silent.since)
	}
	return all
}

// offenders is the nodes that do the same.
type offenders struct {
	nodes       map[string]bool
	first, peer string // the one with the first id, which is shown, so that the same nodes give the same problem
	since       time.Time
}

func (y *offenders) add(node, peer string, since time.Time) {
	if !y.some() || node < y.first {
		y.first, y.peer = node, peer
	}
	if !y.some() || since.Before(y.since) {
		y.since = since
	}
	if y.nodes == nil {
		y.nodes = map[string]bool{}
	}
	y.nodes[node] = true
}

func (y *offenders) some() bool { return len(y.nodes) > 0 }

func (y *offenders) who() string {
	who := fmt.Sprintf("node %q", y.first)
	if host, _, err := net.SplitHostPort(y.peer); err == nil {
		who += " at " + host // its port is another one with each connection
	}
	if n := len(y.nodes) - 1; n > 0 {
		who += fmt.Sprintf(", and %d more,", n)
	}
	return who
}
