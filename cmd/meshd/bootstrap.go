package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/meshd/meshd/internal/envoy"
)

func newBootstrap() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bootstrap --node-id ID",
		Short: "Print a bootstrap for an Envoy or a gRPC client",
		Long: `bootstrap prints what an Envoy must be told when it starts: who it is, and where its meshd is. All else comes from
meshd, by delta xDS over one stream. No daemon is asked; the node is looked at as the daemon would, and one that
it would refuse is refused here.

The node's capture says how the connections of the applications on its machine reach Envoy:
  none      applications dial 127.0.0.1 and the service's port
  redirect  the firewall redirects connections to Envoy's port 15001, as with Istio

With --grpc it prints what gRPC's own xDS client must be told, so that an application reaches services as
xds:///HOST:PORT without a proxy. When a service is taken away, such a client goes on calling the endpoints that it has
(ignore_resource_deletion).`,
		Example: `  meshd bootstrap --node-id web-1 --xds meshd.example.net:15010 >envoy.json && envoy -c envoy.json
  meshd bootstrap --node-id web-1 --namespace shop --locality eu/eu-1
  meshd bootstrap --node-id shop-1 --grpc >grpc.json && GRPC_XDS_BOOTSTRAP=grpc.json shop
  meshd bootstrap --node-id sidecar~192.0.2.7~web-1.shop~shop.svc.cluster.local`,
		Args: cobra.NoArgs,
	}
	var node nodeFlags
	node.register(cmd)
	xds := address{"127.0.0.1", 15010}
	admin := address{"127.0.0.1", 15000}
	cluster := ""
	flags := cmd.Flags()
	flags.Var(&xds, "xds", "where meshd serves xDS")
	flags.Var(&admin, "admin-address", "where Envoy serves its own administration pages, which anybody who reaches them can stop it with; \"\" for nowhere")
	flags.StringVar(&cluster, "cluster", "", "the `NAME` of the group that the node is one of, for Envoy's own statistics (default: the id)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		n, err := node.node()
		if err != nil {
			return err
		}
		n.Cluster = cmp.Or(cluster, node.id)
		if xds == (address{}) {
			return fmt.Errorf("--xds is empty; it is HOST:PORT, such as 127.0.0.1:15010")
		}
		var text []byte
		switch {
		case !node.grpc:
			text, err = envoyBootstrap(envoy.Bootstrap{Node: n, XDS: envoy.HostPort(xds), Admin: envoy.HostPort(admin)})
		case flags.Changed("admin-address"):
			err = fmt.Errorf("--admin-address is for Envoys: a gRPC client has no pages of its own; leave out --admin-address or --grpc")
		default:
			text, err = grpcBootstrap(n, xds)
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", text)
		return err
	}
	return cmd
}

func envoyBootstrap(b envoy.Bootstrap) ([]byte, error) {
	m, err := b.Message()
	if err != nil {
		return nil, err
	}
	return protoJSON(m)
}

// grpcBootstrap is what a gRPC client is told when it starts, in the form of gRPC's proposal A27. The error is that of
// [envoy.ScopeOf], for a node that meshd would refuse.
func grpcBootstrap(node *corev3.Node, xds address) ([]byte, error) {
	if _, err := envoy.ScopeOf(node); err != nil {
		return nil, err
	}
	n := proto.CloneOf(node)
	n.UserAgentName = "" // the client's own to say
	text, err := protoJSON(n)
	if err != nil {
		return nil, err
	}
	type credentials struct {
		Type string `json:"type"`
	}
	type server struct {
		URI         string        `json:"server_uri"`
		Credentials []credentials `json:"channel_creds"`
		Features    []string      `json:"server_features"`
	}
	return json.MarshalIndent(struct {
		Servers []server        `json:"xds_servers"`
		Node    json.RawMessage `json:"node"`
	}{[]server{{xds.String(), []credentials{{"insecure"}}, []string{"xds_v3", "ignore_resource_deletion"}}}, text}, "", "  ")
}

// address is a flag that takes HOST:PORT, or nothing.
type address envoy.HostPort

func (a *address) String() string {
	if *a == (address{}) {
		return ""
	}
	return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port)))
}

func (a *address) Type() string { return "HOST:PORT" }

func (a *address) Set(s string) error {
	if s == "" {
		*a = address{}
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return fmt.Errorf("it is HOST:PORT, such as 127.0.0.1:15010 or [::1]:15010")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("its port is a number from 1 to 65535")
	}
	*a = address{host, uint16(n)}
	return nil
}

// protoJSON writes a message as JSON under the field names of Envoy's documentation: the same message, the same bytes,
// which the protobuf library does not promise.
func protoJSON(m proto.Message) (json.RawMessage, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return json.MarshalIndent(v, "", "  ")
}
