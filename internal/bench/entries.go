package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/meshd/meshd/internal/mesh"
)

func hostOf(service int) string { return fmt.Sprintf("svc-%05d.bench.test", service) }

// addresses are those of a service's endpoints; one of them has a mark, if it is not 0.
func addresses(service, mark int) [endpoints]string {
	var out [endpoints]string
	for e := range out {
		out[e] = fmt.Sprintf("198.%d.%d.%d", 18+e, service/100, service%100) // no octet but the first is markPrefix's
	}
	if mark != 0 {
		out[1] = markAddress(mark)
	}
	return out
}

// entry is a service as a ServiceEntry.
func entry(service, mark int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: svc-%05d
spec:
  hosts: [%s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP, targetPort: 8080}
  endpoints:
`, service, hostOf(service))
	for _, a := range addresses(service, mark) {
		fmt.Fprintf(&b, "  - address: %s\n", a)
	}
	return []byte(b.String())
}

// described is the same service without a file.
func described(service, mark int) (*mesh.Service, error) {
	host, err := mesh.ParseHost(hostOf(service))
	if err != nil {
		return nil, err
	}
	s := mesh.Service{
		Key: mesh.Key{Host: host, Namespace: mesh.DefaultNamespace}, Resolution: mesh.Static, Export: mesh.Visibility{All: true},
		Ports:  []mesh.Port{{Number: 80, Name: "http", Protocol: mesh.HTTP}},
		Origin: mesh.Origin{Registry: "memory"},
	}
	for _, a := range addresses(service, mark) {
		ip, err := netip.ParseAddr(a)
		if err != nil {
			return nil, err
		}
		s.Endpoints = append(s.Endpoints, mesh.Endpoint{Address: mesh.IPAddress(ip), Ports: []uint16{8080}, Weight: 1})
	}
	return mesh.Seal(s), nil
}

// folder is entries on disk, one service to a file. A file is replaced by renaming one that was written elsewhere.
type folder struct{ entries, staging string }

func newFolder(dir string, services int) (*folder, error) {
	f := &folder{filepath.Join(dir, "entries"), filepath.Join(dir, "staging")}
	for _, d := range []string{f.entries, f.staging} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, err
		}
	}
	for i := range services {
		if err := os.WriteFile(f.path(f.entries, i), entry(i, 0), 0o644); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *folder) path(dir string, service int) string {
	return filepath.Join(dir, fmt.Sprintf("svc-%05d.yaml", service))
}

// change readies a service's file with a mark; the function that it returns renames it into place.
func (f *folder) change(service, mark int) (commit func() error, err error) {
	from, to := f.path(f.staging, service), f.path(f.entries, service)
	if err := os.WriteFile(from, entry(service, mark), 0o644); err != nil {
		return nil, err
	}
	return func() error { return os.Rename(from, to) }, nil
}
