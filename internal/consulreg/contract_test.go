package consulreg_test

import (
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/aggregate/registrytest"
	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/consultest"
)

// TestContract runs the contract of a registry against the stand-in, over HTTP/1.1 as well as over HTTP/2, since these are kept up
// with in different ways.
func TestContract(t *testing.T) {
	for _, tt := range []struct {
		name string
		tls  bool
	}{
		{"sweeps", false},
		{"watches", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			registrytest.Test(t, func(t *testing.T) registrytest.Fixture {
				s := consultest.NewStandIn(t, consultest.StandInOptions{TLS: tt.tls})
				ids := map[string][]string{}
				remove := func(host string) {
					for _, id := range ids[host] {
						s.Deregister("node-1", id)
					}
					delete(ids, host)
				}
				return registrytest.Fixture{
					Registry: consulreg.New(hclog.NewNullLogger(), "consul", consulreg.Options{
						Link:  consulreg.Link{Addresses: []string{s.URL}, TLS: consulreg.TLS{CAFile: s.CAFile}},
						Rules: consulreg.Rules{Domain: "mesh.internal"},
					}),
					Put: func(svc registrytest.Service) {
						was := ids[svc.Host]
						ids[svc.Host] = nil
						name := svc.Host[:len(svc.Host)-len(".service.mesh.internal")]
						for _, address := range svc.Endpoints {
							id := name + "-" + address
							ids[svc.Host] = append(ids[svc.Host], id)
							s.Register(consultest.Service{Name: name, ID: id, Address: address, Port: int(svc.Port)})
						}
						for _, id := range was {
							gone := true
							for _, is := range ids[svc.Host] {
								gone = gone && is != id
							}
							if gone {
								s.Deregister("node-1", id)
							}
						}
					},
					Remove: remove,
					Break:  s.Down,
					Mend:   s.Up,
				}
			})
		})
	}
}
