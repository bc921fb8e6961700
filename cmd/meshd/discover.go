package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshd/meshd/internal/config"
	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/mesh"
)

// discoverTimeout is how long a look at a Consul may take.
const discoverTimeout = 30 * time.Second

func newDiscover() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "discover",
		Short: "Show what Consul has, and what each service of it becomes",
		Long: `discover looks at Consul as the daemon would, once and without a daemon: which services it has, under which host
each would be served, on which port, by which protocol, and with how many endpoints; and what would be left out, and why.

It looks at the Consul at --consul, else at those of the daemon's settings, else at the one that CONSUL_HTTP_ADDR and the
other variables of Consul's own tools say, by default at 127.0.0.1:8500. It changes nothing.

Exit codes: 0 shown and without errors, 1 shown and with errors, 2 Consul does not answer (or wrong flags).`,
		Example: `  meshd discover
  meshd discover --consul http://10.0.0.5:8500
  meshd discover -o json | jq -r '.datacenters[].services[] | select(.hosts | not) | .name'`,
		Args: cobra.NoArgs,
	}
	addresses := cmd.Flags().StringArray("consul", nil, "`address` of a Consul: host:port, a URL or unix:///path; several may be given")
	file := cmd.Flags().String("config", config.DefaultFile, "`file` of the daemon's settings, for what they say of Consul; \"\" for none")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		from := config.Sources{Environ: os.Environ(), ReadFile: os.ReadFile}
		chooseFile(cmd, &from, *file)
		consuls, err := config.Discover(from, *addresses)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), discoverTimeout, fmt.Errorf("not done within %s", discoverTimeout))
		defer cancel()
		var all discovered
		for _, r := range consulRegistries(consuls, "") {
			d, err := consulreg.Discover(ctx, r.name, r.options)
			if err != nil {
				return fmt.Errorf("%s: %w", strings.Join(r.options.Link.Addresses, ", "), err)
			}
			all.Datacenters = append(all.Datacenters, datacenterOf(d))
		}
		if output.value == "json" {
			err = printJSON(cmd.OutOrStdout(), all)
		} else {
			err = all.show(cmd.OutOrStdout())
		}
		if err == nil && all.errors() {
			err = errFound
		}
		return err
	}
	return cmd
}

// discovered is what `meshd discover -o json` prints.
type discovered struct {
	Datacenters []discoveredDatacenter `json:"datacenters"`
}

type discoveredDatacenter struct {
	Registry string              `json:"registry"`
	Name     string              `json:"name"`
	Services []discoveredService `json:"services"` // by name
	Problems []mesh.Problem      `json:"problems"`
}

type discoveredService struct {
	Name      string               `json:"name"`            // in Consul
	Hosts     []string             `json:"hosts,omitempty"` // none if it is left out
	Namespace string               `json:"namespace,omitempty"`
	Ports     []discoveredPort     `json:"ports,omitempty"`
	Endpoints []discoveredEndpoint `json:"endpoints,omitempty"`
	Omitted   []consulreg.Omission `json:"omitted,omitempty"`
}

type discoveredPort struct {
	Number   uint16        `json:"number"`
	Name     string        `json:"name"`
	Protocol mesh.Protocol `json:"protocol"`
}

type discoveredEndpoint struct {
	Address  mesh.Address      `json:"address"`
	Ports    []uint16          `json:"ports"` // in the order of the service's; 0 where it does not serve that one
	Health   mesh.Health       `json:"health"`
	Weight   uint32            `json:"weight"`
	Locality mesh.Locality     `json:"locality"`
	Labels   map[string]string `json:"labels,omitempty"`
	Origin   string            `json:"origin"`
}

func datacenterOf(d consulreg.Discovery) discoveredDatacenter {
	out := discoveredDatacenter{Registry: d.Registry, Name: d.Datacenter, Problems: d.Problems}
	for _, found := range d.Services {
		s := discoveredService{Name: found.Name, Omitted: found.Omitted}
		for i, is := range found.Services {
			s.Hosts = append(s.Hosts, is.Host.String())
			if i > 0 {
				continue // it differs in nothing else
			}
			s.Namespace = is.Namespace
			for _, p := range is.Ports {
				s.Ports = append(s.Ports, discoveredPort{p.Number, p.Name, p.Protocol})
			}
			for _, e := range is.Endpoints {
				s.Endpoints = append(s.Endpoints, discoveredEndpoint{e.Address, e.Ports, e.Health, e.Weight, e.Locality, e.Labels, e.Origin.String()})
			}
		}
		out.Services = append(out.Services, s)
	}
	return out
}

func (d discovered) errors() bool {
	for _, dc := range d.Datacenters {
		for _, p := range dc.Problems {
			if p.Severity == mesh.Error {
				return true
			}
		}
	}
	return false
}

// show writes a table of what is served, one of what is left out, and the problems.
func (d discovered) show(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i, dc := range d.Datacenters {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "datacenter %s, registry %s\n\n", cmp.Or(dc.Name, "(unknown)"), dc.Registry)
		fmt.Fprint(w, "SERVICE\tHOST\tPORT\tPROTOCOL\tENDPOINTS\n")
		var omitted []consulreg.Omission
		for _, s := range dc.Services {
			omitted = append(omitted, s.Omitted...)
			for _, host := range s.Hosts {
				for n, p := range s.Ports {
					fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", s.Name, host, p.Number, cmp.Or(p.Protocol.String(), "any"), s.health(n))
				}
			}
		}
		if len(omitted) > 0 {
			fmt.Fprint(w, "\nLEFT OUT\tINSTANCE\tWHY\n")
			for _, o := range omitted {
				instance := "all"
				if o.ID != "" {
					instance = o.Node + "/" + o.ID
				}
				fmt.Fprintf(w, "%s\t%s\t%s\n", o.Service, instance, o.Reason)
			}
		}
		if len(dc.Problems) > 0 {
			fmt.Fprintln(w)
			printProblems(w, dc.Problems)
		}
	}
	return w.Flush()
}

// health counts the endpoints of the nth port by their health.
func (s discoveredService) health(n int) string {
	counts := map[mesh.Health]int{}
	total := 0
	for _, e := range s.Endpoints {
		if e.Ports[n] != 0 {
			counts[e.Health]++
			total++
		}
	}
	var text strings.Builder
	text.WriteString(fmt.Sprint(total))
	for _, h := range []mesh.Health{mesh.Degraded, mesh.Draining, mesh.Unhealthy} {
		if counts[h] > 0 {
			text.WriteString(fmt.Sprintf(", %d %s", counts[h], h))
		}
	}
	return text.String()
}
