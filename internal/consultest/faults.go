package consultest

import (
	"maps"
	"net/http"
	"slices"
	"time"
)

// faults are what is wrong with a stand-in.
type faults struct {
	hook        func(*http.Request) *Response
	token       string
	tooMany     int       // requests to come that are too many
	connections int       // the most that are allowed; 0: any
	leaderless  time.Time // since when there is no leader; zero: there is
	replay      map[string]bool
	visible     func(service string) bool
	silent      bool
	maxWait     time.Duration
}

// Response is an answer other than the true one.
type Response struct {
	Delay time.Duration   // before it
	Until <-chan struct{} // if set: not before this is closed
	// Status is the answer's. With 0 the true answer follows after the wait; with Abort the connection is cut.
	Status int
	Header http.Header
	Body   string
}

// Abort is the status of a [Response] that cuts the connection.
const Abort = -1

// Fault sets a function that is asked about each request first. If it returns a response, that is the answer. Nil takes the
// function away. It is called by many goroutines.
func (s *StandIn) Fault(f func(*http.Request) *Response) {
	s.update(func() { s.faults.hook = f })
}

// Down closes the port and cuts all connections.
func (s *StandIn) Down() {
	s.mu.Lock()
	server := s.server
	s.server = nil
	s.mu.Unlock()
	if server != nil {
		_ = server.Close() // the connections were cut, whatever it says
		s.serving.Wait()
	}
	s.update(func() {})
}

// Up opens the same port again after [StandIn.Down].
func (s *StandIn) Up() {
	s.t.Helper()
	if err := s.listen(s.Addr); err != nil {
		s.t.Fatalf("opening the stand-in's port again: %v", err)
	}
}

// Interrupt cuts all connections, but stays reachable.
func (s *StandIn) Interrupt() {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// TooMany answers the next requests, so many of them, with status 429.
func (s *StandIn) TooMany(requests int) { s.update(func() { s.faults.tooMany = requests }) }

// LimitConnections answers with status 429 on connections beyond so many, and closes them, as Consul does by
// limits.http_max_conns_per_client. 0 allows any.
func (s *StandIn) LimitConnections(n int) { s.update(func() { s.faults.connections = n }) }

// LoseLeader makes it an agent whose servers have no leader: status 500 for all but stale reads, and for those that sleep, but for
// the ones of instances, which sleep on.
func (s *StandIn) LoseLeader() { s.update(func() { s.faults.leaderless = time.Now() }) }

// ElectLeader ends [StandIn.LoseLeader].
func (s *StandIn) ElectLeader() { s.update(func() { s.faults.leaderless = time.Time{} }) }

// Replay makes it a server that reads its log after a restart: what reads see is these services alone, with low indexes. Consistent
// reads wait. Connections stay; see [StandIn.Interrupt].
func (s *StandIn) Replay(services ...string) {
	seen := map[string]bool{}
	for _, name := range services {
		seen[name] = true
	}
	s.update(func() { s.faults.replay = seen })
}

// EndReplay ends [StandIn.Replay].
func (s *StandIn) EndReplay() { s.update(func() { s.faults.replay = nil }) }

// Rewind lowers all indexes to an index at most, as the restore of a snapshot does, and keeps what is in the catalog. All
// blocking queries are answered.
func (s *StandIn) Rewind(to uint64) { s.update(func() { s.store.rewind(to) }) }

// Filter hides services as ACLs do, and says so by the header X-Consul-Results-Filtered-By-ACLs wherever something is hidden. Nil
// ends it. It wakes no query.
func (s *StandIn) Filter(visible func(service string) bool) { s.filter(visible, false) }

// FilterSilently is [StandIn.Filter] without the header.
func (s *StandIn) FilterSilently(visible func(service string) bool) { s.filter(visible, true) }

func (s *StandIn) filter(visible func(service string) bool, silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.visible, s.faults.silent = visible, silent
}

// SetToken changes the token that it wants. Whoever has the old one is told "ACL not found" with status 403: blocking queries of instances
// at once, others when they ask next.
func (s *StandIn) SetToken(secret string) { s.update(func() { s.faults.token = secret }) }

// MaxWait shortens blocking queries to this at most. 0 lets them wait as long as they ask to.
func (s *StandIn) MaxWait(d time.Duration) { s.update(func() { s.faults.maxWait = d }) }
