// Package admin shows what the daemon has, over HTTP: JSON for `meshd status` and for programs, Prometheus metrics,
// health checks, profiles, and a page that leads to all of them.
//
// What it shows it asks its owner for when it is asked. One path gives an order, POST /api/v1/registries/NAME/release;
// everything else only reads. Nobody is asked who they are, but what a browser was lured into sending changes nothing. The
// paths, the JSON types of api.go and the names of the metrics are promises to those who build on them; fields and metrics are
// added and not renamed.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/meshd/meshd/internal/aggregate"
	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/xds"
)

const (
	// shutdownTimeout is how long requests may take to end once the server is told to stop.
	shutdownTimeout = 2 * time.Second
	headerTimeout   = 10 * time.Second
	// orderTimeout is how long a registry may take to take an order; clients wait for longer.
	orderTimeout = 5 * time.Second
)

// Options are what a server shows. All but the functions may be left out.
type Options struct {
	Version string // of meshd
	Commit  string
	XDS     net.Addr // where xDS is served

	Registries   func() []aggregate.RegistryStatus
	History      func() []aggregate.Change
	Nodes        func() []xds.NodeStatus
	NodeProblems func() []mesh.Problem // what nodes cannot be given of the view
	Stats        func() xds.Stats
	Canary       func() xds.CanaryStatus     // how the roll-out of a change to a few nodes first stands; nil: there is none
	Loads        func(node string) xds.Loads // what nodes report of their requests, or the one of this id
	Sights       func(mesh.Host) []xds.Sight // what nodes are given for a host
	// Near returns which word of some is most like another, empty if none is.
	Near func(word string, among []string) string
	// Resources are what a node would be sent that is described as in an Envoy's bootstrap, in JSON, or by its id alone. The
	// error says what is wrong with the description.
	Resources func(node string) (Resources, error)
	// Release has a registry let go of what it holds although its source has told that it is gone, and returns how many
	// instances that is. Its errors are those of [aggregate.Controller.Release].
	Release func(ctx context.Context, registry string) (int, error)
}

// Server is the admin server.
type Server struct {
	log     hclog.Logger
	options Options
	started time.Time
	served  atomic.Pointer[served] // nil before the first view
	address string                 // where Run listens
}

// served is a view that is served, and what led to it.
type served struct {
	view   *mesh.View
	change aggregate.Change
}

// New makes a server.
func New(log hclog.Logger, o Options) *Server {
	return &Server{log: log.Named("admin"), options: o, started: time.Now()}
}

// Apply tells the server of a view that nodes are being served. It is an [aggregate.Handler], to be appended after the one
// that serves.
func (s *Server) Apply(c aggregate.Change, v *mesh.View) {
	s.served.Store(&served{v, c})
}

// Run serves on l until ctx ends. It closes l.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	s.address = l.Addr().String()
	server := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headerTimeout,
		ErrorLog:          s.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve admin on %s: %w", s.address, err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		_ = server.Close() // of what takes longer: a profile
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve admin on %s: %w", s.address, err)
	}
	return nil
}

// pages are the paths that the index leads to.
var pages = []struct{ path, what string }{
	{"/-/healthy", "answers as long as the process runs"},
	{"/-/ready", "answers 200 once the first complete view is served"},
	{"/metrics", "metrics for Prometheus"},
	{"/api/v1/status", "everything that <code>meshd status</code> shows"},
	{"/api/v1/registries", "where services come from, and how each registry stands with its source; POST /api/v1/registries/NAME/release, as <code>meshd release</code> does, lets go of what one holds"},
	{"/api/v1/services", "the services, their ports and endpoints, and where each of them comes from; /api/v1/explain?host=HOST for all about one"},
	{"/api/v1/problems", "what is wrong with the input"},
	{"/api/v1/changes", "what changed when, and by which registry"},
	{"/api/v1/nodes", "who is connected, and what they were sent, accepted or rejected; /api/v1/nodes/ID for one, /api/v1/resources?node=ID for what a node would be sent"},
	{"/api/v1/loads", "how many requests go where, by what nodes report that do; /api/v1/loads?node=ID by what one reports"},
	{"/debug/pprof/", "profiles of the process"},
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", index)
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") })
	mux.HandleFunc("GET /-/ready", s.ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics(), promhttp.HandlerOpts{ErrorLog: s.log.StandardLogger(nil)}))
	mux.HandleFunc("GET /api/v1/status", func(w http.ResponseWriter, _ *http.Request) { s.send(w, s.status()) })
	mux.HandleFunc("GET /api/v1/registries", func(w http.ResponseWriter, _ *http.Request) {
		s.send(w, Registries{s.options.Registries()})
	})
	mux.HandleFunc("POST /api/v1/registries/{name}/release", s.release)
	mux.HandleFunc("GET /api/v1/services", func(w http.ResponseWriter, _ *http.Request) { s.send(w, Services{s.services()}) })
	mux.HandleFunc("GET /api/v1/explain", s.explain)
	mux.HandleFunc("GET /api/v1/resources", s.resources)
	mux.HandleFunc("GET /api/v1/problems", func(w http.ResponseWriter, _ *http.Request) { s.send(w, Problems{s.problems()}) })
	mux.HandleFunc("GET /api/v1/changes", func(w http.ResponseWriter, _ *http.Request) { s.send(w, Changes{s.changes()}) })
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, _ *http.Request) { s.send(w, Nodes{s.nodes()}) })
	mux.HandleFunc("GET /api/v1/nodes/{id...}", s.node)
	mux.HandleFunc("GET /api/v1/loads", s.loads)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return http.NewCrossOriginProtection().Handler(mux)
}

