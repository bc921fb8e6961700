package integration

import (
	"fmt"
	"os"
	"testing"
)

// TestStaticEnvoy shows that this machine and the harness can do what the other tests build on, without meshd.
func TestStaticEnvoy(t *testing.T) {
	ca := newAuthority(t)
	startHTTP(t, "10.77.0.11:9001", "10.77.0.13:9001", "10.77.0.16:8080", "10.77.0.17:9001")
	startGRPC(t, "10.77.0.12:9001")
	startTCP(t, "10.77.0.14:9001", "10.77.0.16:7777")
	startTLS(t, ca, "10.77.0.15:9001")
	names := startNameServer(t)
	names.set("one.upstream.test", "10.77.0.13")

	bootstrap, err := os.ReadFile("testdata/static.yaml")
	if err != nil {
		t.Fatal(err)
	}
	e := startEnvoy(t, bootstrap)
	app := &application{capture: redirect, ips: map[string]string{"db.mesh.internal": "198.51.100.20", "unknown.example": "10.77.0.16"}, ca: ca}

	requireReaches(t, "HTTP", app.http("http://web.mesh.internal:8080/"), "10.77.0.11:9001")
	requireReaches(t, "gRPC", app.grpc("api.mesh.internal:8080"), "10.77.0.12:9001")
	requireReaches(t, "TCP", app.tcp("db.mesh.internal:7000"), "10.77.0.14:9001")
	requireReaches(t, "TLS", app.tls("vault.mesh.internal:8443"), "10.77.0.15:9001")
	requireReaches(t, "an unknown host on a known port", app.http("http://unknown.example:8080/"), "10.77.0.16:8080")
	requireReaches(t, "an unknown port", app.tcp("unknown.example:7777"), "10.77.0.16:7777")

	requireReaches(t, "a name", app.http("http://named.mesh.internal:8080/"), "10.77.0.13:9001")
	names.set("one.upstream.test", "10.77.0.17")
	awaitReaches(t, "a name that has moved", app.http("http://named.mesh.internal:8080/"), "10.77.0.17:9001")

	l := startLoad(t, map[string]caller{
		"http":     app.http("http://web.mesh.internal:8080/"),
		"tcp kept": app.tcpKept("db.mesh.internal:7000"),
	})
	l.requireNoFailure(t)
	if have, want := e.hosts(t)["db"], "10.77.0.14:9001 weight=1 locality= priority=0"; len(have) != 1 || have[0] != want {
		t.Errorf("the endpoints of db are %q, want %q", have, want)
	}
	if n := e.stats(t, `^cluster\.db\.upstream_cx_total$`)["cluster.db.upstream_cx_total"]; n < 2 {
		t.Errorf("Envoy counts %d connections to db", n)
	}
}

// requireReaches makes one call, which that upstream must answer.
func requireReaches(t *testing.T, what string, c caller, upstream string) {
	t.Helper()
	got, err := c.once(t.Context())
	if err != nil {
		t.Errorf("%s: %v", what, err)
	} else if got != upstream {
		t.Errorf("%s: %s answered, want %s", what, got, upstream)
	}
}

// awaitReaches makes calls until that upstream answers.
func awaitReaches(t *testing.T, what string, c caller, upstream string) {
	t.Helper()
	defer c.close()
	eventually(t, what, func() error {
		got, err := caller{call: c.call, close: func() {}}.once(t.Context())
		if err == nil && got != upstream {
			err = fmt.Errorf("%s answered, want %s", got, upstream)
		}
		return err
	})
}
