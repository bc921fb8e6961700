package xds

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadservice "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// Load reports (LRS): what clients say of the requests that they send. A client is believed about clusters that it was
// given, and about nothing else; so what is kept is bounded by what is served, whoever reports.

// Loads is what those clients say that report.
type Loads struct {
	Interval time.Duration // between two reports of a client; 0: none are taken
	Nodes    int           // that report; those of two streams count twice
	Clusters []ClusterLoad // that there have been requests to, in order of service, port and cluster
}

// ClusterLoad is the requests to one cluster.
type ClusterLoad struct {
	Cluster envoy.Name
	Service mesh.Key // of outbound|PORT||HOST; else zero
	Port    uint16   // likewise
	Load
	Localities []LocalityLoad // by locality
	Drops      []DropLoad     // that have a category, by category
	Nodes      []string       // that have sent such requests by their newest reports, in order and each once
}

// Load is a number of requests: HTTP requests, or where no HTTP is spoken connections.
type Load struct {
	Rate  LoadRate  // by the newest reports
	Total LoadCount // since there are reports
}

// LoadRate is requests a second.
type LoadRate struct {
	Requests, Errors, Drops float64
	InProgress              uint64 // not a second, but when the reports were made
}

// LoadCount counts requests.
type LoadCount struct{ Requests, Successes, Errors, Drops uint64 }

// LocalityLoad is the requests to the endpoints of one locality.
type LocalityLoad struct {
	Locality mesh.Locality
	Load
}

// DropLoad is the requests that a policy has made clients drop.
type DropLoad struct {
	Category  string
	PerSecond float64
	Total     uint64
}

func (r *LoadRate) add(o LoadRate) {
	r.Requests += o.Requests
	r.Errors += o.Errors
	r.Drops += o.Drops
	r.InProgress += o.InProgress
}

func (c *LoadCount) add(o LoadCount) {
	c.Requests += o.Requests
	c.Successes += o.Successes
	c.Errors += o.Errors
	c.Drops += o.Drops
}

// Of one client no more is kept than this. Only one that reports what nobody else does has more.
const (
	mostLoadClusters   = 10_000
	mostLoadLocalities = 100 // of a cluster
	mostLoadCategories = 20  // likewise
	longestLoadText    = 256 // bytes of a part of a locality's name, and of a category
)

// staleReports is how many reports may be missing before a client's rates do not count any more.
const staleReports = 3

// ledger is what is kept of a cluster.
type ledger struct {
	service mesh.Key
	Load
	localities map[mesh.Locality]*Load
	categories map[string]*Load // of which only drops count
}

// parts adds what is kept of localities and categories.
func (l *ledger) parts(o *ledger, add func(to, from *Load)) {
	for at, p := range o.localities {
		add(slot(&l.localities, at, mostLoadLocalities), p)
	}
	for c, p := range o.categories {
		add(slot(&l.categories, c, mostLoadCategories), p)
	}
}

func (l *ledger) addTotals(o *ledger) {
	l.Total.add(o.Total)
	l.parts(o, func(to, from *Load) { to.Total.add(from.Total) })
}

func (l *ledger) addRates(o *ledger) {
	l.Rate.add(o.Rate)
	l.parts(o, func(to, from *Load) { to.Rate.add(from.Rate) })
}

// clearRates is what there is before a new report.
func (l *ledger) clearRates() {
	l.Rate = LoadRate{}
	for _, p := range l.localities {
		p.Rate = LoadRate{}
	}
	for _, p := range l.categories {
		p.Rate = LoadRate{}
	}
}

// slot finds or makes an entry of a map; what there is no room for is lost.
func slot[K comparable](m *map[K]*Load, key K, most int) *Load {
	if l := (*m)[key]; l != nil {
		return l
	}
	l := &Load{}
	switch {
	case len(*m) >= most:
		return l
	case *m == nil:
		*m = map[K]*Load{}
	}
	(*m)[key] = l
	return l
}

