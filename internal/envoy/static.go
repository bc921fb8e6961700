package envoy

import (
	"fmt"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"github.com/meshd/meshd/internal/mesh"
)

// Standalone is a cluster with its endpoints, or a listener with its routes: what an Envoy takes from a file, without
// xDS.
type Standalone struct {
	Type     Type // Cluster or Listener
	Name     Name
	Versions string     // of all that is in it
	Services []mesh.Key // that it was made from; empty for what every node gets

	message proto.Message
}

// Standalone takes a snapshot apart: its clusters first, each type in order of name. What cannot be said without xDS is
// said otherwise: a cluster whose endpoints come over EDS is one of fixed endpoints, and routes stand where RDS was.
func (s *Snapshot) Standalone() ([]Standalone, error) {
	var out []Standalone
	for _, typ := range []Type{Cluster, Listener} {
		for r := range s.Resources[typ].Values() {
			m, err := r.Message()
			if err != nil {
				return nil, err
			}
			alone := Standalone{Type: typ, Name: r.Name, Versions: r.Version, Services: slices.Clone(r.Services), message: m}
			switch m := m.(type) {
			case *clusterv3.Cluster:
				err = alone.fix(m, s)
			case *listenerv3.Listener:
				err = alone.inline(m, s)
			}
			if err != nil {
				return nil, err
			}
			slices.SortFunc(alone.Services, mesh.Key.Compare)
			alone.Services = slices.Compact(alone.Services)
			out = append(out, alone)
		}
	}
	return out, nil
}

// fix gives a cluster of EDS its endpoints.
func (a *Standalone) fix(c *clusterv3.Cluster, s *Snapshot) error {
	if c.GetType() != clusterv3.Cluster_EDS {
		return nil
	}
	m, err := a.take(s, Endpoints, Name(c.GetEdsClusterConfig().GetServiceName()))
	if err != nil {
		return err
	}
	c.EdsClusterConfig, c.LoadAssignment = nil, m.(*endpointv3.ClusterLoadAssignment)
	discovery(c, clusterv3.Cluster_STATIC)
	return nil
}

// inline gives a listener the routes of its HTTP connection managers.
func (a *Standalone) inline(l *listenerv3.Listener, s *Snapshot) error {
	for _, chain := range append(slices.Clone(l.FilterChains), l.DefaultFilterChain) {
		for _, f := range chain.GetFilters() {
			h := &hcmv3.HttpConnectionManager{}
			if !f.GetTypedConfig().MessageIs(h) {
				continue
			}
			if err := f.GetTypedConfig().UnmarshalTo(h); err != nil {
				return fmt.Errorf("decode %s %q: %w", a.Type, a.Name, err)
			}
			if h.GetRds() == nil {
				continue
			}
			m, err := a.take(s, Route, Name(h.GetRds().RouteConfigName))
			if err != nil {
				return err
			}
			h.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: m.(*routev3.RouteConfiguration)}
			f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: pack(h)}
		}
	}
	return nil
}

// take is a resource that becomes part of another.
func (a *Standalone) take(s *Snapshot, typ Type, name Name) (proto.Message, error) {
	r, ok := s.Resources[typ].Get(name)
	if !ok {
		return nil, fmt.Errorf("%s %q needs %s %q, which is not there", a.Type, a.Name, typ, name)
	}
	a.Versions += " " + r.Version
	a.Services = append(a.Services, r.Services...)
	return r.Message()
}

// StaticBootstrap is the bootstrap of an Envoy that has these clusters and listeners and no control plane.
func StaticBootstrap(of []Standalone) *bootstrapv3.Bootstrap {
	static := &bootstrapv3.Bootstrap_StaticResources{}
	for _, a := range of {
		switch m := a.message.(type) {
		case *clusterv3.Cluster:
			static.Clusters = append(static.Clusters, m)
		case *listenerv3.Listener:
			static.Listeners = append(static.Listeners, m)
		}
	}
	return &bootstrapv3.Bootstrap{Node: &corev3.Node{Id: "check", Cluster: "check"}, StaticResources: static}
}
