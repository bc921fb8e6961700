package integration

import (
	"maps"
	"slices"
	"testing"
)

// TestTraffic shows that requests of every kind arrive where the entries say.
func TestTraffic(t *testing.T) {
	for _, c := range []capture{redirect, none} {
		t.Run(string(c), func(t *testing.T) {
			app, d, e := startMesh(t, c, delta)
			d.awaitNoProblem(t)

			requireReaches(t, "gRPC", app.grpc("api.mesh.internal:9090"), "10.77.0.21:9001")
			requireReaches(t, "TCP", app.tcp("db.mesh.internal:7000"), "10.77.0.31:9001")
			requireReaches(t, "no protocol, bytes", app.tcp("mixed.mesh.internal:7100"), "10.77.0.32:9001")
			requireReaches(t, "no protocol, HTTP", app.http("http://mixed.mesh.internal:7101/"), "10.77.0.32:9002")
			requireReaches(t, "TLS by server name", app.tls("vault.mesh.internal:8443"), "10.77.0.41:9001")
			requireReaches(t, "DNS, an endpoint", app.http("http://named.mesh.internal:8080/"), "10.77.0.51:9001")
			requireReaches(t, "DNS, the host itself", app.http("http://itself.upstream.test:8080/"), "10.77.0.53:9001")
			requireReaches(t, "DNS_ROUND_ROBIN", app.http("http://rotating.mesh.internal:8080/"), "10.77.0.54:9001")
			requireReaches(t, "NONE, HTTP", app.http("http://legacy.upstream.test:8082/"), "10.77.0.55:8082")
			requireReaches(t, "NONE, TLS", app.tls("safe.upstream.test:8444"), "10.77.0.56:8444")
			requireReaches(t, "a file in a subfolder", app.http("http://mover.mesh.internal:8090/"), "10.77.0.72:9001")
			requireReaches(t, "a JSON file", app.http("http://gone.mesh.internal:8080/"), "10.77.0.71:9001")
			requireReaches(t, "a trailing dot", app.http("http://shop.mesh.internal.:8080/"), "10.77.0.13:9001")
			if c == redirect {
				requireReaches(t, "TLS, another server name", app.tls("keys.mesh.internal:8443"), "10.77.0.42:9001")
				requireReaches(t, "NONE, a range", app.tcp("warehouse.mesh.internal:5432"), "10.77.0.97:5432")
				requireReaches(t, "NONE, another port", app.http("http://shifted.upstream.test:8083/"), "10.77.0.57:9001")
				requireReaches(t, "no service, HTTP", app.http("http://elsewhere.example:8080/"), "10.77.0.80:8080")
				requireReaches(t, "no service, TCP", app.tcp("elsewhere.example:7777"), "10.77.0.80:7777")
				// That it arrived does not tell that Envoy knew it for this service.
				for _, cluster := range []string{"outbound|5432||warehouse.mesh.internal", "outbound|8082||legacy.upstream.test", "PassthroughCluster"} {
					if n := e.connections(t, cluster); n == 0 {
						t.Errorf("Envoy made no connection of %s", cluster)
					}
				}
			}

			t.Run("weights", func(t *testing.T) {
				answered, err := app.httpOnce("http://web.mesh.internal:8080/").times(t.Context(), 120)
				if err != nil {
					t.Fatal(err)
				}
				if light, heavy := answered["10.77.0.11:9001"], answered["10.77.0.12:9001"]; light < 10 || heavy < 2*light {
					t.Errorf("endpoints of weight 1 and 3 answered %d and %d of 120 calls", light, heavy)
				}
			})
			t.Run("a selector", func(t *testing.T) {
				answered, err := app.http("http://selected.mesh.internal:8080/").times(t.Context(), 40)
				if err != nil {
					t.Fatal(err)
				}
				if have, want := slices.Sorted(maps.Keys(answered)), []string{"10.77.0.61:9001", "10.77.0.62:9002"}; !slices.Equal(have, want) {
					t.Errorf("%q answered, want %q", have, want)
				}
			})
			t.Run("clusters", func(t *testing.T) {
				have := e.hosts(t)
				for cluster, want := range map[string][]string{
					"outbound|8080||web.mesh.internal": {
						"10.77.0.11:9001 weight=1 locality=eu/eu-1 priority=0", "10.77.0.12:9001 weight=3 locality=eu/eu-2 priority=0",
					},
					"outbound|8080||named.mesh.internal":    {"10.77.0.51:9001 weight=1 locality= priority=0"},
					"outbound|8080||rotating.mesh.internal": {"10.77.0.54:9001 weight=1 locality= priority=0"},
					"outbound|7000||db.mesh.internal":       {"10.77.0.31:9001 weight=1 locality= priority=0"},
				} {
					if !slices.Equal(have[cluster], want) {
						t.Errorf("the endpoints of %s are %q, want %q", cluster, have[cluster], want)
					}
				}
			})
			t.Run("render", func(t *testing.T) {
				requireRendered(t, d, c)
			})
			t.Run("a name that moves", func(t *testing.T) {
				app.names.set("one.upstream.test", "10.77.0.52")
				awaitReaches(t, "DNS", app.http("http://named.mesh.internal:8080/"), "10.77.0.52:9001")
			})
			requireInStep(t, d, e, c, delta)
			d.requireAccepted(t)
		})
	}
}

// TestStateOfTheWorld shows the same to an Envoy that does not speak delta xDS.
func TestStateOfTheWorld(t *testing.T) {
	for _, c := range []capture{redirect, none} {
		t.Run(string(c), func(t *testing.T) {
			app, d, _ := startMesh(t, c, stateOfTheWorld)
			for name, caller := range app.unchanging() {
				if _, err := caller.once(t.Context()); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			d.requireAccepted(t)
		})
	}
}
