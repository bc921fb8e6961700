package consultest

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// query is a read as it was asked.
type query struct {
	resource
	index             uint64
	wait              time.Duration
	stale, consistent bool
	passing           bool
	token             string
}

// streamed tells whether Consul answers by its streaming back end.
func (q query) streamed() bool { return q.kind == Instances && q.index > 0 }

// kindOf says what a path asks for, and of which service or state.
func kindOf(path string) resource {
	switch path {
	case "/v1/catalog/services":
		return resource{kind: List}
	case "/v1/agent/self":
		return resource{kind: Self}
	case "/v1/acl/token/self":
		return resource{kind: Token}
	}
	if name, ok := strings.CutPrefix(path, "/v1/health/service/"); ok {
		return resource{Instances, name}
	}
	if name, ok := strings.CutPrefix(path, "/v1/health/state/"); ok {
		return resource{State, name}
	}
	return resource{kind: Other}
}

// parse reads a query's parameters; wrong says what is wrong with them.
func parse(r *http.Request) (q query, wrong string) {
	v := r.URL.Query()
	q = query{
		resource: kindOf(r.URL.Path), stale: v.Has("stale"), consistent: v.Has("consistent"), passing: v.Has("passing"),
		wait: 5 * time.Minute, token: token(r, v),
	}
	var err error
	if text := v.Get("index"); text != "" {
		if q.index, err = strconv.ParseUint(text, 10, 64); err != nil {
			return q, "Invalid index"
		}
	}
	if text := v.Get("wait"); text != "" {
		if q.wait, err = time.ParseDuration(text); err != nil {
			return q, "Invalid wait time"
		}
		q.wait = min(q.wait, 10*time.Minute)
	}
	if q.stale && q.consistent {
		return q, "Cannot specify ?stale with ?consistent, conflicting semantics."
	}
	return q, ""
}

func token(r *http.Request, v url.Values) string {
	if t := r.Header.Get("X-Consul-Token"); t != "" {
		return t
	}
	if t, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return t
	}
	return v.Get("token")
}

// answer is what a read comes to.
type answer struct {
	status      int
	body        any // a string is text, anything else JSON
	index       uint64
	leader      bool
	contact     time.Duration
	filtered    bool
	backend     string
	consistency string
	policy      string
}

func text(status int, body string) answer { return answer{status: status, body: body} }

func (s *StandIn) handle(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.handled++
	s.counts.Requests[kindOf(r.URL.Path).kind]++
	hook := s.faults.hook
	tooMany := s.faults.tooMany > 0
	if tooMany {
		s.faults.tooMany--
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.handled--
		s.idle.Broadcast()
		s.mu.Unlock()
	}()

	if beyond, _ := r.Context().Value(tooManyKey{}).(bool); tooMany || beyond {
		if beyond {
			w.Header().Set("Connection", "close")
		}
		http.Error(w, "Your IP is issuing too many concurrent connections, please rate limit your calls", http.StatusTooManyRequests)
		return
	}
	if hook != nil {
		if f := hook(r); f != nil && f.write(w, r) {
			return
		}
	}
	if dc := r.URL.Query().Get("dc"); dc != "" && dc != s.o.Datacenter {
		s.mu.Lock()
		there := s.remotes[dc]
		s.mu.Unlock()
		if there == nil || !there.reachable() {
			write(w, text(http.StatusInternalServerError, "No path to datacenter"))
			return
		}
		there.serve(w, r)
		return
	}
	s.serve(w, r)
}

func (s *StandIn) reachable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server != nil
}

// write answers as the response says, and tells whether it did; if not, the true answer is to follow.
func (f *Response) write(w http.ResponseWriter, r *http.Request) bool {
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return true
		}
	}
	if f.Until != nil {
		select {
		case <-f.Until:
		case <-r.Context().Done():
			return true
		}
	}
	switch f.Status {
	case 0:
		return false
	case Abort:
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), f.Header)
	w.WriteHeader(f.Status)
	_, _ = w.Write([]byte(f.Body)) // whoever went away wants nothing
	return true
}

