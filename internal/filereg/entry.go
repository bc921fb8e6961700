package filereg

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/strictyaml"
)

// The kinds of document that are served, and how their apiVersion may be written.
const (
	kindService  = "ServiceEntry"
	kindWorkload = "WorkloadEntry"
	kindList     = "List" // of any of them
	listVersion  = "v1"
	group        = "networking.istio.io"
)

var (
	kinds       = []string{kindService, kindWorkload}
	apiVersions = []string{group + "/v1", group + "/v1beta1", group + "/v1alpha3"}

	// unserved are Istio's other kinds.
	unserved = []string{
		"AuthorizationPolicy", "DestinationRule", "EnvoyFilter", "Gateway", "PeerAuthentication", "ProxyConfig",
		"RequestAuthentication", "Sidecar", "Telemetry", "TrafficExtension", "VirtualService", "WasmPlugin", "WorkloadGroup",
	}
)

// identity is what makes a document the same one after an edit.
type identity struct{ kind, namespace, name string }

func (id identity) String() string { return id.kind + " " + id.namespace + "/" + id.name }

// Compare orders identities by name, namespace and kind.
func (id identity) Compare(o identity) int {
	if c := cmp.Compare(id.name, o.name); c != 0 { // as it is of most
		return c
	}
	return cmp.Or(cmp.Compare(id.namespace, o.namespace), cmp.Compare(id.kind, o.kind))
}

// document is what was made of one document of a file. It is immutable.
type document struct {
	identity identity // zero if it cannot be told
	origin   mesh.Origin
	entry    *entry // nil: the document is refused, or none of ours
	refused  bool
	problems []mesh.Problem
}

func (d *document) spot() spot { return spot{filePath(d.origin.Source), d.origin.Document} }

// entry is a document that is right. It is immutable.
type entry struct {
	identity    identity
	origin      mesh.Origin
	in          excerpt       // what has it, of the version that it is of
	single      bool          // that is as small as it can be
	definitions []*definition // of a ServiceEntry, one for each host
	workload    *workload     // of a WorkloadEntry
}

// manifest is a document in full, with the parts that are the kind's own.
type manifest[Spec, Status any] struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Metadata   metadata `yaml:"metadata"`
	Spec       Spec     `yaml:"spec"`
	Status     Status   `yaml:"status"`
}

// metadata is that of Kubernetes. What only Kubernetes itself sets is accepted, so that the output of kubectl can be
// used as it is, and has no effect.
type metadata struct {
	Name              string            `yaml:"name"`
	Namespace         string            `yaml:"namespace"`
	Labels            map[string]string `yaml:"labels"`
	Annotations       map[string]string `yaml:"annotations"`
	CreationTimestamp time.Time         `yaml:"creationTimestamp"`

	UID                        any `yaml:"uid"`
	ResourceVersion            any `yaml:"resourceVersion"`
	Generation                 any `yaml:"generation"`
	GenerateName               any `yaml:"generateName"`
	ManagedFields              any `yaml:"managedFields"`
	OwnerReferences            any `yaml:"ownerReferences"`
	Finalizers                 any `yaml:"finalizers"`
	SelfLink                   any `yaml:"selfLink"`
	DeletionTimestamp          any `yaml:"deletionTimestamp"`
	DeletionGracePeriodSeconds any `yaml:"deletionGracePeriodSeconds"`
}

// serviceStatus is what others have done about a ServiceEntry, and workloadStatus what they have found out about a
// WorkloadEntry; only this of them is used.
type (
	serviceStatus struct {
		Addresses []allocated `yaml:"addresses"`
	}
	workloadStatus struct {
		Conditions []condition `yaml:"conditions"`
	}
)

// allocated is an address that was allocated to a host, or to all hosts of an entry.
type allocated struct {
	Value string `yaml:"value"`
	Host  string `yaml:"host"`
}

type condition struct {
	Type   string `yaml:"type"`
	Status string `yaml:"status"`
}

var decoding = strictyaml.Options{Lenient: []string{"status"}, Enum: func(t reflect.Type) (map[string]int64, []string, bool) {
	e, ok := enumerations[t]
	return e.numbers, e.names, ok
}}

// enumerations are the schema's, by how their values are written.
var enumerations = map[reflect.Type]enumeration{
	reflect.TypeFor[networking.ServiceEntry_Location]():   enumerationOf(networking.ServiceEntry_Location_name),
	reflect.TypeFor[networking.ServiceEntry_Resolution](): enumerationOf(networking.ServiceEntry_Resolution_name),
}

type enumeration struct {
	numbers map[string]int64
	names   []string // in order of number
}

