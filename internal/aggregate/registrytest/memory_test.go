package registrytest_test

import (
	"net/netip"
	"testing"

	"github.com/meshd/meshd/internal/aggregate/registrytest"
	"github.com/meshd/meshd/internal/mesh"
)

func TestMemory(t *testing.T) {
	registrytest.Test(t, func(t *testing.T) registrytest.Fixture {
		m := registrytest.NewMemory("memory")
		there := map[string]*mesh.Service{}
		return registrytest.Fixture{
			Registry: m,
			Put: func(s registrytest.Service) {
				is := build(t, s)
				if was := there[s.Host]; was != nil && was.Identical(is) {
					is = was
				}
				there[s.Host] = is
				m.Put(is)
			},
			Remove: func(host string) { m.Remove(there[host].Key) },
		}
	})
}

func build(t *testing.T, s registrytest.Service) *mesh.Service {
	h, err := mesh.ParseHost(s.Host)
	if err != nil {
		t.Fatal(err)
	}
	out := mesh.Service{
		Key: mesh.Key{Host: h, Namespace: mesh.DefaultNamespace}, Resolution: mesh.Static, Export: mesh.Visibility{All: true},
		Ports:  []mesh.Port{{Number: s.Port, Name: "http", Protocol: mesh.HTTP}},
		Origin: mesh.Origin{Registry: "memory"},
	}
	for _, e := range s.Endpoints {
		out.Endpoints = append(out.Endpoints, mesh.Endpoint{
			Address: mesh.IPAddress(netip.MustParseAddr(e)), Ports: []uint16{s.Port}, Weight: 1,
		})
	}
	return mesh.Seal(out)
}