// serve answers truly, as far as the faults allow.
func (s *StandIn) serve(w http.ResponseWriter, r *http.Request) {
	q, wrong := parse(r)
	if wrong != "" {
		write(w, text(http.StatusBadRequest, wrong))
		return
	}
	if r.URL.Query().Has("filter") {
		write(w, text(http.StatusInternalServerError, "the stand-in knows no filter"))
		return
	}
	if q.kind == List || q.kind == Instances || q.kind == State {
		if a, ok := s.read(r, q); ok {
			write(w, a)
		}
		return
	}
	s.mu.Lock()
	a := s.plain(r.URL.Path, q)
	s.mu.Unlock()
	write(w, a)
}

// plain answers to what nobody waits for.
func (s *StandIn) plain(path string, q query) answer {
	unknown := s.faults.token != "" && q.token != "" && q.token != s.faults.token
	anonymous := s.faults.token != "" && q.token == ""
	lost := !s.faults.leaderless.IsZero()
	switch path {
	case "/v1/status/leader":
		if lost {
			return answer{status: http.StatusOK, body: json.RawMessage(`""`)}
		}
		return answer{status: http.StatusOK, body: "127.0.0.1:8300", backend: "status"}
	case "/v1/catalog/datacenters":
		all := []string{s.o.Datacenter}
		for dc := range s.remotes {
			all = append(all, dc)
		}
		return answer{status: http.StatusOK, body: all}
	case "/v1/agent/self":
		switch {
		case unknown:
			return text(http.StatusForbidden, "ACL not found")
		case anonymous:
			return text(http.StatusForbidden, `Permission denied: token with AccessorID '00000000-0000-0000-0000-000000000002' lacks permission 'agent:read' on "`+s.o.Node+`"`)
		}
		return answer{status: http.StatusOK, body: map[string]any{
			"Config": map[string]any{
				"Datacenter": s.o.Datacenter, "PrimaryDatacenter": s.o.Datacenter, "NodeName": s.o.Node, "Server": true, "Version": "1.14.11",
			},
			"Member": map[string]any{"Name": s.o.Node, "Addr": "127.0.0.1"},
		}}
	case "/v1/acl/token/self":
		switch {
		case s.faults.token == "":
			return text(http.StatusUnauthorized, "ACL support disabled")
		case lost && !q.stale:
			return text(http.StatusInternalServerError, "No cluster leader")
		case unknown || anonymous:
			return text(http.StatusForbidden, "ACL not found")
		}
		return answer{status: http.StatusOK, body: map[string]any{"AccessorID": "00000000-0000-0000-0000-0000000000aa", "SecretID": q.token, "Description": "stand-in"}}
	}
	return text(http.StatusNotFound, "")
}

