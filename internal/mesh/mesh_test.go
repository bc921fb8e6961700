package mesh

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func mustHost(t testing.TB, s string) Host {
	t.Helper()
	h, err := ParseHost(s)
	if err != nil {
		t.Fatalf("%q %v", s, err)
	}
	return h
}

func TestParseHost(t *testing.T) {
	for in, want := range map[string]string{
		"payments.mesh.internal": "payments.mesh.internal",
		"Payments.Mesh.Internal": "payments.mesh.internal",
		"*.example.org":          "*.example.org",
		"localhost":              "localhost",
		"1.example":              "1.example",
		"x--y.example":           "x--y.example",
	} {
		if got := mustHost(t, in).String(); got != want {
			t.Errorf("ParseHost(%q) = %q, want %q", in, got, want)
		}
	}
	for in, says := range map[string]string{
		"":                                "empty",
		"*":                               "domain whose hosts are meant",
		"a.example.":                      `write "a.example"`,
		"*shop.example":                   "whole first label",
		"a.*.example":                     "whole first label",
		"*.*.example":                     "whole first label",
		"a..example":                      "empty label",
		".example":                        "empty label",
		"bad_name.example":                `"bad_name"`,
		"-a.example":                      `"-a"`,
		"192.0.2.77":                      "number",
		"a.77":                            "number",
		"héllo.example":                   "letters, digits",
		strings.Repeat("a", 64):           "64 characters",
		strings.Repeat("a.", 130):         "trailing dot",
		strings.Repeat("a.", 127) + "abc": "257 characters",
	} {
		if h, err := ParseHost(in); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("ParseHost(%q) = %v, %v; want an error that says %q", in, h, err, says)
		}
	}
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"a.example", "*.Example", "1.2.3.4", "a_b", "*", "..", "xn--nxasmq6b.example"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ParseHost(s)
		if err != nil {
			return
		}
		again, err := ParseHost(h.String())
		if err != nil || again != h {
			t.Errorf("%q gives %q, and that gives %q, %v", s, h, again, err)
		}
		if _, err := netip.ParseAddr(s); err == nil {
			t.Errorf("%q is an IP address and a host", s)
		}
	})
}

func TestParseProtocol(t *testing.T) {
	for _, name := range append(ProtocolNames(), "") {
		p, ok := ParseProtocol(strings.ToLower(name))
		if !ok || p.String() != name {
			t.Errorf("ParseProtocol(%q) = %v, %v", name, p, ok)
		}
		if kinds := []bool{p.HTTP(), p.TCP(), p == UDP, p == Sniffed}; !slices.Contains(kinds, true) || slices.Index(kinds[slices.Index(kinds, true)+1:], true) >= 0 {
			t.Errorf("%q is not of exactly one kind: %v", name, kinds)
		}
	}
	if _, ok := ParseProtocol("HTTQ"); ok {
		t.Error("HTTQ is a protocol")
	}
}

func TestAddressIsOneThing(t *testing.T) {
	ip, host, socket := IPAddress(netip.MustParseAddr("::ffff:192.0.2.1")), HostAddress("VM1.example"), SocketAddress("@x")
	for a, want := range map[Address]string{ip: "192.0.2.1", host: "vm1.example", socket: "unix:@x", {}: ""} {
		_, isIP := a.IP()
		_, isHost := a.Host()
		path, isSocket := a.Socket()
		if isIP != (a == ip) || isHost != (a == host) || isSocket != (a == socket) || a.String() != want {
			t.Errorf("%q: ip %v, host %v, socket %v, text %q", want, isIP, isHost, isSocket, a)
		}
		if isSocket && path != "@x" {
			t.Errorf("path %q", path)
		}
	}
}

func TestVisibility(t *testing.T) {
	v := Visibility{Namespaces: []string{"a", "c"}}
	for ns, want := range map[string]bool{"a": true, "b": false, "c": true} {
		if v.In(ns) != want || v.Names(ns) != want || !(Visibility{All: true}).In(ns) || (Visibility{}).In(ns) {
			t.Errorf("namespace %q is seen wrongly", ns)
		}
	}
}

