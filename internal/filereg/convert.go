package filereg

import (
	"encoding/json"
	"maps"
	"strings"

	"github.com/meshd/meshd/internal/mesh"
)

// workload is one place where services run: a WorkloadEntry, or an endpoint written in a ServiceEntry. It is immutable
// once its document is read.
type workload struct {
	address        mesh.Address
	ports          map[string]uint32
	labels         map[string]string
	locality       string
	network        string
	weight         uint32
	serviceAccount string
	unhealthy      bool
	origin         mesh.Origin
}

// add gives labels to the workload; they win over those of the same key.
func (w *workload) add(labels map[string]string) {
	if len(labels) > 0 {
		all := maps.Clone(labels)
		for k, v := range w.labels {
			if _, won := all[k]; !won {
				all[k] = v
			}
		}
		w.labels = all
	}
}

// definition is what one ServiceEntry says of one of its hosts: the service as it would be if nothing else were said of
// it, less selected endpoints. It is immutable.
type definition struct {
	service  mesh.Service
	field    string   // where the host stands
	targets  []uint16 // by port, the one that endpoints listen on if they do not say otherwise
	selects  bool
	selector map[string]string
}

// definitions makes one definition of each host.
func (s *serviceSpec) definitions(namespace string, m *metadata) []*definition {
	ports := s.ports
	if s.resolution == mesh.ResolutionNone {
		for i := range ports {
			if s.targets[i] != ports[i].Number {
				ports[i].Target = s.targets[i]
			}
		}
	}
	var all []*definition
	for _, h := range s.hosts {
		d := &definition{field: h.path, targets: s.targets, selects: s.selects, selector: s.selector, service: mesh.Service{
			Key:             mesh.Key{Host: h.host, Namespace: namespace},
			Ports:           ports,
			Addresses:       s.addresses,
			Allocated:       s.allocated[h.host],
			Allocation:      s.allocation,
			Resolution:      s.resolution,
			Location:        s.location,
			SubjectAltNames: s.sans,
			Export:          s.export,
			Labels:          m.Labels,
			Selector:        selectorText(s.selects, s.selector),
			Created:         m.CreationTimestamp.UTC(),
			Distribution:    s.distribution,
			Connect:         s.connect,
			Origin:          h.origin,
		}}
		endpoints := s.endpoints
		if s.resolution.DNS() && len(endpoints) == 0 && !s.selects {
			endpoints = []*workload{{address: mesh.HostAddress(h.host.String()), weight: 1, origin: h.origin}}
		}
		for _, w := range endpoints {
			d.service.Endpoints = append(d.service.Endpoints, d.endpoint(w))
		}
		all = append(all, d)
	}
	return all
}

// endpoint is the workload as an endpoint of the service.
func (d *definition) endpoint(w *workload) mesh.Endpoint {
	e := mesh.Endpoint{
		Address: w.address, Ports: make([]uint16, len(d.service.Ports)), Weight: w.weight, Locality: locality(w),
		Network: w.network, Labels: w.labels, ServiceAccount: w.serviceAccount, Origin: w.origin,
	}
	_, socket := w.address.Socket()
	for i, p := range d.service.Ports {
		own, mapped := w.ports[p.Name]
		switch {
		case socket:
			e.Ports[i] = p.Number
		case mapped:
			e.Ports[i] = uint16(own)
		default:
			e.Ports[i] = d.targets[i]
		}
	}
	return e
}

// locality is the workload's own, or that of its label, where dots stand for slashes.
func locality(w *workload) mesh.Locality {
	if w.locality != "" {
		return mesh.ParseLocality(w.locality)
	}
	return mesh.ParseLocality(strings.ReplaceAll(w.labels[localityLabel], ".", "/"))
}

// selectorText writes a selector so that equal ones are equal text.
func selectorText(selects bool, labels map[string]string) string {
	if !selects {
		return ""
	}
	if labels == nil {
		labels = map[string]string{}
	}
	text, _ := json.Marshal(labels) // a map of strings can always be written
	return string(text)
}
