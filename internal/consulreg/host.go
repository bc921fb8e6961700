package consulreg

import (
	"strings"

	"github.com/meshd/meshd/internal/mesh"
)

// hostLabel is the label of a host that stands for a name in Consul, which takes names that DNS does not: letters in lower
// case, and a hyphen for each character that is not a letter, a digit or a hyphen. It tells whether that changed more than
// the letter case, which DNS does not regard, and whether it is a label at all. Several names may have one label.
func hostLabel(name string) (label string, changed, ok bool) {
	label = strings.Trim(strings.Map(func(c rune) rune {
		switch {
		case 'A' <= c && c <= 'Z':
			return c + 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			return c
		}
		return '-'
	}, name), "-")
	return label, !strings.EqualFold(label, name), mesh.IsLabel(label)
}

// hostNames are the names of a service in Consul's own DNS, the one for the nearest datacenter first. A datacenter may have
// underscores in its name; they become hyphens as those of services do.
// https://developer.hashicorp.com/consul/docs/reference/dns
func (r *Rules) hostNames(label string) []string {
	names := []string{label + ".service." + r.Domain}
	if r.DatacenterHosts == DatacenterHostsAlways || r.DatacenterHosts == DatacenterHostsAuto && r.Several {
		datacenter, _, _ := hostLabel(r.Datacenter)
		names = append(names, label+".service."+datacenter+"."+r.Domain)
	}
	return names
}
