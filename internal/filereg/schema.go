package filereg

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/strictyaml"
)

// schema is a JSON Schema, or a part of one.
type schema map[string]any

// with is the schema with all that another says too.
func (s schema) with(more schema) schema {
	s = maps.Clone(s)
	maps.Copy(s, more)
	return s
}

func (s schema) about(description string) schema { return s.with(schema{"description": description}) }

// Schema is a JSON Schema (draft 7, which editors' YAML plug-ins know best) of the documents that are served. Fields and
// their types are those that documents are decoded into, what depends on the resolution is read from the table that
// validates it, and the rest is said in the table below. It refuses nothing that is served, but for null or "" in place of
// a field that is left out; not all that is refused can be said in a schema.
func Schema() []byte {
	text, err := json.MarshalIndent(rootSchema(), "", "  ")
	if err != nil {
		panic(err) // it is made of maps, lists and text
	}
	return append(text, '\n')
}

func rootSchema() schema {
	kindIs := func(kind string) schema {
		return schema{"properties": schema{"kind": schema{"const": kind}}, "required": []string{"kind"}}
	}
	document := func(spec schema) schema {
		return schema{"properties": schema{"spec": spec}}
	}
	service := structSchema(reflect.TypeFor[networking.ServiceEntry](), "service")
	service["allOf"] = serviceRules()
	entry := schema{
		"type":                 "object",
		"required":             []string{"apiVersion", "kind", "metadata", "spec"},
		"additionalProperties": false,
		"properties": schema{
			"apiVersion": schema{"enum": apiVersions, "description": "The version of the API. All of them mean the same."},
			"kind":       schema{"enum": kinds},
			"metadata":   structSchema(reflect.TypeFor[metadata](), "metadata"),
			"spec":       schema{"description": "What the entry says."},
			"status":     schema{"description": "What others have found out. Of a WorkloadEntry with the annotation " + healthChecked + " the condition Healthy counts, of a ServiceEntry the addresses that were allocated to its hosts; all else has no effect."},
		},
		"if":   kindIs(kindWorkload),
		"then": document(workloadSchema("What the workload is.")),
		"else": document(service),
	}
	return schema{
		"$schema":     "http://json-schema.org/draft-07/schema#",
		"$id":         "https://github.com/meshd/meshd/blob/main/examples/schema.json",
		"title":       "An entry of meshd",
		"description": "ServiceEntry and WorkloadEntry documents as meshd serves them. Made by `meshd schema`; `meshd check` knows more rules.",
		"definitions": schema{"entry": entry},
		"properties": schema{"kind": schema{ // here, for editors that complete
			"enum": append(slices.Clone(kinds), kindList), "description": "What the document is.", "enumDescriptions": []string{
				"A service: its hosts, ports, and where it runs.",
				"One place where services run, such as a virtual machine. The workloadSelector of a ServiceEntry finds it by its labels.",
				"A list of such documents, as kubectl writes it.",
			},
		}},
		"if": kindIs(kindList),
		"then": schema{"type": "object", "required": []string{"apiVersion", "items"}, "properties": schema{
			"apiVersion": schema{"const": listVersion},
			"items":      schema{"type": "array", "items": schema{"$ref": "#/definitions/entry"}},
		}},
		"else": schema{"$ref": "#/definitions/entry"},
	}
}

// Patterns, in the part of the language that JavaScript and Go have in common.
const (
	labelPattern  = `[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?` // a name of Kubernetes
	tagPattern    = `([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)`
	octetPattern  = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`
	ipPattern     = `(` + octetPattern + `\.){3}` + octetPattern + `|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*`
	socketPattern = `unix://(/.*[^/]|@.+)`

	// The last label of a host is no number. How long labels may be is not said here.
	hostPattern = `([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*([0-9]*[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?|[0-9]+-[A-Za-z0-9-]*[A-Za-z0-9])`
)

// matching is text of a form. The words are for editors that show them (those of VS Code and yaml-language-server).
func matching(pattern, words string) schema {
	return schema{"type": "string", "pattern": "^(" + pattern + ")$", "patternErrorMessage": "Write " + words + "."}
}

// addressPatterns are how each kind of address is written.
var addressPatterns = []struct {
	kind           addressKind
	pattern, words string
}{
	{ipAddress, ipPattern, "an IP address"},
	{hostName, hostPattern, "a full host name"},
	{unixSocket, socketPattern, "a Unix socket as unix:///run/app.sock"},
}

