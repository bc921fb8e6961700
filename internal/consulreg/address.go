package consulreg

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshd/meshd/internal/mesh"
)

// place is somewhere in an instance where an address may stand.
type place struct {
	field string // as Consul's definitions of services and nodes have it
	node  bool   // it is an address of the node, and not one that the instance has to itself
	socket
}

// tag is that of the addresses which count at a distance. Consul has the same with _ipv4 or _ipv6 after it for either family.
func (d Distance) tag() string {
	if d == Far {
		return "wan"
	}
	return "lan"
}

// places are where to look for an instance's address, the first that has one first. The order is that of Consul's own DNS,
// with translate_wan_addrs for other datacenters: what is the instance's own goes before what is its node's, since Consul
// gives every node an address tagged wan. An instance that was registered with an address of its node has none of its own.
// https://developer.hashicorp.com/consul/docs/reference/service#tagged_addresses
func (i *instance) places(distance Distance) []place {
	own := place{"address", i.atNode(), socket{Address: i.Address}}
	node := i.nodeTagged(distance.tag())
	if distance == Far && own.node {
		own, node = node, own
	}
	return []place{i.tagged(distance.tag()), own, node, {"node.address", true, socket{Address: i.NodeAddress}}}
}

// atNode tells whether the instance's address is one of its node's.
func (i *instance) atNode() bool {
	return i.Address == i.NodeAddress || slices.Contains(slices.Collect(maps.Values(i.NodeTagged)), i.Address)
}

func (i *instance) tagged(tag string) place {
	return place{"tagged_addresses." + tag, false, i.Tagged[tag]}
}

func (i *instance) nodeTagged(tag string) place {
	return place{"node.tagged_addresses." + tag, true, socket{Address: i.NodeTagged[tag]}}
}

// found is the place that counts; the last one if no place has an address.
func (i *instance) found(distance Distance) (p place) {
	for _, p = range i.places(distance) {
		if p.Address != "" {
			break
		}
	}
	return p
}

// address is where an instance listens. It reports what makes that no address to connect to.
func (t *translation) address(i *instance, at place) (address mesh.Address, port uint16, ok bool) {
	address, err := endpointAddress(at.Address)
	if err != nil {
		t.leaveOut(i, mesh.Error, "consul-bad-address", at.field, fmt.Sprintf("%q %v", at.Address, err))
		return mesh.Address{}, 0, false
	}
	field, number := "port", i.Port
	if at.Port != 0 {
		field, number = at.field+".port", at.Port
	}
	switch {
	case number == 0:
		t.leaveOut(i, mesh.Warning, "consul-no-port", field, "is missing, so that nobody can connect; register the instance with the port that it listens on, or exclude the service")
	case number < 0 || number > 65535:
		t.leaveOut(i, mesh.Error, "consul-bad-port", field, fmt.Sprintf("%d is not a port number; register the instance with the port that it listens on, from 1 to 65535", number))
	default:
		return address, uint16(number), true
	}
	return mesh.Address{}, 0, false
}

// second is an instance's address of the other IP family, on the same port. The node's count where its first one is used.
func (t *translation) second(i *instance, at place, first mesh.Address, port uint16) netip.Addr {
	ip, ok := first.IP()
	if !ok {
		return netip.Addr{}
	}
	tag := t.Distance.tag() + "_ipv4"
	if ip.Is4() {
		tag = t.Distance.tag() + "_ipv6"
	}
	for _, p := range []place{i.tagged(tag), i.nodeTagged(tag)} {
		if p.node && !at.node || p.Port != 0 && p.Port != int(port) {
			continue
		}
		if other := t.ip(i, p); other.IsValid() && other.Is4() != ip.Is4() {
			return other
		}
	}
	return netip.Addr{}
}

// ip is an address that an instance can do without, and that is not a name. It is not valid if there is none.
func (t *translation) ip(i *instance, at place) netip.Addr {
	if at.Address == "" {
		return netip.Addr{}
	}
	ip, err := endpointIP(at.Address)
	if err != nil {
		t.report(mesh.Warning, "consul-bad-address", t.instanceOrigin(i), at.field, fmt.Sprintf("%q %v; it is not used", at.Address, err))
		return netip.Addr{}
	}
	return ip
}

// endpointAddress reads an address, which Consul does not check. The error says what to register instead.
func endpointAddress(text string) (mesh.Address, error) {
	if _, err := netip.ParseAddr(text); err == nil {
		ip, err := endpointIP(text)
		return mesh.IPAddress(ip), err
	}
	name := strings.TrimSuffix(text, ".")
	switch {
	case text == "":
		return mesh.Address{}, errors.New("is empty; register an address of the instance or its node")
	case !mesh.IsHostName(name):
		return mesh.Address{}, errors.New("is neither an IP address nor a host name; register one of them, with nothing before or after it")
	}
	return mesh.HostAddress(name), nil
}

// endpointIP reads an IP address to which one can connect.
func endpointIP(text string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(text)
	switch ip = ip.Unmap(); {
	case err != nil:
		return netip.Addr{}, errors.New("is not an IP address; register one, with nothing before or after it")
	case ip.Zone() != "":
		return netip.Addr{}, errors.New("has a zone, which means something on one machine only; register the address without it")
	case ip.IsUnspecified():
		return netip.Addr{}, errors.New("means every address of the machine on which it stands; register one at which others reach the instance")
	case ip.IsMulticast():
		return netip.Addr{}, errors.New("is a multicast address; register the instance's own")
	}
	return ip, nil
}
