package consulreg

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"pgregory.net/rapid"

	"github.com/meshd/meshd/internal/mesh"
)

var update = flag.Bool("update", false, "rewrite the golden files; review the difference")

// TestTranslate reads testdata/translate/*.txtar: rules, Consul's answer to /v1/health/service/NAME, and what becomes of it.
// -update writes the last part anew; review what changes.
func TestTranslate(t *testing.T) {
	paths, err := filepath.Glob("testdata/translate/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files := map[string]string{}
			for _, f := range archive.Files {
				files[f.Name] = string(f.Data)
			}
			name, rules := readRules(t, files["rules"])
			instances, err := instancesOf([]byte(files["health.json"]))
			if err != nil {
				t.Fatal(err)
			}
			got := describe(rules.translate("consul", name, instances))
			if *update {
				archive.Files = slices.DeleteFunc(archive.Files, func(f txtar.File) bool { return f.Name == "outcome" })
				archive.Files = append(archive.Files, txtar.File{Name: "outcome", Data: []byte(got)})
				if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(files["outcome"], got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// readRules reads lines of a setting and its value, and the name of the service as one of them.
func readRules(t *testing.T, text string) (name string, r Rules) {
	t.Helper()
	name = "pay"
	r = Rules{Datacenter: "dc1", Distance: Near}
	settings := map[string]func(value string){
		"name":       func(v string) { name = v },
		"datacenter": func(v string) { r.Datacenter = v },
		"place":      func(v string) { r.Place = uint8(number(t, v)) },
		"several":    func(string) { r.Several = true },
		"far":        func(string) { r.Distance = Far },
		"domain":     func(v string) { r.Domain = v },
		"namespace":  func(v string) { r.Namespace = v },
		"datacenterHosts": func(v string) {
			r.DatacenterHosts = map[string]DatacenterHosts{"always": DatacenterHostsAlways, "never": DatacenterHostsNever}[v]
		},
		"include":      func(v string) { r.Include = append(r.Include, readMatch(t, v)) },
		"exclude":      func(v string) { r.Exclude = append(r.Exclude, readMatch(t, v)) },
		"exposeTagged": func(string) { r.Expose = ExposeTagged },
		"enableTag":    func(v string) { r.EnableTag = v },
		"delimiters":   func(v string) { r.Delimiters = v },
		"metaPrefix":   func(v string) { r.MetaPrefix = v },
		"zoneMeta":     func(v string) { r.ZoneMeta = v },
		"kinds":        func(v string) { r.Kinds = strings.Fields(v) },
		"port":         func(v string) { r.Port = uint16(number(t, v)) },
		"protocol":     func(v string) { r.Protocol, _ = mesh.ParseProtocol(v) },
	}
	for line := range strings.Lines(text) {
		setting, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if settings[setting] == nil {
			t.Fatalf("%q is not a setting of %q", setting, slices.Sorted(maps.Keys(settings)))
		}
		settings[setting](value)
	}
	return name, r.withDefaults()
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// readMatch reads name=PATTERN, tag=PATTERN and meta=KEY=PATTERN with blanks between them.
func readMatch(t *testing.T, text string) (m Match) {
	t.Helper()
	parts := map[string]*string{"name": &m.Name, "tag": &m.Tag, "meta": &m.Meta}
	for field := range strings.FieldsSeq(text) {
		part, pattern, _ := strings.Cut(field, "=")
		if parts[part] == nil {
			t.Fatalf("%q is not a part of a match", part)
		}
		*parts[part] = pattern
	}
	return m
}

// describe writes an outcome for people to read.
func describe(o outcome) string {
	var b strings.Builder
	for _, s := range o.services {
		fmt.Fprintf(&b, "%s %s %s", s.Key, s.Resolution, s.Location)
		if s.Distribution == mesh.PreferRegion {
			b.WriteString(" by region")
		}
		if len(s.Addresses) > 0 {
			fmt.Fprintf(&b, " at %v", s.Addresses)
		}
		fmt.Fprintf(&b, " from %s\n", s.Origin)
		for _, p := range s.Ports {
			fmt.Fprintf(&b, "\tport %d %s %q\n", p.Number, p.Name, p.Protocol)
		}
		for _, e := range s.Endpoints {
			fmt.Fprintf(&b, "\t%s", e.Address)
			if e.Second.IsValid() {
				fmt.Fprintf(&b, " or %s", e.Second)
			}
			fmt.Fprintf(&b, " %v weight %d %s in %s", e.Ports, e.Weight, e.Health, e.Locality)
			if e.Rank > 0 {
				fmt.Fprintf(&b, " rank %d", e.Rank)
			}
			fmt.Fprintf(&b, " %s from %s\n", strings.TrimPrefix(fmt.Sprint(e.Labels), "map"), e.Origin)
		}
	}
	for _, p := range o.problems {
		fmt.Fprintf(&b, "%s %s (%s)\n", p.Severity, p, p.Services)
	}
	for _, x := range o.omitted {
		fmt.Fprintf(&b, "omitted %s %s/%s: %s\n", x.Service, x.Node, x.ID, x.Reason)
	}
	return b.String()
}

func TestHostLabel(t *testing.T) {
	for _, tt := range []struct {
		name, want  string
		changed, ok bool
	}{
		{"pay", "pay", false, true},
		{"Pay-2", "pay-2", false, true},
		{"pay_api v1.2", "pay-api-v1-2", true, true},
		{"-pay_", "pay", true, true},
		{"zähler", "z-hler", true, true},
		{"\u212a8s", "8s", true, true}, // the sign of the Kelvin, whose lower case is k
		{"*", "", true, false},
		{"", "", false, false},
		{strings.Repeat("a", 63), strings.Repeat("a", 63), false, true},
		{strings.Repeat("a", 64), strings.Repeat("a", 64), false, false},
	} {
		if label, changed, ok := hostLabel(tt.name); label != tt.want || changed != tt.changed || ok != tt.ok {
			t.Errorf("hostLabel(%q) = %q, %v, %v; want %q, %v, %v", tt.name, label, changed, ok, tt.want, tt.changed, tt.ok)
		}
	}
}

func TestWanted(t *testing.T) {
	for _, tt := range []struct {
		name, rules, service, tags string
		want                       bool
	}{
		{"all are wanted", "", "pay", "", true},
		{"a service without a name is not", "", "", "", false},
		{"Consul's servers are not", "", "consul", "", false},
		{"Consul's servers are if they are asked for", "kinds: server", "consul", "", true},
		{"a service of another kind may be", "kinds: connect-proxy", "pay", "", true},
		{"a name is included", "include: name=pay*", "payments", "", true},
		{"no name is included", "include: name=pay*", "books", "", false},
		{"one of several tags is included", "include: tag=v*", "pay", "a v2", true},
		{"no tag is included", "include: tag=v*", "pay", "a", false},
		{"meta is not known", "include: meta=team=shop", "pay", "", true},
		{"a name is excluded", "exclude: name=pay", "pay", "", false},
		{"a tag of some instances is excluded", "exclude: name=pay tag=old", "pay", "old", true},
		{"an excluded meta may be that of some instances", "exclude: name=pay meta=old", "pay", "", true},
		{"all are excluded", "exclude: ", "pay", "", false},
		{"no instance has the tag", "exposeTagged: ", "pay", "meshd.enable=false", false},
		{"an instance has the tag", "exposeTagged: ", "pay", "meshd.enable:true meshd.enable=false", true},
		{"an instance has the bare tag", "exposeTagged: ", "pay", "meshd.enable", true},
		{"some instances hide", "", "pay", "meshd.enable=false", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, r := readRules(t, tt.rules)
			if got := r.wanted(tt.service, strings.Fields(tt.tags)); got != tt.want {
				t.Errorf("wanted is %v", got)
			}
		})
	}
}

// anyRules draws rules and a name that say something about what anyInstances draws.
func anyRules(t *rapid.T) (string, Rules) {
	match := rapid.Custom(func(t *rapid.T) Match {
		return Match{
			Name: rapid.SampledFrom([]string{"", "pay", "p*", "["}).Draw(t, "pattern"),
			Tag:  rapid.SampledFrom([]string{"", "v*", "["}).Draw(t, "tag"),
			Meta: rapid.SampledFrom([]string{"", "weight", "weight=1*"}).Draw(t, "meta"),
		}
	})
	r := Rules{
		Datacenter: rapid.SampledFrom([]string{"dc1", "dc_1", "", "*"}).Draw(t, "datacenter"),
		Distance:   rapid.SampledFrom([]Distance{AnyDistance, Near, Far}).Draw(t, "distance"),
		Several:    rapid.Bool().Draw(t, "several"),
		Include:    rapid.SliceOfN(match, 0, 2).Draw(t, "include"), Exclude: rapid.SliceOfN(match, 0, 1).Draw(t, "exclude"),
		Expose:     rapid.SampledFrom([]Exposure{ExposeAll, ExposeAll, ExposeTagged}).Draw(t, "expose"),
		Delimiters: rapid.SampledFrom([]string{"", "→="}).Draw(t, "delimiters"),
		Domain:     rapid.SampledFrom([]string{"", "sd.example.org", "bad_domain"}).Draw(t, "domain"),
		Port:       rapid.SampledFrom([]uint16{0, 80}).Draw(t, "port"),
		Kinds:      rapid.SampledFrom([][]string{nil, Kinds()}).Draw(t, "kinds"),
	}
	return rapid.SampledFrom([]string{"pay", "Pay_1", "", "consul", "*", strings.Repeat("a", 70)}).Draw(t, "name"), r.withDefaults()
}

func anyInstances(t *rapid.T) []*instance {
	address := rapid.SampledFrom([]string{"", "", "192.0.2.1", "192.0.2.2", "2001:db8::1", "::ffff:192.0.2.3", "fe80::1%eth0", "0.0.0.0", "224.0.0.1", "vm1.example.org.", "unix:///x", "*.a", "ä"})
	port := rapid.SampledFrom([]int{80, 81, 8080, 0, -1, 65536})
	text := rapid.OneOf(rapid.SampledFrom([]string{"", "http", "TCP", "1", "80", "81", "0", "b", "-"}), rapid.String())
	tag := rapid.SampledFrom([]string{"wan", "lan", "lan_ipv6", "lan_ipv4", "wan_ipv6", "virtual"})
	key := rapid.SampledFrom([]string{"protocol", "weight", "meshd-port", "meshd-port-name", "meshd-zone", "zone", "meshd-weight", ""})
	word := rapid.OneOf(rapid.SampledFrom([]string{"v1", "meshd-port=80", "meshd-protocol→grpc", "meshd.enable", "meshd.enable=false", "=", ""}), rapid.String())
	weight := rapid.SampledFrom([]int{0, 1, -5, 100, 1 << 40})
	return rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) *instance {
		return &instance{
			Node: rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node"), ID: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id"),
			Kind:    rapid.SampledFrom([]string{"", "", "connect-proxy", "novelty"}).Draw(t, "kind"),
			Address: address.Draw(t, "address"), NodeAddress: address.Draw(t, "node's"), Port: port.Draw(t, "port"),
			Tagged: rapid.MapOfN(tag, rapid.Custom(func(t *rapid.T) socket {
				return socket{address.Draw(t, "tagged"), port.Draw(t, "tagged port")}
			}), 0, 2).Draw(t, "tagged addresses"),
			NodeTagged: rapid.MapOfN(tag, address, 0, 2).Draw(t, "node's tagged addresses"),
			Tags:       rapid.SliceOfN(word, 0, 3).Draw(t, "tags"),
			Meta:       rapid.MapOfN(key, text, 0, 3).Draw(t, "meta"),
			NodeMeta:   rapid.MapOfN(key, text, 0, 1).Draw(t, "node's meta"),
			Weights:    weights{weight.Draw(t, "passing"), weight.Draw(t, "warning")},
			Status:     rapid.SampledFrom([]status{passing, warning, critical, maintenance}).Draw(t, "status"),
		}
	}), 0, 6, (*instance).key).Draw(t, "instances")
}