func addressSchema(allowed addressKind) schema {
	var patterns, words []string
	for _, a := range addressPatterns {
		if a.kind&allowed != 0 {
			patterns, words = append(patterns, a.pattern), append(words, a.words)
		}
	}
	return matching(strings.Join(patterns, "|"), orList(words)+", without a port")
}

var (
	portNumberRule = schema{"minimum": 1, "maximum": 65535}
	portNameForm   = matching(`[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?`, "at most 63 letters, digits and inner hyphens")
	labelKeyForm   = matching(`((`+labelPattern+`\.)*`+labelPattern+`/)?`+tagPattern, "a label's key: at most 63 letters, digits, and inner hyphens, underscores or dots, after a domain and a slash if need be")
	labelsRule     = schema{
		"propertyNames":        labelKeyForm,
		"additionalProperties": matching(tagPattern+`?`, "a label's value: at most 63 letters, digits, and inner hyphens, underscores or dots"),
	}
	starlessForm = matching(`[^*]*`, "the whole label; labels are compared as they are")
)

// wordsLike is text, and one of these as a rule.
func wordsLike(known ...string) schema {
	return schema{"anyOf": []schema{{"enum": known}, {"type": "string"}}}
}

// inAnyCase are words in capitals, as they are offered, or in other letters.
func inAnyCase(known []string) schema {
	var patterns []string
	for _, word := range known {
		var p strings.Builder
		for _, r := range word {
			if lower := strings.ToLower(string(r)); lower != string(r) {
				p.WriteString("[" + string(r) + lower + "]")
			} else {
				p.WriteString(string(r))
			}
		}
		patterns = append(patterns, p.String())
	}
	return schema{"anyOf": []schema{{"enum": known}, {"type": "string", "pattern": "^(" + strings.Join(patterns, "|") + ")$"}}}
}

// meaning is what the schema says of a field beside its type.
type meaning struct {
	text string
	rule schema
}

// ofKubernetes says of a field that only Kubernetes has a use for it; such a field is not offered.
var ofKubernetes = meaning{text: "Set by Kubernetes; it has no effect."}

// fieldsOf says it of all fields, by the struct that has them.
var fieldsOf = map[string]map[string]meaning{
	"metadata": {
		"name":      {"The entry's own name. No other of its kind in the namespace has it.", schema{"pattern": "^" + labelPattern + `(\.` + labelPattern + `)*$`, "maxLength": 253}},
		"namespace": {"The namespace of the entry; default if left out. Nodes of other namespaces see its services unless exportTo says otherwise.", schema{"pattern": "^" + labelPattern + "$"}},
		"labels":    {"Labels. Those of a WorkloadEntry are selected by, as those in its spec are. On a ServiceEntry " + autoAddress + ": \"false\" keeps it from getting an address of its own.", labelsRule},
		"annotations": {"Notes for people and programs. meshd reads those that are listed here.", schema{"properties": schema{
			trafficDistribution: wordsLike("PreferClose", "PreferSameZone", "PreferSameNode").about("Of a ServiceEntry: which endpoints a node prefers."),
			connectStrategy:     wordsLike("RACE_FIRST_TCP_CONNECT").about("Of a ServiceEntry with resolution DNS: try the addresses of a name at once, and take the one that answers first."),
			healthChecked:       wordsLike("true", "false").about(`Of a WorkloadEntry: it is used only while its status has the condition Healthy.`),
		}}},
		"creationTimestamp":          {"When the entry was made. Of entries that contradict each other the older is served.", schema{"type": []string{"string", "null"}, "format": "date-time"}},
		"uid":                        ofKubernetes,
		"resourceVersion":            ofKubernetes,
		"generation":                 ofKubernetes,
		"generateName":               ofKubernetes,
		"managedFields":              ofKubernetes,
		"ownerReferences":            ofKubernetes,
		"finalizers":                 ofKubernetes,
		"selfLink":                   ofKubernetes,
		"deletionTimestamp":          ofKubernetes,
		"deletionGracePeriodSeconds": ofKubernetes,
	},
	"service": {
		"hosts": {"The names by which applications ask for the service, such as payments.mesh.internal, or \"*.example.org\" for all hosts of a domain.", schema{
			"minItems": 1,
			"items":    matching(`(\*\.)?(`+hostPattern+`)`, `a DNS name such as payments.mesh.internal, or "*.example.org"`).with(schema{"maxLength": 255, "not": schema{"pattern": "[^.]{64}"}}),
		}},
		"addresses":        {"IP addresses, or ranges such as 10.1.0.0/16, that applications dial for the service.", schema{"items": matching(`(`+ipPattern+`)(/[0-9]{1,3})?`, "an IP address such as 10.1.2.3, or a range such as 10.1.0.0/16")}},
		"ports":            {"The ports on which applications ask for the service.", nil},
		"location":         {"Whether the service is part of the mesh. MESH_EXTERNAL if left out.", nil},
		"resolution":       {"How endpoints are found. NONE if left out.", schema{"enumDescriptions": resolutionTexts}},
		"endpoints":        {"Where the service runs.", nil},
		"workloadSelector": {"Finds where the service runs: every WorkloadEntry of the namespace that has these labels.", nil},
		"exportTo": {"The namespaces whose nodes see the service: their names, \".\" for the entry's own, \"*\" for all, \"~\" for none. All if left out.", schema{
			"uniqueItems": true,
			"items":       matching(`\.|\*|~|`+labelPattern, `a namespace's name, "." for the entry's own, "*" for all or "~" for none`),
			"if":          schema{"contains": schema{"enum": []string{"*", "~"}}},
			"then":        schema{"maxItems": 1},
		}},
		"subjectAltNames": {"Names of which the server's certificate must have one.", nil},
	},
	"port": {
		"number":     {"The port that applications dial.", portNumberRule},
		"protocol":   {"What is spoken on the port. If left out, the proxy finds out by the first bytes.", schema{"anyOf": []schema{inAnyCase(mesh.ProtocolNames()), {"maxLength": 0}}}},
		"name":       {"The port's name, its own in the entry. Endpoints refer to it.", portNameForm},
		"targetPort": {"The port on which endpoints listen that do not say otherwise; number if left out.", portNumberRule},
	},
	"selector": {
		"labels": {"The labels that a WorkloadEntry must have, all of them.", schema{"propertyNames": starlessForm.with(schema{"minLength": 1}), "additionalProperties": starlessForm}},
	},
	"workload": {
		"address":        {"The IP address, a host name to look up, or a Unix socket as unix:///run/app.sock. Ports are said under ports.", nil},
		"ports":          {"The port that serves each of the service's ports, by its name.", schema{"propertyNames": portNameForm, "additionalProperties": schema{"type": "integer"}.with(portNumberRule)}},
		"labels":         {"Labels, by which workloads are selected.", labelsRule},
		"network":        {"The network that the address is in.", nil},
		"locality":       {"Where it runs, as REGION/ZONE/SUBZONE.", nil},
		"weight":         {"Its share of the requests, beside the weights of the others; 1 if left out.", nil},
		"serviceAccount": {"The account under which it runs.", nil},
	},
}

