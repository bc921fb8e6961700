package integration

import (
	"fmt"
	"testing"
)

const fresh = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: fresh}
spec:
  hosts: [fresh.mesh.internal]
  addresses: [198.51.100.23]
  resolution: STATIC
  ports:
  - {number: 8080, name: http, protocol: HTTP, targetPort: 9001}
  - {number: 7300, name: tcp, protocol: TCP, targetPort: 9002}
  endpoints:
  - {address: 10.77.0.73}
`

// late shares its port with other services: with redirection their listener gets one more chain.
const late = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: late}
spec:
  hosts: [late.mesh.internal]
  resolution: STATIC
  ports:
  - {number: 8443, name: tls, protocol: TLS, targetPort: 9001}
  endpoints:
  - {address: 10.77.0.74}
`

// TestChangesUnderLoad shows that changes arrive, and that services which do not change do not notice.
func TestChangesUnderLoad(t *testing.T) {
	for _, c := range []capture{redirect, none} {
		for _, p := range []protocol{delta, stateOfTheWorld} {
			t.Run(fmt.Sprintf("%s, %s", c, p), func(t *testing.T) {
				app, d, e := startMesh(t, c, p)
				clients := app.unchanging()
				// Both endpoints of this one live on, so that no call of it may fail either.
				clients["shop"] = app.http("http://shop.mesh.internal:8080/")
				l := startLoad(t, clients)

				d.edit(t, "shop.yaml", "10.77.0.13", "10.77.0.14")
				awaitReaches(t, "an endpoint that was replaced", app.http("http://shop.mesh.internal:8080/"), "10.77.0.14:9001")
				l.progress(t)

				d.write(t, "fresh.yaml", fresh)
				awaitReaches(t, "a new service, HTTP", app.http("http://fresh.mesh.internal:8080/"), "10.77.0.73:9001")
				awaitReaches(t, "a new service, TCP", app.tcp("fresh.mesh.internal:7300"), "10.77.0.73:9002")
				l.progress(t)

				if c == redirect {
					d.write(t, "late.yaml", late)
					awaitReaches(t, "a new service, TLS", app.tls("late.mesh.internal:8443"), "10.77.0.74:9001")
					l.progress(t)
				}

				d.remove(t, "gone.json")
				awaitFails(t, "a removed service, HTTP", app.httpOnce("http://gone.mesh.internal:8080/"))
				awaitFails(t, "a removed service, TCP", app.tcp("gone.mesh.internal:7200"))
				l.progress(t)

				d.edit(t, "team/mover.yaml", "number: 8090", "number: 8091")
				awaitReaches(t, "a port that has moved", app.http("http://mover.mesh.internal:8091/"), "10.77.0.72:9001")
				awaitFails(t, "the port that it had", app.httpOnce("http://mover.mesh.internal:8090/"))
				l.progress(t)

				// A change of what is not an endpoint: the cluster is made anew, from STATIC to DNS.
				d.edit(t, "shop.yaml", "resolution: STATIC", "resolution: DNS", "10.77.0.14", "one.upstream.test")
				awaitReaches(t, "another resolution", app.http("http://shop.mesh.internal:8080/"), "10.77.0.51:9001")
				requireInStep(t, d, e, c, p)
				// Envoy waits for what it has drained, and so do we: who had a connection there notices at the end.
				e.awaitDrained(t)
				l.progress(t)
				l.requireNoFailure(t)
				requireInStep(t, d, e, c, p)
				d.requireAccepted(t)
			})
		}
	}
}

// awaitFails makes calls until one fails.
func awaitFails(t *testing.T, what string, c caller) {
	t.Helper()
	defer c.close()
	eventually(t, what, func() error {
		if upstream, err := (caller{call: c.call, close: func() {}}).once(t.Context()); err == nil {
			return fmt.Errorf("%s still answers", upstream)
		}
		return nil
	})
}
