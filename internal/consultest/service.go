package consultest

import (
	"cmp"
	"fmt"

	"github.com/hashicorp/consul/api"
)

// NoCheck is a [Service]'s status if it shall have no check.
const NoCheck = "none"

// Service is one instance of a service, with a check of its own and the node that it is on. Node and ID identify it. Empty
// fields have defaults where it says so.
type Service struct {
	Name string
	ID   string // Name

	Node        string // "node-1"
	NodeAddress string // 192.0.2.1
	NodeMeta    map[string]string
	NodeTagged  map[string]string

	Kind    api.ServiceKind
	Address string // empty: the node's, as readers have to know
	Port    int
	Tags    []string
	Meta    map[string]string
	Tagged  map[string]api.ServiceAddress
	Weights *api.AgentWeights // 1 and 1

	Status string // of its check: passing, or NoCheck
	Output string // of its check
}

// Fleet makes services of so many instances each, spread over so many nodes: svc-0000 and so on, on node-000 and so on.
func Fleet(services, instances, nodes int) []Service {
	fleet := make([]Service, 0, services*instances)
	for s := range services {
		for i := range instances {
			name := fmt.Sprintf("svc-%04d", s)
			n := (s*instances + i) % nodes
			fleet = append(fleet, Service{
				Name: name, ID: fmt.Sprintf("%s-%d", name, i),
				Node: fmt.Sprintf("node-%03d", n), NodeAddress: fmt.Sprintf("10.1.%d.%d", n/250, n%250+1),
				Address: fmt.Sprintf("10.2.%d.%d", n/250, n%250+1), Port: 8000 + s%1000,
				Tags: []string{"version=1"}, Meta: map[string]string{"protocol": "http"},
			})
		}
	}
	return fleet
}

// registration is what Consul is told of a service.
func (s Service) registration() *api.CatalogRegistration {
	id, node := cmp.Or(s.ID, s.Name), cmp.Or(s.Node, "node-1")
	r := &api.CatalogRegistration{
		Node: node, Address: cmp.Or(s.NodeAddress, "192.0.2.1"), NodeMeta: s.NodeMeta, TaggedAddresses: s.NodeTagged,
		Service: &api.AgentService{
			Kind: s.Kind, ID: id, Service: s.Name, Address: s.Address, Port: s.Port, Tags: s.Tags, Meta: s.Meta,
			TaggedAddresses: s.Tagged, Weights: api.AgentWeights{Passing: 1, Warning: 1},
		},
	}
	if s.Weights != nil {
		r.Service.Weights = *s.Weights
	}
	if s.Status != NoCheck {
		r.Check = check(node, id, "", cmp.Or(s.Status, api.HealthPassing), s.Output)
	}
	return r
}

// check is a check of a service, or of a node if id is empty. The ID of the one that Register makes is empty here.
func check(node, id, checkID, status, output string) *api.AgentCheck {
	c := &api.AgentCheck{Node: node, ServiceID: id, CheckID: checkID, Name: "health", Status: status, Output: output}
	switch {
	case checkID != "":
		c.Name = checkID
	case id != "":
		c.CheckID = "service:" + id
	default:
		c.CheckID = "node"
	}
	return c
}

// maintenance is the check that Consul's own agents set for the maintenance of a service, or of a node if id is empty.
func maintenance(id string) string {
	if id == "" {
		return api.NodeMaint
	}
	return api.ServiceMaintPrefix + id
}
