package consulreg_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/consultest"
	"github.com/meshd/meshd/internal/mesh"
)

// found is what a look at a Consul found, a line for each service.
func found(d consulreg.Discovery) (lines []string) {
	for _, is := range d.Services {
		var line strings.Builder
		line.WriteString(is.Name)
		for _, s := range is.Services {
			line.WriteString(fmt.Sprintf(" %s(%d)", s.Host, len(s.Endpoints)))
		}
		for _, o := range is.Omitted {
			line.WriteString(fmt.Sprintf("; %s%s: %s", o.Node, o.ID, o.Reason))
		}
		lines = append(lines, line.String())
	}
	return lines
}

func TestDiscover(t *testing.T) {
	t.Parallel()
	s := consultest.NewStandIn(t, consultest.StandInOptions{})
	at := func(name, id string, tags ...string) consultest.Service {
		return consultest.Service{Name: name, ID: id, Address: "192.0.2.7", Port: 80, Tags: tags}
	}
	s.Register(
		at("pay", "pay-1"), at("pay", "pay-2"), at("my_web", "web"), at("my-web", "web-2"), at("batch", "batch"),
		at("part", "part-1"), at("part", "part-2", "meshd.enable=false"), at("hidden", "hidden-1", "meshd.enable=false"),
		consultest.Service{Name: "pay-proxy", ID: "proxy", Kind: "connect-proxy", Address: "192.0.2.7", Port: 81},
		consultest.Service{Name: "no-port", ID: "no-port", Address: "192.0.2.7"},
	)
	d, err := consulreg.Discover(t.Context(), "main", consulreg.Options{
		Link:     consulreg.Link{Addresses: []string{s.URL}},
		Rules:    consulreg.Rules{Exclude: []consulreg.Match{{Name: "batch"}}},
		StateDir: "/dev/null/nothing is written here",
	})
	if err != nil {
		t.Fatal(err)
	}
	if d.Registry != "main" || d.Datacenter != "dc1" {
		t.Errorf("registry %q, datacenter %q", d.Registry, d.Datacenter)
	}
	const kind = `its kind %q is not one that is served (service)`
	want := []string{
		"batch; : no instance can match what is included, excluded and exposed",
		"consul; : " + fmt.Sprintf(kind, "server"),
		"hidden; node-1hidden-1: its tag meshd.enable=false says so",
		"my-web my-web.service.consul(1)",
		"my_web; : another service has the host my-web.service.consul",
		"no-port; node-1no-port: ",
		"part part.service.consul(1); node-1part-2: its tag meshd.enable=false says so",
		"pay pay.service.consul(2)",
		"pay-proxy; node-1proxy: " + fmt.Sprintf(kind, "connect-proxy"),
	}
	got := found(d)
	for n, line := range got { // the words for it are those of translate.go
		if strings.HasPrefix(line, "no-port; node-1no-port: ") {
			got[n] = "no-port; node-1no-port: "
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if !slices.IsSortedFunc(d.Problems, mesh.Problem.Compare) || len(d.Problems) == 0 {
		t.Errorf("problems %v", d.Problems)
	}
}

func TestDiscoverFails(t *testing.T) {
	t.Parallel()
	ended, end := context.WithCancel(t.Context())
	end()
	for _, tt := range []struct {
		name string
		ctx  context.Context // nil: the test's
		ill  func(s *consultest.StandIn)
		want string
	}{
		{"nobody is there", nil, (*consultest.StandIn).Down, "connection refused"},
		{"the token sees nothing", nil, func(s *consultest.StandIn) { s.FilterSilently(func(string) bool { return false }) }, "hides everything"},
		{"the token sees no instance", nil, func(s *consultest.StandIn) {
			s.Register(consultest.Service{Name: "pay", Port: 80, Address: "192.0.2.7"})
			s.Fault(func(r *http.Request) *consultest.Response {
				if !strings.HasPrefix(r.URL.Path, "/v1/health/service/") {
					return nil
				}
				return &consultest.Response{Status: 200, Header: http.Header{"X-Consul-Index": {"5"}, "X-Consul-Results-Filtered-By-Acls": {"true"}, "X-Consul-Lastcontact": {"0"}}, Body: "[]"}
			})
		}, "the instances of all services are hidden"},
		{"the token is unknown", nil, func(s *consultest.StandIn) { s.SetToken("another") }, "ACL not found"},
		{"nobody wants to know any more", ended, func(*consultest.StandIn) {}, "context canceled"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := consultest.NewStandIn(t, consultest.StandInOptions{Token: "one"})
			tt.ill(s)
			ctx := tt.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			d, err := consulreg.Discover(ctx, "main", consulreg.Options{Link: consulreg.Link{Addresses: []string{s.URL}, Token: "one"}})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, %v; want an error with %q", found(d), err, tt.want)
			}
		})
	}
}

// TestDiscoverASlowService has one service that is hidden, and another that comes later.
func TestDiscoverASlowService(t *testing.T) {
	t.Parallel()
	s := consultest.NewStandIn(t, consultest.StandInOptions{})
	s.Register(
		consultest.Service{Name: "a", Port: 80, Address: "192.0.2.7"},
		consultest.Service{Name: "b", Port: 80, Address: "192.0.2.8"},
	)
	s.Fault(func(r *http.Request) *consultest.Response {
		switch r.URL.Path {
		case "/v1/health/service/a":
			return &consultest.Response{Status: 200, Header: http.Header{"X-Consul-Index": {"5"}, "X-Consul-Results-Filtered-By-Acls": {"true"}, "X-Consul-Lastcontact": {"0"}}, Body: "[]"}
		case "/v1/health/service/b":
			return &consultest.Response{Delay: 300 * time.Millisecond}
		}
		return nil
	})
	d, err := consulreg.Discover(t.Context(), "main", consulreg.Options{Link: consulreg.Link{Addresses: []string{s.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(found(d), "\n"); !strings.Contains(got, "b b.service.consul(1)") || !strings.Contains(got, "a; : the token may not see its instances") {
		t.Errorf("found is\n%s", got)
	}
}

// TestDiscoverARealConsul looks at services whose names a path does not take as they are.
func TestDiscoverARealConsul(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	want := map[string]bool{}
	for n, name := range []string{"a/b", "50%", "a%2Fc", "what?", "two words", "größe", "x+y", "d//e"} {
		a.Register(consultest.Service{Name: name, ID: fmt.Sprint("id-", n), Address: fmt.Sprintf("192.0.2.%d", n+1), Port: 80})
		want[name] = true
	}
	d, err := consulreg.Discover(t.Context(), "main", consulreg.Options{Link: consulreg.Link{Addresses: []string{a.Addr}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, is := range d.Services {
		if !want[is.Name] {
			continue
		}
		delete(want, is.Name)
		switch {
		case len(is.Services) == 1 && len(is.Services[0].Endpoints) == 1 && len(is.Omitted) == 0:
		case len(is.Services) == 0 && len(is.Omitted) == 1 && strings.HasPrefix(is.Omitted[0].Reason, "name: "): // it makes no host
		default:
			t.Errorf("%q is %v", is.Name, found(consulreg.Discovery{Services: []consulreg.Discovered{is}}))
		}
	}
	if len(want) > 0 {
		t.Errorf("not found are %v", want)
	}
	t.Log(strings.Join(found(d), "\n"))
}