func enumerationOf(values map[int32]string) enumeration {
	e := enumeration{numbers: map[string]int64{}}
	for _, number := range slices.Sorted(maps.Keys(values)) {
		e.numbers[values[number]] = int64(number)
		e.names = append(e.names, values[number])
	}
	return e
}

// read makes an entry of a document, or finds out why it is none. The document is that of this number in the file.
func read(registry string, in excerpt, doc *strictyaml.Document, number int) *document {
	at := doc.Position()
	r := &reader{doc: doc, origin: mesh.Origin{
		Registry: registry, Source: in.file.Path, Document: number, Line: at.Line, Column: at.Column,
	}}
	d := &document{}
	if kind := r.kind(); kind != "" {
		d.identity = r.identity(kind)
		r.origin.Name = d.identity.name
		e := &entry{identity: d.identity, origin: r.origin, in: in}
		switch kind {
		case kindService:
			e.definitions = r.serviceEntry(d.identity.namespace)
		case kindWorkload:
			e.workload = r.workloadEntry()
		}
		if !r.refused {
			d.entry = e
		}
	}
	d.origin, d.refused, d.problems = r.origin, r.refused, r.problems
	return d
}

// kind tells which of our kinds a document is of; empty if of none, with a finding.
func (r *reader) kind() string {
	kind, _ := r.doc.String("kind")
	version, _ := r.doc.String("apiVersion")
	switch {
	case kind == "":
		if r.decode(new(map[string]any)); !r.refused { // else it has no keys at all
			r.refuse("missing-field", "kind", "is missing; write %s", orList(kinds))
		}
	case slices.Contains(kinds, kind):
		switch {
		case version == "":
			r.refuse("missing-field", "apiVersion", "is missing; write %s", apiVersions[0])
		case !slices.Contains(apiVersions, version):
			r.refuse("unknown-version", "apiVersion", "%q is not a version of %s; write %s", version, kind, orList(apiVersions))
		default:
			return kind
		}
	case kind == kindList:
		r.refuse("unserved-kind", "kind", "a List inside of a List is not read; write its items into the outer one")
	case strings.Contains(version, ".istio.io/") && slices.Contains(unserved, kind):
		r.notice("unserved-kind", "kind", "%s is a kind of Istio's that meshd does not serve yet; the document is skipped", kind)
	case strictyaml.Suggest(kind, kinds) != "":
		r.refuse("unknown-kind", "kind", "%q is not a kind%s", kind, didYouMean(kind, kinds))
	default:
		r.notice("unknown-kind", "kind", "%q is not a kind that meshd serves (%s); the document is skipped", kind, strings.Join(kinds, ", "))
	}
	return ""
}

// identity reads which document this is, zero if that cannot be told.
func (r *reader) identity(kind string) identity {
	name, _ := r.doc.String("metadata.name")
	namespace, given := r.doc.String("metadata.namespace")
	if !given && !r.doc.Has("metadata.namespace") || given && namespace == "" {
		namespace = mesh.DefaultNamespace
	}
	if name == "" || namespace == "" {
		return identity{}
	}
	return identity{kind, namespace, name}
}

// serviceEntry reads the whole of a ServiceEntry.
func (r *reader) serviceEntry(namespace string) []*definition {
	var m manifest[networking.ServiceEntry, serviceStatus]
	r.decode(&m)
	r.metadata(kindService, &m.Metadata)
	spec := r.serviceSpec(&m.Spec, &m.Metadata, namespace)
	r.allocations(spec, m.Status.Addresses)
	if r.refused {
		return nil
	}
	return spec.definitions(namespace, &m.Metadata)
}

// workloadEntry reads the whole of a WorkloadEntry.
func (r *reader) workloadEntry() *workload {
	var m manifest[networking.WorkloadEntry, workloadStatus]
	r.decode(&m)
	r.metadata(kindWorkload, &m.Metadata)
	w := r.workload("spec", &m.Spec, anyAddress)
	w.add(m.Metadata.Labels)
	w.unhealthy = m.Metadata.Annotations[healthChecked] == "true" &&
		!slices.Contains(m.Status.Conditions, condition{"Healthy", "True"})
	return w
}

// decode fills into from the document; each field that does not fit is a finding.
func (r *reader) decode(into any) {
	r.mistakes = r.doc.Decode(into, decoding)
	r.refused = r.refused || len(r.mistakes) > 0
	for _, m := range r.mistakes {
		r.problems = append(r.problems, r.problem(mesh.Error, m.Code, m.Path, m.Position, m.Message))
	}
}

// orList writes words as "a, b or c".
func orList(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