// resolutionTexts explain the resolutions, in their order.
var resolutionTexts = []string{
	"Connections go to the address that the application dialled.",
	"The endpoints' IP addresses and Unix sockets.",
	"All addresses of the endpoints' names, or of the host itself if there are none, as DNS has them.",
	"One address at a time of one name.",
	"The address of the name in each request.",
}

// structNames are the structs' names in that table.
var structNames = map[reflect.Type]string{
	reflect.TypeFor[networking.ServicePort]():      "port",
	reflect.TypeFor[networking.WorkloadSelector](): "selector",
	reflect.TypeFor[networking.WorkloadEntry]():    "workload",
}

// required are the fields that may not be left out.
var required = map[string][]string{"metadata": {"name"}, "service": {"hosts"}, "port": {"number", "name"}}

// structSchema is the schema of a struct. Editors offer a struct's properties, and not what they only take by a pattern:
// fields that nobody writes, and the other names of fields.
func structSchema(t reflect.Type, name string) schema {
	properties, patterns := schema{}, schema{}
	for _, f := range strictyaml.Fields(t) {
		known, ok := fieldsOf[name][f.Name]
		if !ok {
			panic(fmt.Sprintf("filereg: the schema does not know %s.%s", name, f.Name))
		}
		s := typeSchema(f.Type).about(known.text).with(known.rule)
		if known.text == ofKubernetes.text {
			patterns["^"+f.Name+"$"] = s
			continue
		}
		properties[f.Name] = s
		if f.Also != "" {
			patterns["^"+f.Also+"$"] = s
		}
	}
	out := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if len(patterns) > 0 {
		out["patternProperties"] = patterns
	}
	if r := required[name]; r != nil {
		out["required"] = r
	}
	return out
}

