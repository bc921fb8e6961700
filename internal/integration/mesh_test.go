package integration

import "testing"

// newMesh starts the upstreams of testdata/mesh and testdata/redirect, with some to spare, and gives the application that
// calls them.
func newMesh(t *testing.T, c capture) *application {
	t.Helper()
	ca := newAuthority(t)
	startHTTP(t,
		"10.77.0.11:9001", "10.77.0.12:9001", // web
		"10.77.0.13:9001", "10.77.0.14:9001", // shop before and after
		"10.77.0.32:9002",                    // mixed, pages
		"10.77.0.51:9001", "10.77.0.52:9001", // named before and after
		"10.77.0.53:9001",                                       // itself
		"10.77.0.54:9001",                                       // rotating
		"10.77.0.55:8082",                                       // legacy
		"10.77.0.57:9001",                                       // shifted
		"10.77.0.61:9001", "10.77.0.62:9002", "10.77.0.63:9001", // workloads
		"10.77.0.71:9001", // gone
		"10.77.0.72:9001", // mover
		"10.77.0.73:9001", // fresh
		"10.77.0.80:8080", // no service
	)
	startGRPC(t, "10.77.0.21:9001")
	startTCP(t,
		"10.77.0.31:9001", // db
		"10.77.0.32:9001", // mixed, bytes
		"10.77.0.71:9002", // gone
		"10.77.0.73:9002", // fresh
		"10.77.0.97:5432", // warehouse
		"10.77.0.80:7777", // no service
	)
	startTLS(t, ca,
		"10.77.0.41:9001", // vault
		"10.77.0.42:9001", // keys
		"10.77.0.56:8444", // safe
		"10.77.0.74:9001", // late
	)
	names := startNameServer(t)
	for name, ip := range map[string]string{
		"one.upstream.test": "10.77.0.51", "itself.upstream.test": "10.77.0.53", "two.upstream.test": "10.77.0.54",
		"legacy.upstream.test": "10.77.0.55", "safe.upstream.test": "10.77.0.56",
	} {
		names.set(name, ip)
	}
	return &application{capture: c, ca: ca, names: names, ips: map[string]string{
		"db.mesh.internal": "198.51.100.20", "mixed.mesh.internal": "198.51.100.21", "gone.mesh.internal": "198.51.100.22",
		"fresh.mesh.internal":  "198.51.100.23",
		"legacy.upstream.test": "10.77.0.55", "safe.upstream.test": "10.77.0.56", "shifted.upstream.test": "10.77.0.57",
		"warehouse.mesh.internal": "10.77.0.97", "elsewhere.example": "10.77.0.80",
	}}
}

// folders are the entries for nodes of this capture.
func folders(c capture) []string {
	if c == redirect {
		return []string{"mesh", "redirect"}
	}
	return []string{"mesh"}
}

// startMesh starts everything: upstreams, meshd and an Envoy that is in step with it.
func startMesh(t *testing.T, c capture, p protocol) (*application, *daemon, *envoy) {
	t.Helper()
	app := newMesh(t, c)
	d := newMeshd(t, folders(c)...)
	d.start(t)
	e := startEnvoy(t, d.bootstrap(t, c, p))
	requireInStep(t, d, e, c, p)
	return app, d, e
}

// unchanging are clients of services that no test changes, of every kind.
func (a *application) unchanging() map[string]caller {
	return map[string]caller{
		"web":         a.http("http://web.mesh.internal:8080/").from("10.77.0.11:9001", "10.77.0.12:9001"),
		"web, once":   a.httpOnce("http://web.mesh.internal:8080/").from("10.77.0.11:9001", "10.77.0.12:9001"),
		"api":         a.grpc("api.mesh.internal:9090").from("10.77.0.21:9001"),
		"db":          a.tcp("db.mesh.internal:7000").from("10.77.0.31:9001"),
		"db, kept":    a.tcpKept("db.mesh.internal:7000").from("10.77.0.31:9001"),
		"mixed bytes": a.tcp("mixed.mesh.internal:7100").from("10.77.0.32:9001"),
		"mixed pages": a.http("http://mixed.mesh.internal:7101/").from("10.77.0.32:9002"),
		"vault, kept": a.tlsKept("vault.mesh.internal:8443").from("10.77.0.41:9001"),
		"vault":       a.tls("vault.mesh.internal:8443").from("10.77.0.41:9001"),
		"named":       a.http("http://named.mesh.internal:8080/").from("10.77.0.51:9001"),
		"rotating":    a.http("http://rotating.mesh.internal:8080/").from("10.77.0.54:9001"),
		"legacy":      a.http("http://legacy.upstream.test:8082/").from("10.77.0.55:8082"),
		"safe":        a.tls("safe.upstream.test:8444").from("10.77.0.56:8444"),
	}
}
