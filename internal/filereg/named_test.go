package filereg

import "testing"

// TestProblemsNameTheServicesThatTheyConcern has problems of one document, right or refused, and between documents.
func TestProblemsNameTheServicesThatTheyConcern(t *testing.T) {
	const text = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: refused, namespace: shop}
spec:
  hosts: [Pay.mesh.internal, "", no_host]
  prots: []
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a}
spec: {hosts: [a.mesh.internal, b.mesh.internal], resolution: NONE, ports: [{number: 80, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a}
spec: {hosts: [c.mesh.internal], resolution: NONE, ports: [{number: 80, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: b}
spec: {hosts: [b.mesh.internal], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: shop}
spec: {adress: 192.0.2.1}
---
kind: ServiceEntry
spec: {hosts: {}}
`
	got := map[string]string{} // by code
	for _, p := range Load(NewState("files"), []File{{Path: "a.yaml", Data: []byte(text)}}).Catalog().Problems {
		got[p.Code+" "+p.Origin.Name] = p.Services
	}
	for problem, want := range map[string]string{
		"unknown-field refused": "shop/Pay.mesh.internal shop/ shop/no_host",
		"invalid-host refused":  "shop/Pay.mesh.internal shop/ shop/no_host",
		"duplicate-entry a":     "default/c.mesh.internal",
		"host-conflict b":       "default/b.mesh.internal",
		"unknown-field vm":      "",
		"missing-field ":        "",
	} {
		if services, there := got[problem]; !there || services != want {
			t.Errorf("%s: %q, want %q; there are %q", problem, services, want, got)
		}
	}
}
