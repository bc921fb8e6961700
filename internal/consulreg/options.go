package consulreg

import (
	"path"
	"time"

	"github.com/meshd/meshd/internal/mesh"
)

// Options are a registry's settings. Zero values are the defaults unless it says otherwise.
type Options struct {
	Link  Link
	Rules Rules
	Guard Guard

	// Damping is for how long an instance that was critical must be well before it counts as healthy again; 0: not at all.
	Damping time.Duration
	// Connections is the most connections to Consul at one time, 20 by default. At least 6.
	Connections int
	// Watches is the most services that are watched one by one, which is done over HTTP/2 alone; 2,000 by default. With more
	// services, or without HTTP/2, two queries watch all and reads follow.
	Watches int
	// Sweep is the time between two comparisons of everything, 5 min by default.
	Sweep time.Duration
	// StateDir is a folder of the registry's own that keeps what is believed over a restart. Empty: nothing is kept.
	StateDir string
}

// Link says how to reach Consul, and as whom.
type Link struct {
	// Addresses are tried in order: host:port, http://HOST:PORT, https://HOST:PORT/PREFIX or unix:///PATH; 127.0.0.1:8500 by default.
	Addresses []string
	TLS       TLS
	Token     string
	TokenFile string // wins over Token; read again when it changes
	Username  string // of HTTP basic authentication
	Password  string
	// Datacenter is the one to ask for; empty: that of the agent.
	Datacenter string
	// Namespace and Partition are Consul's, which only its Enterprise edition has.
	Namespace string
	Partition string
}

// TLS are the files and names by which Consul and meshd know each other.
type TLS struct {
	CAFile, CAPath     string
	CertFile, KeyFile  string
	ServerName         string
	InsecureSkipVerify bool
}

// Rules say what Consul's services become.
type Rules struct {
	// Datacenter is the name of the datacenter, as it stands in hosts and as the region of endpoints. The registry fills it
	// in from the agent if it is empty.
	Datacenter string
	// Place is that of the datacenter among all that are served: endpoints of a higher one are for when those of lower ones do
	// not suffice, unless a node is nearer to them.
	Place uint8
	// Several says that there is more than one datacenter.
	Several bool
	// Distance says which addresses of instances to take, the local or the wide-area ones.
	Distance Distance

	Domain          string          // "consul" by default
	Namespace       string          // of mesh services; mesh.DefaultNamespace by default
	DatacenterHosts DatacenterHosts // whether services are also known as NAME.service.DATACENTER.DOMAIN

	// Include and Exclude choose instances: those that one of Include matches, or any if that is empty, and none of Exclude.
	Include, Exclude []Match
	// Expose says whether instances need EnableTag. One with the tag EnableTag=false is left out in any case.
	Expose    Exposure
	EnableTag string // "meshd.enable" by default

	Delimiters string   // characters of which the first in a tag parts key from value; "=:|" by default
	MetaPrefix string   // of the keys that meshd recognises; "meshd-" by default
	ZoneMeta   string   // key of a node's meta that holds its zone; "zone" by default
	Kinds      []string // of [Kinds]; "service" by default

	Protocol mesh.Protocol // of instances that say none
	Port     uint16        // that applications dial, of services whose instances say none and listen on different ones; 0: the commonest
}

// Distance is how far the datacenter is.
type Distance uint8

// The distances. AnyDistance is Near for the agent's own datacenter and Far for all others.
const (
	AnyDistance Distance = iota
	Near
	Far
)

// DatacenterHosts is whether services have hosts with their datacenter in it.
type DatacenterHosts uint8

// The choices. Auto is where there are several datacenters.
const (
	DatacenterHostsAuto DatacenterHosts = iota
	DatacenterHostsAlways
	DatacenterHostsNever
)

// Exposure is which instances are served.
type Exposure uint8

// The exposures.
const (
	ExposeAll Exposure = iota
	ExposeTagged
)

// Kinds are the words for what can be served. "service" is what applications register, "server" is Consul's own service
// "consul"; the others are Consul's words.
func Kinds() []string {
	return []string{"service", "server", "connect-proxy", "mesh-gateway", "terminating-gateway", "ingress-gateway", "api-gateway"}
}

// Match is a condition on an instance: all of its parts that are not empty.
type Match struct {
	Name string // a pattern of the service's name, as path.Match has it
	Tag  string // a pattern of one of its tags
	// Meta is KEY=PATTERN, or KEY for any value, of the service's meta.
	Meta string
}

// Check tells what is wrong with the patterns.
func (m Match) Check() error {
	for _, p := range []string{m.Name, m.Tag, m.Meta} {
		if _, err := path.Match(p, ""); err != nil {
			return err
		}
	}
	return nil
}

// Guard says which losses, though Consul tells of them in a way that is not suspect, wait for it to confirm them.
type Guard struct {
	Off bool
	// Services is the share of a registry's services, and Endpoints the share of the endpoints of a service that has at least
	// 4, of which more may not go in one step; 0.3 and 0.5 by default. The last endpoint of a service always waits.
	Services, Endpoints float64
}

func (o Options) withDefaults() Options {
	def(&o.Connections, 20)
	def(&o.Watches, 2000)
	def(&o.Sweep, 5*time.Minute)
	def(&o.Guard.Services, 0.3)
	def(&o.Guard.Endpoints, 0.5)
	if len(o.Link.Addresses) == 0 {
		o.Link.Addresses = []string{"127.0.0.1:8500"}
	}
	o.Rules = o.Rules.withDefaults()
	return o
}

func (r Rules) withDefaults() Rules {
	def(&r.Domain, "consul")
	def(&r.Namespace, mesh.DefaultNamespace)
	def(&r.EnableTag, "meshd.enable")
	def(&r.Delimiters, "=:|")
	def(&r.MetaPrefix, "meshd-")
	def(&r.ZoneMeta, "zone")
	if len(r.Kinds) == 0 {
		r.Kinds = Kinds()[:1]
	}
	return r
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