// reading is what one message says of a cluster. elapsed is the time that it is about, if it does not say itself.
func reading(stats *endpointv3.ClusterStats, kind envoy.Kind, elapsed time.Duration) *ledger {
	if d := stats.GetLoadReportInterval().AsDuration(); d > 0 {
		elapsed = d
	}
	seconds := max(elapsed, time.Millisecond).Seconds()
	l := &ledger{}
	for _, s := range stats.GetUpstreamLocalityStats() {
		n := LoadCount{Requests: s.GetTotalIssuedRequests(), Successes: s.GetTotalSuccessfulRequests(), Errors: s.GetTotalErrorRequests()}
		if n.Requests == 0 {
			n.Requests = n.Successes + n.Errors // of clients that do not tell
		}
		part := Load{
			Rate:  LoadRate{Requests: float64(n.Requests) / seconds, Errors: float64(n.Errors) / seconds, InProgress: s.GetTotalRequestsInProgress()},
			Total: n,
		}
		l.Rate.add(part.Rate)
		l.Total.add(part.Total)
		if at := localityOf(s.GetLocality(), kind); part != (Load{}) && max(len(at.Region), len(at.Zone), len(at.SubZone)) <= longestLoadText {
			p := slot(&l.localities, at, mostLoadLocalities)
			p.Rate.add(part.Rate)
			p.Total.add(part.Total)
		}
	}
	l.Rate.Drops, l.Total.Drops = float64(stats.GetTotalDroppedRequests())/seconds, stats.GetTotalDroppedRequests()
	for _, d := range stats.GetDroppedRequests() {
		if n := d.GetDroppedCount(); n > 0 && len(d.GetCategory()) <= longestLoadText {
			p := slot(&l.categories, d.GetCategory(), mostLoadCategories)
			p.Rate.Drops += float64(n) / seconds
			p.Total.Drops += n
		}
	}
	return l
}

// localityOf is a locality as the endpoints say it, without what is added to it for gRPC clients.
func localityOf(l *corev3.Locality, kind envoy.Kind) mesh.Locality {
	at := mesh.Locality{Region: l.GetRegion(), Zone: l.GetZone(), SubZone: l.GetSubZone()}
	if kind == envoy.GRPC {
		at.SubZone, _, _ = strings.Cut(at.SubZone, "#")
	}
	return at
}

// reporter is a client that reports. Its clusters and when it has reported are guarded by the mutex of [loads].
type reporter struct {
	node     string
	scope    *scope
	sendsAll bool     // it knows itself what to report
	told     []string // else: which clusters it was told to report

	reported time.Time // zero: not yet
	clusters map[envoy.Name]*ledger
}

// loads is what all clients report.
type loads struct {
	mu        sync.Mutex
	reporters map[*reporter]struct{}
	totals    map[cluster]*ledger // of all that have ever reported; without rates
	pruned    time.Time
}

// cluster tells clusters of one name apart that lead to different services, in different namespaces.
type cluster struct {
	name    envoy.Name
	service mesh.Key
}

func (l *loads) join(r *reporter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reporters == nil {
		l.reporters, l.totals = map[*reporter]struct{}{}, map[cluster]*ledger{}
	}
	l.reporters[r] = struct{}{}
}

func (l *loads) leave(r *reporter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.reporters, r)
}