func typeSchema(t reflect.Type) schema {
	if e, ok := enumerations[t]; ok {
		return schema{"enum": e.names}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeSchema(t.Elem())
	case reflect.Slice:
		return schema{"type": "array", "items": typeSchema(t.Elem())}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": typeSchema(t.Elem())}
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Uint32:
		return schema{"type": "integer", "minimum": 0, "maximum": math.MaxUint32}
	case reflect.Interface:
		return schema{}
	case reflect.Struct:
		switch t {
		case reflect.TypeFor[time.Time]():
			return schema{"type": "string"}
		case reflect.TypeFor[networking.WorkloadEntry]():
			return workloadSchema("")
		}
		return structSchema(t, structNames[t])
	}
	panic("filereg: the schema does not know the type " + t.String())
}

// workloadSchema is a workload of any kind of address.
func workloadSchema(description string) schema {
	s := structSchema(reflect.TypeFor[networking.WorkloadEntry](), "workload")
	if description != "" {
		s["description"] = description
	}
	properties := s["properties"].(schema)
	properties["address"] = properties["address"].(schema).with(addressSchema(anyAddress))
	s["anyOf"] = []schema{{"required": []string{"address"}}, {"required": []string{"network"}}}
	s["if"] = socketEndpoint
	s["then"] = schema{"properties": schema{"ports": schema{"maxProperties": 0}}}
	return s
}

var socketEndpoint = schema{"required": []string{"address"}, "properties": schema{"address": schema{"pattern": "^unix:"}}}

// serviceRules are what fields of a ServiceEntry's spec demand of each other.
func serviceRules() (rules []schema) {
	rule := func(condition, then schema) { rules = append(rules, schema{"if": condition, "then": then}) }
	properties := func(of schema) schema { return schema{"properties": of} }
	none := schema{"maxItems": 0}
	var lookedUp, named []string // the resolutions that look names up, and those for which hosts must differ
	for _, r := range slices.Sorted(maps.Keys(resolutions)) {
		allows := resolutions[r]
		is := properties(schema{"resolution": schema{"const": r.String()}})
		if r != mesh.ResolutionNone { // which is also that of an entry without one
			is["required"] = []string{"resolution"}
			named = append(named, r.String())
		}
		if r.DNS() {
			lookedUp = append(lookedUp, r.String())
		}
		then := schema{}
		switch allows.addresses {
		case nothing:
			then["addresses"] = none
		case singleAddresses:
			then["addresses"] = schema{"items": schema{"not": schema{"pattern": "/"}}}
		}
		switch {
		case allows.endpoints == 0:
			then["endpoints"] = none
		default:
			item := properties(schema{"address": addressSchema(allows.written)})
			if allows.written == resolvable {
				item["required"] = []string{"address"}
			}
			then["endpoints"] = schema{"items": item}
			if allows.endpoints < math.MaxInt {
				then["endpoints"] = schema{"items": item, "maxItems": allows.endpoints}
			}
		}
		if r == mesh.DynamicDNS {
			var protocols []string
			for _, p := range dynamicProtocols {
				protocols = append(protocols, p.String())
			}
			then["hosts"] = schema{"items": schema{"pattern": `^\*\.`}}
			then["ports"] = schema{"items": schema{"required": []string{"protocol"}, "properties": schema{"protocol": inAnyCase(protocols)}}}
		}
		rule(is, properties(then))
	}
	resolvedBy := func(names []string) schema {
		return schema{"required": []string{"resolution"}, "properties": schema{"resolution": schema{"enum": names}}}
	}
	rule(resolvedBy(lookedUp).with(schema{"not": schema{"required": []string{"endpoints"}, "properties": schema{"endpoints": schema{"minItems": 1}}}}),
		properties(schema{"hosts": schema{"items": schema{"not": schema{"pattern": `^\*`}}}}))

	var carrying []string // protocols that carry the host
	for _, name := range mesh.ProtocolNames() {
		if p, _ := mesh.ParseProtocol(name); p.HTTP() || p.TLS() {
			carrying = append(carrying, name)
		}
	}
	several := resolvedBy(named)
	// In letters of two cases a host may be there twice without being seen, so that there is but one.
	several["properties"].(schema)["hosts"] = schema{"minItems": 2, "uniqueItems": true, "items": schema{"pattern": "^[^A-Z]*$"}}
	rule(several, properties(schema{"ports": schema{"items": schema{"required": []string{"protocol"}, "properties": schema{"protocol": inAnyCase(carrying)}}}}))

	rule(schema{"required": []string{"workloadSelector"}}, properties(schema{"endpoints": none}))
	rule(schema{"required": []string{"endpoints"}, "properties": schema{"endpoints": schema{"contains": socketEndpoint}}},
		schema{"required": []string{"ports"}, "properties": schema{"ports": schema{"minItems": 1, "maxItems": 1}}})
	return rules
}