func index(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	b.WriteString("<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>meshd</title>\n<h1>meshd</h1>\n<ul>\n")
	for _, p := range pages {
		fmt.Fprintf(&b, "<li><a href=%q>%s</a>: %s</li>\n", p.path, p.path, p.what)
	}
	b.WriteString("</ul>\n</html>\n")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(w, b.String())
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if why := s.unready(); why != "" {
		http.Error(w, "not ready: "+why, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
}

// unready says why the daemon is not ready; empty: it is.
func (s *Server) unready() string {
	var missing []string
	for _, r := range s.options.Registries() {
		switch {
		case r.Synced:
		case r.Reason != "":
			missing = append(missing, r.Name+" ("+r.Reason+")")
		default:
			missing = append(missing, r.Name)
		}
	}
	switch {
	case len(missing) > 0:
		return "no services yet from " + strings.Join(missing, ", ")
	case s.served.Load() == nil:
		return "the first view is being made"
	}
	return ""
}

func (s *Server) node(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	found := Nodes{[]Node{}}
	for _, n := range s.nodes() {
		if n.ID == id {
			found.Nodes = append(found.Nodes, n)
		}
	}
	if len(found.Nodes) == 0 {
		http.Error(w, fmt.Sprintf("no node %q is connected", id), http.StatusNotFound)
		return
	}
	s.send(w, found)
}

func (s *Server) loads(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("node")
	loads := s.options.Loads(id)
	if id != "" && loads.Nodes == 0 {
		http.Error(w, fmt.Sprintf("no node %q reports its load", id), http.StatusNotFound)
		return
	}
	s.send(w, loadsOf(loads))
}

func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	now := s.served.Load()
	if now == nil {
		http.Error(w, "not ready: "+s.unready(), http.StatusServiceUnavailable)
		return
	}
	h, namespace, err := ParseService(r.URL.Query().Get("host"))
	if err != nil {
		http.Error(w, "host: "+err.Error(), http.StatusBadRequest)
		return
	}
	x := Facts{
		View: now.view, Problems: s.options.NodeProblems(), Nodes: s.options.Nodes(), Sights: s.options.Sights(h), Near: s.options.Near,
	}.Explain(h, namespace)
	if len(x.Services) == 0 {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
	}
	s.send(w, x)
}

func (s *Server) release(w http.ResponseWriter, r *http.Request) {
	// No page of ours gives orders, so that one with an origin is foreign even if it is not cross-origin: somebody has a name of
	// their own lead to this address (DNS rebinding).
	if origin := r.Header.Get("Origin"); origin != "" {
		http.Error(w, fmt.Sprintf("pages give no orders, and this one is of %q", origin), http.StatusForbidden)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), orderTimeout)
	defer cancel()
	name := r.PathValue("name")
	n, err := s.options.Release(ctx, name)
	switch {
	case errors.Is(err, aggregate.ErrNoRegistry):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, aggregate.ErrHoldsNothing):
		http.Error(w, err.Error(), http.StatusConflict)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		s.send(w, Release{name, n})
	}
}

func (s *Server) resources(w http.ResponseWriter, r *http.Request) {
	if s.served.Load() == nil {
		http.Error(w, "not ready: "+s.unready(), http.StatusServiceUnavailable)
		return
	}
	of, err := s.options.Resources(r.URL.Query().Get("node"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.send(w, of)
}

// send answers with v as JSON that people can read as well.
func (s *Server) send(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		s.log.Debug("an answer was not sent", "error", err)
	}
}
