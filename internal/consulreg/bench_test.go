package consulreg_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/meshd/meshd/internal/aggregate"
	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/consultest"
	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/xds"
)

// BenchmarkConsul is from a write to a real Consul of 2,000 services with 3 instances each to an xDS client that has it: through
// Consul, the registry, the merge, the translation and the stream. The client is subscribed to the endpoints of all services.
// p50 and p99 are of single changes with pauses between them; requests and connections are those of meshd at rest.
func BenchmarkConsul(b *testing.B) {
	for _, way := range ways {
		b.Run(way.name, func(b *testing.B) {
			const services = 2000
			a := consultest.Start(b, consultest.Options{HTTPS: true})
			a.Register(consultest.Fleet(services, 3, 300)...)
			registry := consulreg.New(hclog.NewNullLogger(), "consul", consulreg.Options{Link: way.link(a), Watches: 2 * services})
			client := serve(b, registry, services)

			name := func(i int) string { return fmt.Sprintf("svc-%04d", i*37%services) }
			address := func(i int) string { return fmt.Sprintf("10.9.%d.%d", i/250, i%250+1) }
			for _, change := range []struct {
				name  string
				write func(i int) (cluster string, done func(*endpointv3.ClusterLoadAssignment) bool)
			}{
				{"check", func(i int) (string, func(*endpointv3.ClusterLoadAssignment) bool) {
					fleet := consultest.Fleet(services, 3, 300)
					s := fleet[slices.IndexFunc(fleet, func(s consultest.Service) bool { return s.Name == name(i) })]
					a.SetStatus(s.Node, s.ID, "critical")
					return clusterOf(s), func(la *endpointv3.ClusterLoadAssignment) bool { return unhealthy(la) > 0 }
				}},
				{"instance", func(i int) (string, func(*endpointv3.ClusterLoadAssignment) bool) {
					fleet := consultest.Fleet(services, 3, 300)
					s := fleet[slices.IndexFunc(fleet, func(s consultest.Service) bool { return s.Name == name(i) })]
					s.ID, s.Address = fmt.Sprintf("%s-new-%d", s.Name, i), address(i)
					a.Register(s)
					return clusterOf(s), func(la *endpointv3.ClusterLoadAssignment) bool { return has(la, s.Address) }
				}},
				{"service", func(i int) (string, func(*endpointv3.ClusterLoadAssignment) bool) {
					s := consultest.Service{Name: fmt.Sprintf("new-%04d", i), Address: address(i), Port: 8080, Meta: map[string]string{"protocol": "http"}}
					a.Register(s)
					return clusterOf(s), func(la *endpointv3.ClusterLoadAssignment) bool { return has(la, s.Address) }
				}},
			} {
				b.Run(change.name, func(b *testing.B) {
					var took []time.Duration
					i := 0
					for b.Loop() {
						b.StopTimer()
						// Changes that come while the one before is still at work would measure that one.
						<-time.After(250 * time.Millisecond)
						b.StartTimer()
						start := time.Now()
						cluster, done := change.write(i)
						client.await(b, cluster, done)
						took = append(took, time.Since(start))
						i++
					}
					slices.Sort(took)
					b.ReportMetric(milliseconds(took[len(took)/2]), "p50-ms")
					b.ReportMetric(milliseconds(took[len(took)*99/100]), "p99-ms")
				})
			}
			b.Run("rest", func(b *testing.B) {
				<-time.After(5 * time.Second) // until what follows the changes before is over
				before := registry.Standing()
				for b.Loop() {
					<-time.After(time.Second)
				}
				after := registry.Standing()
				b.ReportMetric(float64(after.Requests-before.Requests)/b.Elapsed().Seconds(), "requests/s")
				b.ReportMetric(float64(after.Connections), "connections")
			})
		})
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func clusterOf(s consultest.Service) string {
	return fmt.Sprintf("outbound|%d||%s.service.consul", s.Port, s.Name)
}

func unhealthy(la *endpointv3.ClusterLoadAssignment) (n int) {
	for _, g := range la.Endpoints {
		for _, e := range g.LbEndpoints {
			if e.HealthStatus == corev3.HealthStatus_UNHEALTHY {
				n++
			}
		}
	}
	return n
}

func has(la *endpointv3.ClusterLoadAssignment, address string) bool {
	for _, g := range la.Endpoints {
		for _, e := range g.LbEndpoints {
			if e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress() == address {
				return true
			}
		}
	}
	return false
}

// client is an xDS client that has the newest load assignment of each cluster.
type client struct {
	mu       sync.Mutex
	clusters map[string]*endpointv3.ClusterLoadAssignment
	changed  chan struct{}
}

func (c *client) await(b *testing.B, cluster string, done func(*endpointv3.ClusterLoadAssignment) bool) {
	deadline := time.After(patience)
	for {
		c.mu.Lock()
		la, changed := c.clusters[cluster], c.changed
		c.mu.Unlock()
		if la != nil && done(la) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			b.Fatalf("%s did not come: %v", cluster, la)
		}
	}
}

// serve serves a registry, and returns a client that has all its services.
func serve(b *testing.B, registry *consulreg.Registry, services int) *client {
	log := hclog.NewNullLogger()
	controller := aggregate.New(log, []aggregate.Registry{registry}, aggregate.Options{})
	server := xds.New(log, xds.Options{})
	controller.Handle(func(_ aggregate.Change, v *mesh.View) { server.Apply(v) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	b.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() { _ = controller.Run(ctx) })
	running.Go(func() { _ = server.Run(ctx, l) })

	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		b.Fatal(err)
	}
	const (
		clusters  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
		endpoints = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	)
	node := &corev3.Node{Id: "bench"}
	send := func(r *discovery.DeltaDiscoveryRequest) {
		if err := stream.Send(r); err != nil && ctx.Err() == nil {
			b.Error(err)
		}
	}
	c := &client{clusters: map[string]*endpointv3.ClusterLoadAssignment{}, changed: make(chan struct{})}
	send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: clusters})
	running.Go(func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			ack := &discovery.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}
			var names []string
			c.mu.Lock()
			for _, resource := range r.Resources {
				switch r.TypeUrl {
				case clusters:
					names = append(names, resource.Name)
				case endpoints:
					la := &endpointv3.ClusterLoadAssignment{}
					if err := resource.Resource.UnmarshalTo(la); err != nil {
						b.Error(err)
					}
					c.clusters[resource.Name] = la
				}
			}
			close(c.changed)
			c.changed = make(chan struct{})
			c.mu.Unlock()
			send(ack)
			if len(names) > 0 {
				send(&discovery.DeltaDiscoveryRequest{TypeUrl: endpoints, ResourceNamesSubscribe: names})
			}
		}
	})
	deadline := time.After(patience)
	for {
		c.mu.Lock()
		n, changed := len(c.clusters), c.changed
		c.mu.Unlock()
		if n >= services {
			return c
		}
		select {
		case <-changed:
		case <-deadline:
			b.Fatalf("only %d of %d services came", n, services)
		}
	}
}