// TestWhatIsTranslatedCanBeServed draws rules and instances: each instance is served or omitted, what is served is whole, and
// neither the order of instances nor another time makes a difference.
func TestWhatIsTranslatedCanBeServed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name, r := anyRules(t)
		instances := anyInstances(t)
		o := r.translate("consul", name, instances)
		if objection := check(&r, name, instances, o); objection != "" {
			t.Fatalf("%s:\n%s", objection, describe(o))
		}
		shuffled := rapid.Permutation(instances).Draw(t, "order")
		again := r.translate("consul", name, shuffled)
		if d := cmp.Diff(describe(o), describe(again)); d != "" {
			t.Fatalf("in another order (-was +is):\n%s", d)
		}
		for n, s := range o.services {
			if !s.Identical(again.services[n]) {
				t.Fatalf("in another order %s is not identical", s.Key)
			}
		}
	})
}

// FuzzTranslate takes what is no answer of any Consul, too.
func FuzzTranslate(f *testing.F) {
	paths, err := filepath.Glob("testdata/translate/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			if file.Name == "health.json" {
				f.Add("pay", file.Data)
			}
		}
	}
	r := Rules{Datacenter: "dc1", Distance: Near, Several: true}.withDefaults()
	f.Fuzz(func(t *testing.T, name string, answer []byte) {
		instances, err := instancesOf(answer)
		if err != nil {
			return
		}
		o := r.translate("consul", name, instances)
		if objection := check(&r, name, instances, o); objection != "" {
			t.Fatalf("%s:\n%s", objection, describe(o))
		}
	})
}

