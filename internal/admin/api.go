package admin

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/meshd/meshd/internal/aggregate"
	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/xds"
)

// Status is the answer of /api/v1/status: all that `meshd status` shows.
type Status struct {
	Version    string                     `json:"version"` // of meshd
	Started    time.Time                  `json:"started"`
	Ready      bool                       `json:"ready"`
	Reason     string                     `json:"reason,omitempty"` // why it is not ready
	XDS        string                     `json:"xds"`              // the address that xDS is served on
	Admin      string                     `json:"admin"`            // the address of this API
	View       *View                      `json:"view"`             // null before the first
	Registries []aggregate.RegistryStatus `json:"registries"`       // by precedence
	Problems   []Problem                  `json:"problems"`         // the worst first, then the oldest
	Canary     *xds.CanaryStatus          `json:"canary,omitempty"` // of the roll-out of changes, if they go to a few nodes first
	Nodes      []Node                     `json:"nodes"`            // by id
}

// View is what is served.
type View struct {
	Generation uint64        `json:"generation"` // counts the views of this process, from 1
	Digest     string        `json:"digest"`     // the same for the same services, whichever process serves them
	Changed    time.Time     `json:"changed"`    // when it came to be
	Services   int           `json:"services"`
	Endpoints  int           `json:"endpoints"`
	Problems   ProblemCounts `json:"problems"`
}

// ProblemCounts counts problems by severity.
type ProblemCounts struct {
	Error   int `json:"error"`
	Warning int `json:"warning"`
	Notice  int `json:"notice"`
}

// CountProblems counts problems.
func CountProblems(problems []mesh.Problem) (n ProblemCounts) {
	for _, p := range problems {
		switch p.Severity {
		case mesh.Error:
			n.Error++
		case mesh.Warning:
			n.Warning++
		case mesh.Notice:
			n.Notice++
		}
	}
	return n
}

// Registries is the answer of /api/v1/registries.
type Registries struct {
	Registries []aggregate.RegistryStatus `json:"registries"` // by precedence
}

// Release is the answer of POST /api/v1/registries/NAME/release.
type Release struct {
	Registry string `json:"registry"`
	Released int    `json:"released"` // instances that were served although the source had told that they are gone, and are not any more
}

// Services is the answer of /api/v1/services.
type Services struct {
	Services []Service `json:"services"` // by host, then namespace
}

// Service is what one host in one namespace offers.
type Service struct {
	Host       string        `json:"host"`
	Namespace  string        `json:"namespace"`
	Origin     mesh.Origin   `json:"origin"`              // of the definition that decides
	Joined     []mesh.Origin `json:"joined,omitempty"`    // of the other definitions that are part of it
	Resolution string        `json:"resolution"`          // as in a ServiceEntry
	Location   string        `json:"location"`            // likewise
	Addresses  []string      `json:"addresses,omitempty"` // IP addresses or ranges that applications dial
	ExportTo   []string      `json:"exportTo"`            // namespaces that may use it; "*": all
	Ports      []Port        `json:"ports"`
	Endpoints  []Endpoint    `json:"endpoints"`
}

// Port is a port of a service.
type Port struct {
	Number   uint16      `json:"number"`
	Name     string      `json:"name"`
	Protocol string      `json:"protocol"` // empty: found out by the proxy
	Origin   mesh.Origin `json:"origin"`
}