// take takes a report, which replaces the client's last one. given are the clusters that the client was given.
func (l *loads) take(r *reporter, report []*endpointv3.ClusterStats, given envoy.Resources, interval time.Duration, now time.Time) {
	elapsed := interval
	if !r.reported.IsZero() {
		elapsed = now.Sub(r.reported)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, led := range r.clusters {
		if _, ok := given.Get(name); !ok && led.Rate == (LoadRate{}) {
			delete(r.clusters, name) // it was taken away, and the last requests to it are over
			continue
		}
		led.clearRates()
	}
	for _, stats := range report {
		name := envoy.Name(stats.GetClusterName())
		mine, known := r.clusters[name]
		var service mesh.Key
		switch resource, ok := given.Get(name); {
		case ok:
			name = resource.Name // which does not keep the message alive
			service = serviceOf(resource)
		case known:
			service = mine.service
		default:
			continue
		}
		read := reading(stats, r.scope.key.Kind, elapsed)
		if read.Load == (Load{}) {
			continue
		}
		if mine == nil || mine.service != service {
			if !known && len(r.clusters) >= mostLoadClusters {
				continue
			}
			mine = &ledger{service: service}
			r.clusters[name] = mine
		}
		mine.addRates(read)
		mine.addTotals(read)
		all := l.totals[cluster{name, service}]
		if all == nil {
			all = &ledger{service: service}
			l.totals[cluster{name, service}] = all
		}
		all.addTotals(read)
	}
	r.reported = now
}

// prune forgets the clusters of services that are gone, at most once in an interval.
func (l *loads) prune(services mesh.Services, interval time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.pruned) < interval {
		return
	}
	l.pruned = now
	maps.DeleteFunc(l.totals, func(c cluster, _ *ledger) bool {
		_, ok := services.Get(c.service)
		return !ok && c.service != (mesh.Key{})
	})
}

// serviceOf is the service that a cluster leads to; zero for one that is of no service or leads to this machine.
func serviceOf(r *envoy.Resource) mesh.Key {
	if len(r.Services) == 1 && portOf(r.Name) != 0 {
		return r.Services[0]
	}
	return mesh.Key{}
}

