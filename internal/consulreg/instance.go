package consulreg

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// instance is one instance of a service as Consul has it: the facts that matter here and no others, so that what is equal
// needs no second look. It is immutable.
type instance struct {
	Datacenter  string            `json:"datacenter,omitempty"`
	Node        string            `json:"node"`
	ID          string            `json:"id"`
	Name        string            `json:"name"` // of the service
	Kind        string            `json:"kind,omitempty"`
	Address     string            `json:"address,omitempty"` // empty: the node's
	NodeAddress string            `json:"nodeAddress,omitempty"`
	Port        int               `json:"port,omitempty"`
	Tagged      map[string]socket `json:"tagged,omitempty"` // the service's tagged addresses
	NodeTagged  map[string]string `json:"nodeTagged,omitempty"`
	Tags        []string          `json:"tags,omitempty"` // sorted
	Meta        map[string]string `json:"meta,omitempty"`
	NodeMeta    map[string]string `json:"nodeMeta,omitempty"`
	Weights     weights           `json:"weights"`
	Status      status            `json:"status,omitempty"`
	Checked     bool              `json:"checked,omitempty"` // whether it has a check of its own
}

// socket is an address and a port of its own.
type socket struct {
	Address string `json:"Address"`
	Port    int    `json:"Port,omitempty"`
}

// weights are an instance's shares of the traffic while it is passing and while it is in warning.
type weights struct {
	Passing int `json:"Passing"`
	Warning int `json:"Warning"`
}

// status is the worst of an instance's checks and its node's.
type status uint8

// The statuses, the better first.
const (
	passing status = iota
	warning
	critical
	maintenance
)

// key identifies an instance within its service.
type key struct{ node, id string }

func (i *instance) key() key { return key{i.Node, i.ID} }

func (i *instance) compare(o *instance) int {
	return cmp.Or(cmp.Compare(i.Node, o.Node), cmp.Compare(i.ID, o.ID))
}

// equal tells whether two instances say the same.
func (i *instance) equal(o *instance) bool {
	return i.Datacenter == o.Datacenter && i.Node == o.Node && i.ID == o.ID && i.Name == o.Name && i.Kind == o.Kind && i.Address == o.Address &&
		i.NodeAddress == o.NodeAddress && i.Port == o.Port && i.Weights == o.Weights && i.Status == o.Status && i.Checked == o.Checked &&
		slices.Equal(i.Tags, o.Tags) && maps.Equal(i.Meta, o.Meta) && maps.Equal(i.NodeMeta, o.NodeMeta) &&
		maps.Equal(i.Tagged, o.Tagged) && maps.Equal(i.NodeTagged, o.NodeTagged)
}

func sameInstances(a, b []*instance) bool { return slices.EqualFunc(a, b, (*instance).equal) }

// entry is an element of the answer to /v1/health/service/NAME, as far as it is read.
// https://developer.hashicorp.com/consul/api-docs/health#list-service-instances-for-service
type entry struct {
	Node struct {
		Node            string
		Datacenter      string
		Address         string
		TaggedAddresses map[string]string
		Meta            map[string]string
	}
	Service struct {
		Kind            string
		ID              string
		Service         string
		Tags            []string
		Meta            map[string]string
		Address         string
		Port            int
		TaggedAddresses map[string]socket
		Weights         weights
	}
	Checks []struct {
		CheckID   string
		Status    string
		ServiceID string
	}
}

// instancesOf reads the answer to /v1/health/service/NAME. They are sorted by node and id.
func instancesOf(answer []byte) ([]*instance, error) {
	var entries []entry
	if err := json.Unmarshal(answer, &entries); err != nil {
		return nil, fmt.Errorf("read the list of instances: %w", err)
	}
	instances := make([]*instance, len(entries))
	for n := range entries {
		e := &entries[n]
		i := &instance{
			Datacenter: e.Node.Datacenter, Node: e.Node.Node, ID: e.Service.ID, Name: e.Service.Service, Kind: e.Service.Kind,
			Address: e.Service.Address, NodeAddress: e.Node.Address, Port: e.Service.Port,
			Tagged: e.Service.TaggedAddresses, NodeTagged: e.Node.TaggedAddresses,
			Tags: slices.Compact(slices.Sorted(slices.Values(e.Service.Tags))), Meta: e.Service.Meta, NodeMeta: e.Node.Meta,
			Weights: e.Service.Weights,
		}
		for _, c := range e.Checks {
			i.Status = max(i.Status, statusOf(c.CheckID, c.Status))
			i.Checked = i.Checked || c.ServiceID != ""
		}
		instances[n] = i
	}
	slices.SortFunc(instances, (*instance).compare)
	return instances, nil
}

// statusOf is what one check says. The ids are those that Consul gives to the checks of its maintenance mode.
func statusOf(id, said string) status {
	switch {
	case id == "_node_maintenance", strings.HasPrefix(id, "_service_maintenance:"):
		return maintenance
	case said == "critical":
		return critical
	case said == "warning":
		return warning
	}
	return passing
}