func sample(t testing.TB) Service {
	return Service{
		Key:       Key{mustHost(t, "pay.mesh.internal"), "default"},
		Ports:     []Port{{Number: 80, Name: "http", Protocol: HTTP, Also: []Protocol{TCP}}, {Number: 81, Name: "admin"}},
		Addresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.7/32")}, Resolution: Static, Location: Internal,
		Endpoints: []Endpoint{
			{Address: IPAddress(netip.MustParseAddr("192.0.2.2")), Ports: []uint16{8080, 0}, Weight: 1, Labels: map[string]string{"a": "b"}},
			{Address: IPAddress(netip.MustParseAddr("192.0.2.1")), Ports: []uint16{8080, 0}, Weight: 1},
		},
		SubjectAltNames: []string{"b", "a"}, Export: Visibility{Namespaces: []string{"x"}}, Labels: map[string]string{"k": "v"},
		Selector: "app=pay", Created: time.Unix(1, 0), Origin: Origin{Source: "pay.yaml", Line: 3},
	}
}

// TestDigestsTellEveryDifference changes one field at a time.
func TestDigestsTellEveryDifference(t *testing.T) {
	base := Seal(sample(t))
	for name, change := range map[string]func(*Service){
		"namespace":    func(s *Service) { s.Namespace = "other" },
		"host":         func(s *Service) { s.Host = mustHost(t, "pay2.mesh.internal") },
		"port":         func(s *Service) { s.Ports[0].Number = 82 },
		"port name":    func(s *Service) { s.Ports[0].Name = "h" },
		"protocol":     func(s *Service) { s.Ports[0].Protocol = HTTP2 },
		"also":         func(s *Service) { s.Ports[0].Also = nil },
		"target":       func(s *Service) { s.Ports[0].Target = 9 },
		"address":      func(s *Service) { s.Addresses = nil },
		"allocated":    func(s *Service) { s.Allocated = []netip.Addr{netip.MustParseAddr("240.240.0.1")} },
		"allocation":   func(s *Service) { s.Allocation = NeverAllocate },
		"resolution":   func(s *Service) { s.Resolution = DNS },
		"location":     func(s *Service) { s.Location = External },
		"names":        func(s *Service) { s.SubjectAltNames = []string{"a"} },
		"export":       func(s *Service) { s.Export = Visibility{All: true} },
		"labels":       func(s *Service) { s.Labels["k"] = "w" },
		"selector":     func(s *Service) { s.Selector = "" },
		"created":      func(s *Service) { s.Created = time.Unix(2, 0) },
		"distribution": func(s *Service) { s.Distribution = PreferClose },
		"connect":      func(s *Service) { s.Connect = RaceFirstTCPConnect },
	} {
		s := sample(t)
		change(&s)
		if got := Seal(s); got.Frame() == base.Frame() || got.Digest() == base.Digest() || got.Identical(base) {
			t.Errorf("another %s is not told", name)
		}
	}
	for name, change := range map[string]func(*Endpoint){
		"address":  func(e *Endpoint) { e.Address = HostAddress("x") },
		"port":     func(e *Endpoint) { e.Ports = []uint16{8081, 0} },
		"weight":   func(e *Endpoint) { e.Weight = 2 },
		"locality": func(e *Endpoint) { e.Locality.Zone = "z" },
		"network":  func(e *Endpoint) { e.Network = "n" },
		"labels":   func(e *Endpoint) { e.Labels = nil },
		"account":  func(e *Endpoint) { e.ServiceAccount = "a" },
		"health":   func(e *Endpoint) { e.Health = Draining },
	} {
		s := sample(t)
		change(&s.Endpoints[0])
		if got := Seal(s); got.Frame() != base.Frame() || got.Digest() == base.Digest() {
			t.Errorf("another %s of an endpoint is not told, or told as more than that", name)
		}
	}
}

