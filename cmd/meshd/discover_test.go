package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshd/meshd/internal/consultest"
)

// discover runs the command, and returns what it prints and its exit code.
func discover(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(append([]string{"discover", "--config", ""}, args...), &stdout, &stderr)
	var lines []string
	for line := range strings.Lines(stdout.String()) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return strings.Join(lines, "\n") + "\n", stderr.String(), code
}

func TestDiscover(t *testing.T) {
	s := consultest.NewStandIn(t, consultest.StandInOptions{})
	http := map[string]string{"protocol": "http"}
	s.Register(
		consultest.Service{Name: "pay", ID: "pay-1", Address: "192.0.2.1", Port: 8080, Meta: http, Tags: []string{"version=2"}},
		consultest.Service{Name: "pay", ID: "pay-2", Address: "192.0.2.2", Port: 8080, Meta: http, Status: "critical"},
		consultest.Service{Name: "cron", Address: "192.0.2.3"},
		consultest.Service{Name: "pay-proxy", Kind: "connect-proxy", Address: "192.0.2.1", Port: 20000},
	)
	out, errs, code := discover(t, "--consul", s.Addr)
	want := `datacenter dc1, registry consul

SERVICE  HOST                PORT  PROTOCOL  ENDPOINTS
pay      pay.service.consul  8080  HTTP      2, 1 unhealthy

LEFT OUT   INSTANCE          WHY
consul     all               its kind "server" is not one that is served (service)
cron       node-1/cron       port: is missing, so that nobody can connect; register the instance with the port that it listens on, or exclude the service
pay-proxy  node-1/pay-proxy  its kind "connect-proxy" is not one that is served (service)

consul dc1/node-1/cron: warning: port: is missing, so that nobody can connect; register the instance with the port that it listens on, or exclude the service [consul-no-port]
`
	if diff := cmp.Diff(want, out); diff != "" || code != 0 {
		t.Errorf("exit code %d, %s(-want +got):\n%s", code, errs, diff)
	}

	out, _, code = discover(t, "--consul", s.Addr, "-o", "json")
	if err := json.Unmarshal([]byte(out), &map[string]any{}); err != nil || code != 0 {
		t.Fatalf("exit code %d: %v\n%s", code, err, out)
	}
	for _, want := range []string{`"name": "dc1"`, `"hosts": [`, `"pay.service.consul"`, `"health": "unhealthy"`, `"version": "2"`, `"origin": "consul dc1/node-1/pay-1"`} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}

	s.Register(consultest.Service{Name: "bad", Address: "0.0.0.0", Port: 80})
	if out, _, code := discover(t, "--consul", s.Addr); code != exitFound || !strings.Contains(out, "[consul-bad-address]") {
		t.Errorf("with an error among the instances: exit code %d\n%s", code, out)
	}
	t.Setenv("CONSUL_HTTP_ADDR", s.Addr)
	if out, _, code := discover(t); code != exitFound || !strings.Contains(out, "pay.service.consul") {
		t.Errorf("by CONSUL_HTTP_ADDR: exit code %d\n%s", code, out)
	}
	s.Down()
	if out, errs, code := discover(t); code != exitUnable || out != "\n" || !strings.Contains(errs, "connection refused; see to it that it runs") {
		t.Errorf("of a Consul that is down: exit code %d, %q\n%s", code, out, errs)
	}
}
