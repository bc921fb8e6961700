package envoy

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/meshd/meshd/internal/mesh"
)

var sizes = []int{100, 1000, 10000}

// benchService is an HTTP service of three endpoints; change makes another version of its last one.
func benchService(tb testing.TB, i, change int) *mesh.Service {
	s := mesh.Service{
		Key:        mesh.Key{Host: host(tb, fmt.Sprintf("svc-%d.mesh.internal", i)), Namespace: "default"},
		Ports:      []mesh.Port{{Number: 80, Name: "http", Protocol: mesh.HTTP}},
		Resolution: mesh.Static, Export: mesh.Visibility{All: true},
		Origin: mesh.Origin{Registry: "files", Source: fmt.Sprintf("svc-%d.yaml", i)},
	}
	for e := range 3 {
		last := byte(1)
		if e == 2 {
			last += byte(change % 200)
		}
		s.Endpoints = append(s.Endpoints, mesh.Endpoint{
			Address: mesh.IPAddress(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(e)<<6 + last%64})), Ports: []uint16{8080}, Weight: 1,
		})
	}
	return mesh.Seal(s)
}

func benchView(tb testing.TB, size int) *mesh.View {
	v := &mesh.View{Registries: []string{"files"}}
	for i := range size {
		s := benchService(tb, i, 0)
		v.Services = v.Services.With(s.Key, s)
	}
	return v
}

var benchScope = Scope{Namespace: "default", Capture: Redirect, Domain: "default.svc.cluster.local"}

func BenchmarkTranslateAll(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			v := benchView(b, size)
			b.ReportAllocs()
			for b.Loop() {
				Translate(nil, v, benchScope, Mesh{})
			}
		})
	}
}

// BenchmarkTranslateOneEndpoint is the translation after a change of one endpoint of one service.
func BenchmarkTranslateOneEndpoint(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			v := benchView(b, size)
			s := Translate(nil, v, benchScope, Mesh{})
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				next := *v
				svc := benchService(b, n%size, n/size+n+1)
				next.Services = v.Services.With(svc.Key, svc)
				v = &next
				s = Translate(s, v, benchScope, Mesh{})
			}
		})
	}
}

// BenchmarkTranslateOneService is the translation after a service has come or gone. The route configuration of its port is
// one resource, and is made anew.
func BenchmarkTranslateOneService(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			with := benchView(b, size)
			without := *with
			svc := benchService(b, size/2, 0)
			without.Services = with.Services.Without(svc.Key)
			s := Translate(nil, with, benchScope, Mesh{})
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				s = Translate(s, []*mesh.View{&without, with}[n%2], benchScope, Mesh{})
			}
		})
	}
}