func TestOriginsAreNoDifferenceInContent(t *testing.T) {
	s := sample(t)
	s.Origin.Line, s.Endpoints[0].Origin.Line, s.Ports[0].Origin.Line = 7, 8, 9
	a, b := Seal(sample(t)), Seal(s)
	if a.Digest() != b.Digest() {
		t.Error("origins are part of the digest")
	}
	if a.Identical(b) {
		t.Error("services of other origins stand for each other")
	}
	if !a.Identical(Seal(sample(t))) {
		t.Error("the same service is not identical")
	}
}

func TestOrderOfWhatHasNoOrderIsNoDifference(t *testing.T) {
	s := sample(t)
	slices.Reverse(s.Endpoints)
	slices.Reverse(s.SubjectAltNames)
	if !Seal(s).Identical(Seal(sample(t))) {
		t.Error("the order of endpoints or names makes another service")
	}
}

func TestDigestsAddUp(t *testing.T) {
	a, b := Seal(sample(t)).Digest(), Digest{0: 0xff, 15: 0xff}
	if a.Plus(b) != b.Plus(a) || a.Plus(b).Minus(b) != a || (Digest{}).Plus(a) != a {
		t.Error("a sum of digests depends on its order, or cannot be taken back")
	}
}

func TestViewOrder(t *testing.T) {
	v := &View{Registries: []string{"files", "consul"}}
	make := func(host, registry string, created int64) *Service {
		s := sample(t)
		s.Host, s.Origin.Registry, s.Created = mustHost(t, host), registry, time.Unix(created, 0)
		return Seal(s)
	}
	want := []*Service{
		make("b.example", "files", 1), make("a.example", "files", 2), make("c.example", "files", 2), make("a.example", "consul", 0),
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, v.Before)
	if !slices.Equal(got, want) {
		t.Error("services do not stand by registry, age and host")
	}
}

func TestOfHost(t *testing.T) {
	v := &View{}
	for _, k := range []Key{{mustHost(t, "a.example"), "y"}, {mustHost(t, "a.example"), "x"}, {mustHost(t, "b.example"), "x"}} {
		s := sample(t)
		s.Key = k
		v.Services = v.Services.With(k, Seal(s))
	}
	var got []string
	for s := range v.OfHost(mustHost(t, "a.example")) {
		got = append(got, s.Key.String())
	}
	if want := []string{"x/a.example", "y/a.example"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestProblemText(t *testing.T) {
	p := Problem{
		Severity: Error, Code: "unknown-protocol", Origin: Origin{Source: "entries/pay.yaml", Line: 12, Column: 17},
		Field: "spec.ports[1].protocol", Message: `"HTTQ" is not a protocol`,
	}
	if got, want := p.String(), `entries/pay.yaml:12:17: spec.ports[1].protocol: "HTTQ" is not a protocol [unknown-protocol]`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	p = Problem{Code: "x", Origin: Origin{Registry: "consul"}, Message: "is gone"}
	if got, want := p.String(), `consul: is gone [x]`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func BenchmarkSeal(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Seal(sample(b))
	}
}

func TestAProblemConcernsServices(t *testing.T) {
	p := Problem{Services: "shop/pay.mesh.internal default/Cart.mesh.internal. default/no_host shop/*.example.org"}
	for _, tt := range []struct {
		host, namespace string
		want            bool
	}{
		{"pay.mesh.internal", "", true},
		{"pay.mesh.internal", "shop", true},
		{"pay.mesh.internal", "default", false},
		{"cart.mesh.internal", "default", true},
		{"ay.mesh.internal", "", false},
		{"*.example.org", "shop", true},
		{"www.example.org", "", false},
	} {
		h, err := ParseHost(tt.host)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Concerns(h, tt.namespace); got != tt.want {
			t.Errorf("%s in %q: %v", tt.host, tt.namespace, got)
		}
		if (Problem{}).Concerns(h, tt.namespace) {
			t.Errorf("%s in %q is the concern of a problem with nothing", tt.host, tt.namespace)
		}
	}
}