// read answers a read when its time has come; not ok means that whoever asked is gone.
func (s *StandIn) read(r *http.Request, q query) (a answer, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unknown(q) {
		return text(http.StatusForbidden, "ACL not found"), true
	}
	wait := q.wait
	if s.faults.maxWait > 0 {
		wait = min(wait, s.faults.maxWait)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	moved := s.store.watch(q.resource, q.index)
	late := false
	for {
		switch {
		case s.server == nil:
			return a, false
		case !s.faults.leaderless.IsZero() && !q.stale && !q.streamed():
			return text(http.StatusInternalServerError, "No cluster leader"), true
		case q.streamed() && s.unknown(q):
			return text(http.StatusForbidden, "ACL not found"), true
		case s.faults.replay != nil && q.consistent:
			// It waits for the log, however long that takes.
		case q.index == 0 || late || moved():
			return s.result(q), true
		case s.faults.replay != nil && q.streamed() && low(s.store.indexOf(q.resource)) != q.index:
			return s.result(q), true
		}
		changed, timeout := s.changed, timer.C
		if late {
			timeout = nil // a consistent read that is overdue
		}
		s.counts.Blocking++
		s.counts.PeakBlocking = max(s.counts.PeakBlocking, s.counts.Blocking)
		s.mu.Unlock()
		gone := false
		select {
		case <-changed:
		case <-timeout:
			late = true
		case <-r.Context().Done():
			gone = true
		}
		s.mu.Lock()
		s.counts.Blocking--
		if gone {
			return a, false
		}
	}
}

func (s *StandIn) unknown(q query) bool {
	return s.faults.token != "" && q.token != "" && q.token != s.faults.token
}

// low is the index that something has while the log is read.
func low(index uint64) uint64 { return max(1, index/4) }

// result is what a read comes to now.
func (s *StandIn) result(q query) answer {
	a := answer{status: http.StatusOK, index: max(1, s.store.indexOf(q.resource)), leader: true, backend: "blocking-query", consistency: "leader", policy: "allow"}
	if s.faults.token != "" {
		a.policy = "deny"
	}
	switch {
	case q.streamed():
		a.backend, a.leader = "streaming", false
	case q.consistent:
		a.consistency = "consistent"
	case q.stale:
		a.consistency = "stale"
		if since := s.faults.leaderless; !since.IsZero() {
			a.leader, a.contact = false, time.Since(since)
		}
	}
	replayed := func(name string) bool {
		return s.faults.replay == nil || q.consistent || s.faults.replay[name] || name == "consul"
	}
	if s.faults.replay != nil && !q.consistent {
		a.index = low(a.index)
	}
	visible := func(name string) bool {
		if s.faults.token != "" && q.token == "" {
			return false
		}
		return s.faults.visible == nil || s.faults.visible(name)
	}
	var hidden bool
	switch q.kind {
	case List:
		tags, h := s.store.services(visible)
		for name := range tags {
			if !replayed(name) {
				delete(tags, name)
			}
		}
		a.body, hidden = tags, h
	case State:
		all, h := s.store.checks(q.name, visible)
		checks := api.HealthChecks{}
		for _, c := range all {
			if c.ServiceName == "" && s.faults.token != "" && q.token == "" {
				continue
			}
			if replayed(c.ServiceName) || c.ServiceName == "" {
				checks = append(checks, c)
			}
		}
		a.body, hidden = checks, h
	default:
		entries := []*api.ServiceEntry{}
		if replayed(q.name) {
			entries = s.store.instances(q.name)
		}
		if len(entries) > 0 && !visible(q.name) {
			entries, hidden = []*api.ServiceEntry{}, true
		}
		if q.passing {
			kept := []*api.ServiceEntry{}
			for _, e := range entries {
				if e.Checks.AggregatedStatus() == api.HealthPassing {
					kept = append(kept, e)
				}
			}
			entries = kept
		}
		a.body = entries
	}
	// Who has no token is not told.
	a.filtered = hidden && !s.faults.silent && (q.token != "" || s.faults.token == "")
	return a
}

// write sends an answer as Consul does.
func write(w http.ResponseWriter, a answer) {
	h := w.Header()
	if text, ok := a.body.(string); ok && a.backend == "" {
		h.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(a.status)
		_, _ = w.Write([]byte(text))
		return
	}
	body, err := json.Marshal(a.body)
	if err != nil {
		panic(err) // it is made of what JSON can say
	}
	h.Set("Content-Type", "application/json")
	if a.index > 0 {
		h.Set("X-Consul-Index", strconv.FormatUint(a.index, 10))
		h.Set("X-Consul-KnownLeader", strconv.FormatBool(a.leader))
		h.Set("X-Consul-LastContact", strconv.FormatInt(a.contact.Milliseconds(), 10))
		h.Set("X-Consul-Query-Backend", a.backend)
		h.Set("X-Consul-Default-ACL-Policy", a.policy)
		h.Set("X-Consul-Effective-Consistency", a.consistency)
		if a.filtered {
			h.Set("X-Consul-Results-Filtered-By-ACLs", "true")
		}
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(body)
}
