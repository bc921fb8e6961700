package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/filereg"
)

// TestRejectionsAreTraced gives a real Envoy what meshd would not make, among what it does make.
func TestRejectionsAreTraced(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Envoy")
	}
	var text strings.Builder
	for i := range 9 {
		fmt.Fprintf(&text, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s%d}
spec:
  hosts: [s%[1]d.mesh.internal]
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP}
  - {number: 700%[1]d, name: tcp, protocol: TCP}
  endpoints:
  - {address: 192.0.2.%[1]d}
`, i)
	}
	read := takeOffline([]filereg.File{{Path: "a.yaml", Data: []byte(text.String())}})
	snapshots := read.snapshots()
	got, err := rejections(t.Context(), envoyBinary(), snapshots)
	if err != nil || len(got) > 0 {
		t.Fatalf("what is right is rejected: %v, %v", got, err)
	}
	if len(snapshots) != 2 {
		t.Fatalf("%d snapshots, want one for each capture", len(snapshots))
	}
	for _, s := range snapshots {
		spoil(t, s, envoy.Cluster, "outbound|80||s3.mesh.internal", func(m any) {
			c := m.(*clusterv3.Cluster)
			c.EdsClusterConfig, c.ClusterDiscoveryType = nil, &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}
		})
		spoil(t, s, envoy.Cluster, "outbound|7008||s8.mesh.internal", func(m any) {
			m.(*clusterv3.Cluster).LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		})
	}
	spoil(t, snapshots[0], envoy.Listener, "0.0.0.0_80", func(m any) {
		l := m.(*listenerv3.Listener)
		l.FilterChains = append(l.FilterChains, l.FilterChains...)
	})
	got, err = rejections(t.Context(), envoyBinary(), snapshots)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		line            int
		resource, words string
	}{
		{102, `cluster "outbound|7008||s8.mesh.internal"`, "cluster provided LB"},
		{42, `cluster "outbound|80||s3.mesh.internal"`, "LOGICAL_DNS"},
		{6, `listener "0.0.0.0_80"`, "same"},
	}
	for i, p := range got {
		t.Log(p)
		if i >= len(want) {
			t.Fatalf("%d problems, want %d", len(got), len(want))
		}
		if w := want[i]; p.Code != "envoy-rejected" || !strings.Contains(p.Message, "Envoy rejects "+w.resource) || !strings.Contains(p.Message, w.words) ||
			p.Origin.Source != "a.yaml" || p.Origin.Line != w.line || p.Services == "" {
			t.Errorf("%s at %s; want %+v", p, p.Origin, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d problems, want %d", len(got), len(want))
	}
}

// spoil puts in a resource's place one that is changed.
func spoil(t *testing.T, s *envoy.Snapshot, typ envoy.Type, name envoy.Name, change func(any)) {
	t.Helper()
	r, ok := s.Resources[typ].Get(name)
	if !ok {
		t.Fatalf("there is no %s %s", typ, name)
	}
	m, err := r.Message()
	if err != nil {
		t.Fatal(err)
	}
	change(m)
	s.Resources[typ] = s.Resources[typ].With(name, envoy.NewResource(typ, name, m, "", r.Services...))
	s.Versions[typ] = s.Versions[typ].Minus(r.Digest)
}

// TestOnlyAnEnvoyIsAsked gives programs that are none.
func TestOnlyAnEnvoyIsAsked(t *testing.T) {
	dir := t.TempDir()
	read := takeOffline(nil)
	for _, tt := range []struct{ name, script, says string }{
		{"one that fails", "#!/bin/sh\necho out of order; exit 3\n", "cannot be used: it does not even take an empty configuration: out of order"},
		{"one that is killed", "#!/bin/sh\nkill -9 $$\n", "killed"},
		{"one that is no program", "hello", "exec format error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := dir + "/envoy"
			if err := os.WriteFile(path, []byte(tt.script), 0o755); err != nil {
				t.Fatal(err)
			}
			if got, err := rejections(t.Context(), path, read.snapshots()); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("it finds %v, and the error %v; want one that says %q", got, err, tt.says)
			}
		})
	}
}
