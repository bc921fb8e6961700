package consultest

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// StandInOptions say what stand-in to start. Empty fields have the defaults that stand beside them.
type StandInOptions struct {
	Datacenter string // "dc1"
	Node       string // "stand-in", of the service consul
	// Token turns ACLs on, with default deny: it may do all, no token sees nothing, and others are unknown.
	Token string
	// TLS makes it serve HTTPS, and with it HTTP/2, instead of HTTP.
	TLS bool
}

// StandIn is a small server that answers as a Consul agent does to what meshd asks, and can be made to fail like one. It is
// safe for use by many goroutines.
//
// It answers /v1/catalog/services, /v1/catalog/datacenters, /v1/health/service/NAME, /v1/health/state/STATE, /v1/agent/self,
// /v1/acl/token/self and /v1/status/leader, with index, wait, stale, consistent, passing and dc. It has one token, no filter, no
// namespaces. Blocking queries wait as long as they ask to and not a part longer, as Consul does.
type StandIn struct {
	Addr   string // HOST:PORT
	URL    string // with its scheme
	CAFile string // of the CA of its certificate; empty without StandInOptions.TLS

	t       testing.TB
	o       StandInOptions
	tls     *tls.Config
	serving sync.WaitGroup

	mu      sync.Mutex
	server  *http.Server  // nil while it is down
	changed chan struct{} // closed, and made anew, when anything below moves
	store   *store
	remotes map[string]*StandIn
	faults  faults
	counts  Counts
	conns   map[net.Conn]struct{}
	idle    *sync.Cond // handlers moved
	handled int        // handlers that run
}

// Kind is a kind of request.
type Kind uint8

// The kinds of requests that [StandIn.Counts] tells apart. Self is /v1/agent/self, Token /v1/acl/token/self.
const (
	Other Kind = iota
	List
	Instances
	State
	Self
	Token
	kinds
)

func (k Kind) String() string {
	return [...]string{"other", "list", "instances", "state", "self", "token"}[k]
}

// Counts are what a stand-in has seen.
type Counts struct {
	Requests [kinds]int // by [Kind], since the start or [StandIn.ResetCounts]
	// Dialled are the connections since then. Open are those of now, PeakOpen the most of them at one time.
	Dialled, Open, PeakOpen int
	// Blocking are the queries that sleep now, PeakBlocking the most of them at one time.
	Blocking, PeakBlocking int
}

// NewStandIn starts a stand-in, which has the service consul in its catalog. It ends with the test.
func NewStandIn(t testing.TB, o StandInOptions) *StandIn {
	t.Helper()
	o.Datacenter, o.Node = cmp.Or(o.Datacenter, "dc1"), cmp.Or(o.Node, "stand-in")
	s := &StandIn{
		t: t, o: o, changed: make(chan struct{}), store: newStore(o.Datacenter),
		remotes: map[string]*StandIn{}, conns: map[net.Conn]struct{}{},
	}
	s.idle = sync.NewCond(&s.mu)
	s.faults.token = o.Token
	if o.TLS {
		c := newCertificate(t, t.TempDir())
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			t.Fatal(err)
		}
		s.CAFile, s.tls = c.ca, &tls.Config{Certificates: []tls.Certificate{pair}}
	}
	s.Register(Service{Name: "consul", Node: o.Node, NodeAddress: "127.0.0.1", Port: 8300, Status: NoCheck})
	s.SetCheck(o.Node, "", "serfHealth", api.HealthPassing, "Agent alive and reachable")
	if err := s.listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Close ends the stand-in and waits until all of it is gone. It may be called again.
func (s *StandIn) Close() {
	s.Down()
	s.mu.Lock()
	for s.handled > 0 {
		s.idle.Wait()
	}
	s.mu.Unlock()
}

// TLS is the configuration of a client that trusts the stand-in's certificate.
func (s *StandIn) TLS() *tls.Config {
	s.t.Helper()
	return trust(s.t, s.CAFile)
}

// Datacenter is the stand-in's.
func (s *StandIn) Datacenter() string { return s.o.Datacenter }

// Register adds instances, or replaces those of the same node and ID, one after the other.
func (s *StandIn) Register(services ...Service) {
	s.update(func() {
		for _, is := range services {
			r := is.registration()
			if r.Service.Tags == nil {
				r.Service.Tags = []string{}
			}
			s.store.register(r)
		}
	})
}

