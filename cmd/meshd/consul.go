package main

import (
	"path/filepath"

	"github.com/meshd/meshd/internal/config"
	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/mesh"
)

// consulRegistry is a registry to be made for one of the Consuls in the settings.
type consulRegistry struct {
	name    string
	options consulreg.Options
}

// consulRegistries are those of the settings, in their order. What they keep is in folders of their own names below the
// state folder; without one they keep nothing.
func consulRegistries(consuls []config.Consul, stateDir string) []consulRegistry {
	all := make([]consulRegistry, len(consuls))
	for i, c := range consuls {
		state := ""
		if stateDir != "" {
			state = filepath.Join(stateDir, string(c.Name))
		}
		protocol, _ := mesh.ParseProtocol(string(c.Protocol)) // config knows the same names, as a test sees to
		all[i] = consulRegistry{string(c.Name), consulreg.Options{
			Link: consulreg.Link{
				Addresses: texts(c.Addresses),
				TLS: consulreg.TLS{
					CAFile: string(c.TLS.CAFile), CAPath: string(c.TLS.CAPath), CertFile: string(c.TLS.CertFile), KeyFile: string(c.TLS.KeyFile),
					ServerName: string(c.TLS.ServerName), InsecureSkipVerify: c.TLS.InsecureSkipVerify != nil && *c.TLS.InsecureSkipVerify,
				},
				Token: string(c.Token), TokenFile: string(c.TokenFile), Username: string(c.Username), Password: string(c.Password),
				Datacenter: string(c.Datacenter), Namespace: string(c.Namespace), Partition: string(c.Partition),
			},
			Rules: consulreg.Rules{
				Datacenter: string(c.Datacenter), Place: uint8(i), Several: len(consuls) > 1, Distance: distances[c.AddressKind],
				Domain: string(c.Domain), Namespace: string(c.MeshNamespace), DatacenterHosts: datacenterHosts[c.DatacenterHosts],
				Include: matches(c.Include), Exclude: matches(c.Exclude), Expose: exposures[c.Expose], EnableTag: string(c.EnableTag),
				Delimiters: string(c.TagDelimiters), MetaPrefix: string(c.MetaPrefix), ZoneMeta: string(c.ZoneMeta), Kinds: texts(c.Kinds),
				Protocol: protocol, Port: uint16(c.Port),
			},
			Guard:   consulreg.Guard{Off: c.Guard.Off, Services: float64(c.Guard.Services), Endpoints: float64(c.Guard.Endpoints)},
			Damping: c.Damping.Duration, Connections: int(c.Connections), Watches: int(c.Watches), Sweep: c.SweepInterval.Duration,
			StateDir: state,
		}}
	}
	return all
}

// The words of the settings; what is not said is the zero value.
var (
	distances       = map[config.AddressKind]consulreg.Distance{config.AddressLAN: consulreg.Near, config.AddressWAN: consulreg.Far}
	datacenterHosts = map[config.DatacenterHosts]consulreg.DatacenterHosts{
		config.DatacenterHostsAlways: consulreg.DatacenterHostsAlways, config.DatacenterHostsNever: consulreg.DatacenterHostsNever,
	}
	exposures = map[config.Exposure]consulreg.Exposure{config.ExposeTagged: consulreg.ExposeTagged}
)

func matches(conditions []config.Match) []consulreg.Match {
	var all []consulreg.Match
	for _, m := range conditions {
		all = append(all, consulreg.Match{Name: string(m.Name), Tag: string(m.Tag), Meta: string(m.Meta)})
	}
	return all
}

func texts[T ~string](words []T) []string {
	var all []string
	for _, w := range words {
		all = append(all, string(w))
	}
	return all
}