// Endpoint is one instance of a service.
type Endpoint struct {
	Address  string            `json:"address"`         // an IP address, a host name, or unix:PATH
	Ports    map[string]uint16 `json:"ports,omitempty"` // the port that the instance listens on, by the service port's name
	Weight   uint32            `json:"weight"`
	Locality mesh.Locality     `json:"locality,omitzero"`
	Network  string            `json:"network,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Health   string            `json:"health"` // healthy, degraded, draining, unhealthy or unknown
	Origin   mesh.Origin       `json:"origin"`
}

// Problems is the answer of /api/v1/problems.
type Problems struct {
	Problems []Problem `json:"problems"` // the worst first, then the oldest
}

// Problem is a finding about input.
type Problem struct {
	Severity string `json:"severity"` // error, warning or notice; an error means that something is not served as written
	mesh.Problem
}

// Changes is the answer of /api/v1/changes.
type Changes struct {
	Changes []Change `json:"changes"` // the newest first; the latest 64
}

// Change is what one generation of the view changed against the one before.
type Change struct {
	Generation    uint64    `json:"generation"`
	Digest        string    `json:"digest"`
	Time          time.Time `json:"time"`
	Registries    []string  `json:"registries"`    // whose services changed
	EndpointsOnly bool      `json:"endpointsOnly"` // whether no more than endpoints differ
	Added         Keys      `json:"added"`
	Altered       Keys      `json:"altered"`
	Removed       Keys      `json:"removed"`
}

// Keys are some services, by NAMESPACE/HOST.
type Keys struct {
	Count int      `json:"count"`
	First []string `json:"first,omitempty"` // at most 20
}

// Nodes is the answer of /api/v1/nodes, and of /api/v1/nodes/ID with what is connected under that id.
type Nodes struct {
	Nodes []Node `json:"nodes"` // by id
}

// Node is one stream of a node. An Envoy has one, if it uses ADS, as with the bootstrap that meshd makes.
type Node struct {
	ID         string     `json:"id"`
	Cluster    string     `json:"cluster,omitempty"`
	Scope      Scope      `json:"scope"`
	Peer       string     `json:"peer"`                // the address that it is connected from
	Identity   string     `json:"identity,omitempty"`  // the name in its certificate, where it must have one
	UserAgent  string     `json:"userAgent,omitempty"` // the program, such as envoy
	Version    string     `json:"version,omitempty"`   // of the program
	Connected  time.Time  `json:"connected"`
	Protocol   string     `json:"protocol"`           // delta or sotw (state of the world)
	Aggregated bool       `json:"aggregated"`         // whether all types come over this stream (ADS)
	Throttled  time.Time  `json:"throttled,omitzero"` // when a request last had to wait, since there were more than max-request-rate
	Deliveries []Delivery `json:"deliveries"`         // of the types that it asked for: clusters, endpoints, listeners, routes
}

// Scope is those facts of a node that may change what it is sent.
type Scope struct {
	Kind       string        `json:"kind"` // proxy, or grpc for a gRPC client without one
	Namespace  string        `json:"namespace"`
	Capture    string        `json:"capture"` // redirect or none
	Family     string        `json:"family"`  // of its own addresses: ipv4, ipv6 or dual
	DNSDomain  string        `json:"dnsDomain,omitempty"`
	Locality   mesh.Locality `json:"locality,omitzero"`
	Privileges string        `json:"privileges"` // unprivileged: its proxy cannot listen on ports below 1024
}

// Resources is the answer of /api/v1/resources?node=NODE: what a node would be sent, whether it is connected or not.
type Resources struct {
	Generation uint64 `json:"generation"` // of the view
	Digest     string `json:"digest"`     // likewise
	Scope      Scope  `json:"scope"`      // of the node
	// OutboundTrafficPolicy is the daemon's setting of this name.
	OutboundTrafficPolicy string `json:"outboundTrafficPolicy"`
	// Resources are Envoy's, by type (clusters, endpoints, listeners, routes), under the field names of its documentation.
	Resources map[string][]json.RawMessage `json:"resources"`
}

// Delivery is what a node was sent, accepted or rejected of one type of resource.
type Delivery struct {
	Type       string     `json:"type"`
	Wildcard   bool       `json:"wildcard"`   // whether it asked for all there are
	Subscribed int        `json:"subscribed"` // how many it asked for by name
	Sent       Mark       `json:"sent,omitzero"`
	Accepted   Mark       `json:"accepted,omitzero"`
	Rejected   *Rejection `json:"rejected,omitempty"` // the last rejection, until it accepts all
	Held       []Held     `json:"held,omitempty"`     // what is held back since then; all else is sent
	Pending    bool       `json:"pending"`            // whether it has not answered yet what it was sent
}

// Mark is a version, and when it was sent or answered.
type Mark struct {
	Version string    `json:"version"`
	Time    time.Time `json:"time"`
}

// Held is a resource that a node rejected, and is not sent again before it changes.
type Held struct {
	Name     string    `json:"name"`
	Rejected string    `json:"rejected"`       // the version that it does not take
	Last     string    `json:"last,omitempty"` // the version that it keeps; empty if it has none, or if only it knows
	Message  string    `json:"message"`        // the node's own words
	Since    time.Time `json:"since"`
}

// Rejection is a version that a node did not take, and what led to it as far as can be told.
type Rejection struct {
	Mark
	Message   string   `json:"message"` // the node's own words
	Resources []string `json:"resources,omitempty"`
	Causes    []Cause  `json:"causes,omitempty"`
}

// Cause is a service that a rejected resource was made from.
type Cause struct {
	Service string      `json:"service"` // NAMESPACE/HOST
	Origin  mesh.Origin `json:"origin"`  // zero if the service is gone
}

// Loads is the answer of /api/v1/loads: requests as those nodes count them that send them and report it.
type Loads struct {
	IntervalSeconds float64       `json:"intervalSeconds"` // between two reports of a node; 0: none are taken
	Reporting       int           `json:"reporting"`       // nodes that report
	Clusters        []ClusterLoad `json:"clusters"`        // that there have been requests to, by service and port
}

// ClusterLoad is the requests to one cluster. With ?node=ID the totals are since the node has begun to report here.
type ClusterLoad struct {
	Cluster string `json:"cluster"`
	Service string `json:"service,omitempty"` // NAMESPACE/HOST that the cluster leads to, if it is of one
	Port    uint16 `json:"port,omitempty"`    // of the service
	Load
	Localities []LocalityLoad `json:"localities"`           // of the endpoints
	DroppedFor []DropLoad     `json:"droppedFor,omitempty"` // those of the dropped that a policy has dropped
	Nodes      Senders        `json:"nodes"`
}

// Load is a number of requests: HTTP requests, and where no HTTP is spoken connections.
type Load struct {
	RequestsPerSecond float64   `json:"requestsPerSecond"` // by the newest reports, as are the next three
	ErrorsPerSecond   float64   `json:"errorsPerSecond"`
	DroppedPerSecond  float64   `json:"droppedPerSecond"`
	InProgress        uint64    `json:"inProgress"`
	Total             LoadTotal `json:"total"` // since this process has begun to take reports of it
}

// LoadTotal counts requests. Those that are not over yet are neither successes nor errors, nor are connections, of which an
// Envoy does not say how they end.
type LoadTotal struct {
	Requests  uint64 `json:"requests"`
	Successes uint64 `json:"successes"`
	Errors    uint64 `json:"errors"`
	Dropped   uint64 `json:"dropped"` // by the node itself: of an overload, or of too many at one time
}

// LocalityLoad is the requests to the endpoints of one locality.
type LocalityLoad struct {
	Locality mesh.Locality `json:"locality"`
	Load
}

// DropLoad is the requests that were dropped for one reason.
type DropLoad struct {
	Category  string  `json:"category"`
	PerSecond float64 `json:"perSecond"`
	Total     uint64  `json:"total"`
}

// Senders are nodes by their ids.
type Senders struct {
	Count int      `json:"count"`           // that have sent such requests by their newest reports
	First []string `json:"first,omitempty"` // at most 20, by id
}

func (s *Server) status() Status {
	st := Status{
		Version: s.options.Version, Started: s.started, Reason: s.unready(), Admin: s.address,
		Registries: s.options.Registries(), Problems: s.problems(), Nodes: s.nodes(),
	}
	st.Ready = st.Reason == ""
	if s.options.XDS != nil {
		st.XDS = s.options.XDS.String()
	}
	if s.options.Canary != nil {
		if c := s.options.Canary(); c.On {
			st.Canary = &c
		}
	}
	if now := s.served.Load(); now != nil {
		st.View = &View{
			Generation: now.view.Generation, Digest: now.view.Digest.String(), Changed: now.change.Time,
			Services: now.view.Services.Len(), Endpoints: endpoints(now.view), Problems: CountProblems(s.allProblems(now.view)),
		}
	}
	return st
}

func endpoints(v *mesh.View) (n int) {
	for s := range v.Services.Values() {
		n += len(s.Endpoints)
	}
	return n
}

// allProblems are those of a view, and those of the nodes with it.
func (s *Server) allProblems(v *mesh.View) []mesh.Problem {
	return slices.Concat(v.Problems, s.options.NodeProblems())
}

// problems are those that there are, the worst first, then the oldest. Before the first view they are why there is none.
func (s *Server) problems() []Problem {
	if now := s.served.Load(); now != nil {
		return ranked(s.allProblems(now.view))
	}
	var before []mesh.Problem
	for _, r := range s.options.Registries() {
		before = append(before, r.Why...)
	}
	return ranked(before)
}

// ranked are problems, the worst first, then the oldest.
func ranked(problems []mesh.Problem) []Problem {
	out := []Problem{}
	for _, p := range problems {
		out = append(out, Problem{p.Severity.String(), p})
	}
	slices.SortStableFunc(out, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(b.Problem.Severity, a.Problem.Severity), a.Since.Compare(b.Since))
	})
	return out
}

func (s *Server) changes() []Change {
	changes := []Change{}
	for _, c := range slices.Backward(s.options.History()) {
		changes = append(changes, Change{
			Generation: c.Generation, Digest: c.Digest.String(), Time: c.Time, Registries: c.Registries,
			EndpointsOnly: c.EndpointsOnly, Added: keysOf(c.Added), Altered: keysOf(c.Altered), Removed: keysOf(c.Removed),
		})
	}
	return changes
}

func keysOf(keys []mesh.Key) Keys {
	const most = 20
	out := Keys{Count: len(keys)}
	for _, k := range keys[:min(most, len(keys))] {
		out.First = append(out.First, k.String())
	}
	return out
}

func (s *Server) services() []Service {
	services := []Service{}
	if now := s.served.Load(); now != nil {
		for v := range now.view.Services.Values() {
			services = append(services, serviceOf(v))
		}
	}
	return services
}

func serviceOf(s *mesh.Service) Service {
	out := Service{
		Host: s.Host.String(), Namespace: s.Namespace, Origin: s.Origin, Joined: s.Joined,
		Resolution: s.Resolution.String(), Location: s.Location.String(),
		ExportTo: []string{}, Ports: []Port{}, Endpoints: []Endpoint{},
	}
	for _, a := range s.Addresses {
		if a.IsSingleIP() {
			out.Addresses = append(out.Addresses, a.Addr().String())
		} else {
			out.Addresses = append(out.Addresses, a.String())
		}
	}
	if s.Export.All {
		out.ExportTo = append(out.ExportTo, "*")
	}
	out.ExportTo = append(out.ExportTo, s.Export.Namespaces...)
	for _, p := range s.Ports {
		out.Ports = append(out.Ports, Port{p.Number, p.Name, p.Protocol.String(), p.Origin})
	}
	for _, e := range s.Endpoints {
		ports := map[string]uint16{}
		for i, n := range e.Ports {
			if n != 0 {
				ports[s.Ports[i].Name] = n
			}
		}
		out.Endpoints = append(out.Endpoints, Endpoint{
			e.Address.String(), ports, e.Weight, e.Locality, e.Network, e.Labels, e.Health.String(), e.Origin,
		})
	}
	return out
}

func (s *Server) nodes() []Node {
	var view *mesh.View
	if now := s.served.Load(); now != nil {
		view = now.view
	}
	nodes := []Node{}
	for _, n := range s.options.Nodes() {
		nodes = append(nodes, nodeOf(n, view))
	}
	return nodes
}

func nodeOf(n xds.NodeStatus, view *mesh.View) Node {
	out := Node{
		ID: n.ID, Cluster: n.Cluster, Peer: n.Peer, Identity: n.Identity, UserAgent: n.UserAgent, Version: n.Version, Connected: n.Connected,
		Protocol: n.Protocol.String(), Aggregated: n.Aggregated, Deliveries: []Delivery{},
		Scope: ScopeOf(n.Scope), Throttled: n.Throttled,
	}
	for _, d := range n.Deliveries {
		var held []Held
		for _, h := range d.Held {
			held = append(held, Held{string(h.Name), h.Rejected, h.Last, h.Message, h.Since})
		}
		out.Deliveries = append(out.Deliveries, Delivery{
			Type: d.Type.String(), Wildcard: d.Wildcard, Subscribed: d.Subscribed, Pending: d.Pending,
			Sent: markOf(d.Sent), Accepted: markOf(d.Accepted), Rejected: rejectionOf(d.Rejected, view), Held: held,
		})
	}
	return out
}

func loadsOf(l xds.Loads) Loads {
	const most = 20
	out := Loads{l.Interval.Seconds(), l.Nodes, []ClusterLoad{}}
	for _, c := range l.Clusters {
		one := ClusterLoad{
			Cluster: string(c.Cluster), Port: c.Port, Load: loadOf(c.Load), Localities: []LocalityLoad{},
			Nodes: Senders{len(c.Nodes), c.Nodes[:min(most, len(c.Nodes))]},
		}
		if c.Service != (mesh.Key{}) {
			one.Service = c.Service.String()
		}
		for _, p := range c.Localities {
			one.Localities = append(one.Localities, LocalityLoad{p.Locality, loadOf(p.Load)})
		}
		for _, d := range c.Drops {
			one.DroppedFor = append(one.DroppedFor, DropLoad(d))
		}
		out.Clusters = append(out.Clusters, one)
	}
	return out
}

func loadOf(l xds.Load) Load {
	return Load{
		l.Rate.Requests, l.Rate.Errors, l.Rate.Drops, l.Rate.InProgress,
		LoadTotal{l.Total.Requests, l.Total.Successes, l.Total.Errors, l.Total.Drops},
	}
}

// ScopeOf shows a scope.
func ScopeOf(s xds.Scope) Scope {
	return Scope{s.Kind.String(), s.Namespace, s.Capture.String(), s.Family.String(), s.Domain, s.Locality, s.Privileges.String()}
}

func markOf(m xds.Mark) Mark { return Mark{m.Version, m.Time} }

func rejectionOf(r *xds.Rejection, view *mesh.View) *Rejection {
	if r == nil {
		return nil
	}
	out := &Rejection{Mark: markOf(r.Mark), Message: r.Message}
	for _, n := range r.Resources {
		out.Resources = append(out.Resources, string(n))
	}
	for _, k := range r.Services {
		c := Cause{Service: k.String()}
		if view != nil {
			if s, ok := view.Services.Get(k); ok {
				c.Origin = s.Origin
			}
		}
		out.Causes = append(out.Causes, c)
	}
	return out
}