// Deregister takes an instance away, or a node and all that is on it if id is empty.
func (s *StandIn) Deregister(node, id string) { s.update(func() { s.store.deregister(node, id) }) }

// SetStatus sets the check that an instance has from Register, or a check of the node if id is empty.
func (s *StandIn) SetStatus(node, id, status string) { s.SetCheck(node, id, "", status, "") }

// SetCheck sets a check of an instance, or of a node if id is empty. An empty checkID is that of SetStatus.
func (s *StandIn) SetCheck(node, id, checkID, status, output string) {
	s.update(func() {
		s.store.register(&api.CatalogRegistration{Node: node, SkipNodeUpdate: true, Check: check(node, id, checkID, status, output)})
	})
}

// RemoveCheck takes away a check that SetCheck has set.
func (s *StandIn) RemoveCheck(node, checkID string) {
	s.update(func() { s.store.removeCheck(node, checkID) })
}

// EnterMaintenance puts an instance, or a node if id is empty, into maintenance.
func (s *StandIn) EnterMaintenance(node, id string) {
	s.SetCheck(node, id, maintenance(id), api.HealthCritical, "")
}

// LeaveMaintenance ends [StandIn.EnterMaintenance].
func (s *StandIn) LeaveMaintenance(node, id string) { s.RemoveCheck(node, maintenance(id)) }

// Federate joins stand-ins of other datacenters, both ways, so that each answers ?dc= for the other. One that is down has no
// path to it.
func (s *StandIn) Federate(others ...*StandIn) {
	for _, o := range others {
		s.update(func() { s.remotes[o.o.Datacenter] = o })
		o.update(func() { o.remotes[s.o.Datacenter] = s })
	}
}

// Counts are what it has seen so far.
func (s *StandIn) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// ResetCounts starts to count anew. What is open and what sleeps goes on to count.
func (s *StandIn) ResetCounts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts = Counts{Open: s.counts.Open, PeakOpen: s.counts.Open, Blocking: s.counts.Blocking, PeakBlocking: s.counts.Blocking}
}

// AwaitBlocking waits until so many blocking queries sleep, or more.
func (s *StandIn) AwaitBlocking(n int) {
	s.t.Helper()
	s.await(func() bool { return s.counts.Blocking >= n }, "blocking queries")
}

// AwaitRequests waits until there were so many requests of a kind, or more.
func (s *StandIn) AwaitRequests(k Kind, n int) {
	s.t.Helper()
	s.await(func() bool { return s.counts.Requests[k] >= n }, "requests of kind "+k.String())
}

func (s *StandIn) await(done func() bool, what string) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		s.mu.Lock()
		ok, counts := done(), s.counts
		s.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("not enough %s after %s: %+v", what, patience, counts)
		}
		time.Sleep(time.Millisecond)
	}
}

// update changes what queries wait for.
func (s *StandIn) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *StandIn) listen(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(s.handle), ConnState: s.connState, ConnContext: s.connContext, TLSConfig: s.tls}
	s.mu.Lock()
	s.Addr, s.URL = l.Addr().String(), "http://"+l.Addr().String()
	if s.tls != nil {
		s.URL = "https://" + s.Addr
	}
	s.server = server
	s.mu.Unlock()
	s.serving.Go(func() {
		if s.tls != nil {
			_ = server.ServeTLS(l, "", "") // it ends by Close alone
			return
		}
		_ = server.Serve(l)
	})
	return nil
}

// connContext counts a connection, and tells whether it is one too many.
func (s *StandIn) connContext(ctx context.Context, c net.Conn) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	s.counts.Dialled++
	s.counts.Open = len(s.conns)
	s.counts.PeakOpen = max(s.counts.PeakOpen, s.counts.Open)
	tooMany := s.faults.connections > 0 && s.counts.Open > s.faults.connections
	return context.WithValue(ctx, tooManyKey{}, tooMany)
}

// tooManyKey is the key of connContext's finding.
type tooManyKey struct{}

func (s *StandIn) connState(c net.Conn, state http.ConnState) {
	if state != http.StateClosed {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.counts.Open = len(s.conns)
}