// check says what is wrong with an outcome, whatever it is the outcome of.
func check(r *Rules, name string, instances []*instance, o outcome) string {
	served := 0
	for _, s := range o.services {
		again, err := mesh.ParseHost(s.Host.String())
		switch {
		case err != nil || again != s.Host || s.Host.Wildcard():
			return fmt.Sprintf("%q is no host: %v", s.Host, err)
		case len(s.Ports) == 0 || len(s.Endpoints) == 0:
			return "there are no ports or no endpoints"
		}
		names := map[string]bool{}
		for n, p := range s.Ports {
			if p.Number == 0 || p.Name == "" || names[p.Name] || n > 0 && s.Ports[n-1].Number >= p.Number {
				return "a port has no number or name of its own, or stands in the wrong place"
			}
			names[p.Name] = true
		}
		for _, e := range s.Endpoints {
			_, ip := e.Address.IP()
			host, named := e.Address.Host()
			switch {
			case len(e.Ports) != len(s.Ports) || len(slices.DeleteFunc(slices.Clone(e.Ports), func(p uint16) bool { return p == 0 })) != 1:
				return "an endpoint does not serve one of the ports"
			case e.Weight < 1 || e.Weight > maxWeight:
				return "a weight is out of range"
			case !ip && !(named && mesh.IsHostName(host) && s.Resolution == mesh.DNS):
				return "an address is none that the resolution takes"
			}
		}
		served = len(s.Endpoints)
	}
	omitted := slices.DeleteFunc(slices.Clone(o.omitted), func(x Omission) bool { return x.Node == "" && x.ID == "" })
	switch bad := slices.ContainsFunc(o.problems, func(p mesh.Problem) bool { return p.Code == "consul-bad-name" }); {
	case served > 0 && !r.wanted(name, tagsOf(instances)):
		return "it is served and not wanted"
	case !bad && len(o.omitted) == len(omitted) && served+len(omitted) != len(instances):
		return fmt.Sprintf("%d instances are served and %d omitted, of %d", served, len(omitted), len(instances))
	case served == 0 && len(o.omitted) == 0:
		return "nothing is served, and nothing says why"
	case !slices.IsSortedFunc(o.problems, mesh.Problem.Compare) || !slices.IsSortedFunc(o.omitted, Omission.compare):
		return "problems or omissions are not sorted"
	}
	for _, p := range o.problems {
		if p.Services == "" || p.Message == "" || p.Origin.Registry == "" || p.Origin.Source == "" {
			return "a problem does not say what it is about"
		}
	}
	return ""
}

func tagsOf(instances []*instance) (all []string) {
	for _, i := range instances {
		all = append(all, i.Tags...)
	}
	return all
}

// BenchmarkTranslate is what a change of one instance costs.
func BenchmarkTranslate(b *testing.B) {
	for _, size := range []int{3, 100, 1000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var instances []*instance
			for n := range size {
				instances = append(instances, &instance{
					Node: fmt.Sprintf("node-%04d", rand.N(10_000_000)), ID: "pay-" + fmt.Sprint(n), Name: "pay", NodeAddress: fmt.Sprintf("192.0.%d.%d", n/250, n%250+1),
					Port: 8080, Tags: []string{"meshd-protocol=http", "v2"}, Meta: map[string]string{"version": "2.1", "team": "shop"},
				})
			}
			r := Rules{Datacenter: "dc1", Distance: Near}.withDefaults()
			b.ReportAllocs()
			for b.Loop() {
				r.translate("consul", "pay", instances)
			}
		})
	}
}