// portOf is the port of outbound|PORT||HOST, else 0.
func portOf(name envoy.Name) uint16 {
	parts := strings.SplitN(string(name), "|", 3)
	if len(parts) < 3 || parts[0] != "outbound" {
		return 0
	}
	n, err := strconv.ParseUint(parts[1], 10, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}

// sum is what all clients say, or those alone that have an id, of which the totals are then since they have connected.
func (l *loads) sum(only string, interval time.Duration, now time.Time) Loads {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := Loads{Interval: interval}
	sums, nodes := map[cluster]*ledger{}, map[cluster][]string{}
	if only == "" {
		for c, led := range l.totals {
			sums[c] = &ledger{service: led.service}
			sums[c].addTotals(led)
		}
	}
	for r := range l.reporters {
		if only != "" && r.node != only {
			continue
		}
		out.Nodes++
		stale := now.Sub(r.reported) > staleReports*interval
		for name, led := range r.clusters {
			c := cluster{name, led.service}
			if sums[c] == nil {
				if only == "" {
					continue // its service is gone
				}
				sums[c] = &ledger{service: led.service}
			}
			if only != "" {
				sums[c].addTotals(led)
			}
			if !stale && led.Rate != (LoadRate{}) {
				sums[c].addRates(led)
				nodes[c] = append(nodes[c], r.node)
			}
		}
	}
	for c, led := range sums {
		slices.Sort(nodes[c])
		out.Clusters = append(out.Clusters, led.show(c.name, slices.Compact(nodes[c])))
	}
	slices.SortFunc(out.Clusters, func(a, b ClusterLoad) int {
		return cmp.Or(a.Service.Compare(b.Service), cmp.Compare(a.Port, b.Port), a.Cluster.Compare(b.Cluster))
	})
	return out
}

func (l *ledger) show(name envoy.Name, nodes []string) ClusterLoad {
	c := ClusterLoad{Cluster: name, Service: l.service, Load: l.Load, Nodes: nodes}
	if l.service != (mesh.Key{}) {
		c.Port = portOf(name)
	}
	for _, at := range slices.SortedFunc(maps.Keys(l.localities), mesh.Locality.Compare) {
		c.Localities = append(c.Localities, LocalityLoad{at, *l.localities[at]})
	}
	for _, category := range slices.Sorted(maps.Keys(l.categories)) {
		p := l.categories[category]
		c.Drops = append(c.Drops, DropLoad{category, p.Rate.Drops, p.Total.Drops})
	}
	return c
}

// Loads is what clients report of their requests: all of them, or if node is not empty those of this id alone.
func (s *Server) Loads(node string) Loads {
	return s.loads.sum(node, s.options.LoadReportInterval, time.Now())
}

// lrsService takes load reports.
type lrsService struct {
	*Server
	loadservice.UnimplementedLoadReportingServiceServer
}

// sendsAllClusters is the feature of a client that can be told to report all clusters without naming them.
const sendsAllClusters = "envoy.lrs.supports_send_all_clusters"

// StreamLoadStats takes one client's reports until it goes. It is told what to report once there is a view, and anew
// when that changes, if it has to be told by name.
func (s lrsService) StreamLoadStats(ss loadservice.LoadReportingService_StreamLoadStatsServer) error {
	interval := s.options.LoadReportInterval
	requests, ended := inbox(s.Server, ss)
	look := time.NewTicker(interval)
	defer look.Stop()
	var r *reporter
	first := true
	for {
		select {
		case m := <-requests:
			if r == nil {
				var err error
				if r, err = s.admit(m.GetNode()); err != nil {
					return status.Error(codes.InvalidArgument, err.Error())
				}
				defer s.dismiss(r)
			}
			if e := r.scope.newest.Load(); e != nil && len(m.GetClusterStats()) > 0 {
				now := time.Now()
				s.loads.take(r, m.GetClusterStats(), e.Resources[envoy.Cluster], interval, now)
				s.loads.prune(e.View.Services, interval, now)
			}
		case <-look.C:
		case err := <-ended:
			return err
		case <-s.draining:
			return goElsewhere()
		}
		if r == nil || r.scope.newest.Load() == nil {
			continue
		}
		wanted := r.wanted(r.scope.newest.Load().Resources[envoy.Cluster])
		if !first && slices.Equal(wanted, r.told) {
			continue
		}
		first, r.told = false, wanted
		if err := ss.Send(&loadservice.LoadStatsResponse{
			SendAllClusters: r.sendsAll, Clusters: wanted, LoadReportingInterval: durationpb.New(interval),
		}); err != nil {
			return err
		}
	}
}

// wanted are the clusters that a client has to be told.
func (r *reporter) wanted(given envoy.Resources) []string {
	if r.sendsAll {
		return nil
	}
	out := make([]string, 0, given.Len())
	for n := range given.All() {
		out = append(out, string(n))
	}
	return out
}

// admit makes a client a reporter. Its scope is kept for it, so that it may report here and be served by a replica.
func (s *Server) admit(node *corev3.Node) (*reporter, error) {
	if node == nil {
		return nil, errNoNode
	}
	key, err := envoy.ScopeOf(node)
	if err != nil {
		return nil, err
	}
	r := &reporter{
		node: node.GetId(), scope: s.scopes.hold(key), clusters: map[envoy.Name]*ledger{},
		sendsAll: slices.Contains(node.GetClientFeatures(), sendsAllClusters),
	}
	s.scopes.refresh(r.scope)
	s.loads.join(r)
	s.log.Debug("node reports its load", "node", r.node, "scope", key)
	return r, nil
}

func (s *Server) dismiss(r *reporter) {
	s.loads.leave(r)
	s.scopes.release(r.scope)
}

// inbox receives a stream's requests, one at a time, until it ends; then it says how.
func inbox[Q any](s *Server, ss interface {
	Recv() (*Q, error)
	Context() context.Context
},
) (<-chan *Q, <-chan error) {
	requests, ended := make(chan *Q), make(chan error, 1)
	s.receivers.Go(func() { // it ends with the handler, which ends the stream's context
		for {
			m, err := ss.Recv()
			if err != nil {
				if errors.Is(err, io.EOF) {
					err = nil
				}
				ended <- err
				return
			}
			select {
			case requests <- m:
			case <-ss.Context().Done():
				return
			}
		}
	})
	return requests, ended
}
