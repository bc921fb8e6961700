package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

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

Where meshd serves xDS over TLS, give --xds-ca-file, and the node's own certificate where meshd wants one. The files are those
of the machine that the bootstrap is for, and are not read here. An Envoy reads them once, when it starts; with
--xds-secrets-dir also whenever a file is replaced by another one (renamed over it).

Where meshd runs more than once with the same entries, give --xds for each: an Envoy asks one of them, and goes on to the
next within seconds when that is gone, without being sent anything again. Which one is asked first follows from the
node's id, so that nodes spread over all.

With --grpc it prints what gRPC's own xDS client must be told, so that an application reaches services as
xds:///HOST:PORT without a proxy. When a service is taken away, such a client goes on calling the endpoints that it has
(ignore_resource_deletion). Of several meshd it asks the next only for what it does not have yet: while the first one is
gone, it goes on with what it has, and learns of no change. Where that matters, give one --xds with a DNS name that has
the addresses of all.`,
		Example: `  meshd bootstrap --node-id web-1 --xds meshd.example.net:15010 >envoy.json && envoy -c envoy.json
  meshd bootstrap --node-id web-1 --namespace shop --locality eu/eu-1
  meshd bootstrap --node-id web-1 --xds meshd-a.example.net:15010 --xds meshd-b.example.net:15010
  meshd bootstrap --node-id web-1 --xds meshd.example.net:15010 --xds-ca-file /etc/mesh/ca.pem --xds-cert-file /etc/mesh/web-1.pem --xds-key-file /etc/mesh/web-1.key
  meshd bootstrap --node-id shop-1 --grpc >grpc.json && GRPC_XDS_BOOTSTRAP=grpc.json shop
  meshd bootstrap --node-id sidecar~192.0.2.7~web-1.shop~shop.svc.cluster.local`,
		Args: cobra.NoArgs,
	}
	var node nodeFlags
	node.register(cmd)
	var secure tlsFlags
	secure.register(cmd)
	xds := addresses{all: []address{{"127.0.0.1", 15010}}}
	admin := address{"127.0.0.1", 15000}
	cluster := ""
	secrets := ""
	loadReports := false
	flags := cmd.Flags()
	flags.Var(&xds, "xds", "where meshd serves xDS; give it once for each, if there are several with the same entries")
	flags.Var(&admin, "admin-address", "where Envoy serves its own administration pages, which anybody who reaches them can stop it with; \"\" for nowhere")
	flags.StringVar(&cluster, "cluster", "", "the `NAME` of the group that the node is one of, for Envoy's own statistics (default: the id)")
	flags.BoolVar(&loadReports, "load-reports", false, "have the node report to meshd how many requests it sends where, which meshd status --loads shows")
	flags.StringVar(&secrets, "xds-secrets-dir", "", "write two small files into this `FOLDER`, by which Envoy notices that certificates are replaced")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		n, err := node.node()
		if err != nil {
			return err
		}
		n.Cluster = cmp.Or(cluster, node.id)
		if slices.Contains(xds.all, address{}) {
			return fmt.Errorf("--xds is empty; it is HOST:PORT, such as 127.0.0.1:15010")
		}
		if err := secure.check(); err != nil {
			return err
		}
		if secrets != "" && secure.ca == "" {
			return errors.New("--xds-secrets-dir is for certificates: add --xds-ca-file, or leave it out")
		}
		for _, path := range []string{secrets, secure.ca, secure.cert, secure.key} {
			if secrets != "" && path != "" && !filepath.IsAbs(path) {
				return fmt.Errorf("%s is no whole path, and an Envoy that watches its certificates may not find it: with --xds-secrets-dir begin all paths with /", path)
			}
		}
		replicas := spread(node.id, xds.all)
		reports := envoy.NoReports
		if loadReports {
			reports = envoy.LoadReports
		}
		var text []byte
		switch {
		case !node.grpc:
			t := envoy.TLS{CA: secure.ca, Cert: secure.cert, Key: secure.key, ServerName: secure.serverName, Secrets: secrets}
			text, err = envoyBootstrap(envoy.Bootstrap{Node: n, XDS: replicas, Admin: envoy.HostPort(admin), Reports: reports, TLS: t})
			if err == nil {
				err = writeSecrets(t)
			}
		case flags.Changed("admin-address"):
			err = fmt.Errorf("--admin-address is for Envoys: a gRPC client has no pages of its own; leave out --admin-address or --grpc")
		case secure.serverName != "" || secrets != "":
			err = errors.New("--xds-server-name and --xds-secrets-dir are for Envoys: a gRPC client takes the host of --xds for the name, and reads its certificates again by itself; leave them out")
		case filepath.Dir(secure.cert) != filepath.Dir(secure.key):
			err = errors.New("--xds-cert-file and --xds-key-file must be in one folder, which is what gRPC wants")
		default:
			text, err = grpcBootstrap(n, replicas, reports, secure)
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

// writeSecrets writes the files by which an Envoy finds its certificates, if there is a folder for them.
func writeSecrets(t envoy.TLS) error {
	for name, secret := range t.Files() {
		resource, err := anypb.New(secret)
		if err != nil {
			return err
		}
		text, err := protoJSON(&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{resource}})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(t.Secrets, name), append(text, '\n'), 0o644); err != nil {
			return fmt.Errorf("--xds-secrets-dir: %w", err)
		}
	}
	return nil
}

// spread gives the replicas in the order in which a node asks them. It follows from their addresses and the node's id, by
// rendezvous hashing: the nodes of one replica are spread over all others when it is gone, and a replica that is added moves
// no node from one old one to another. What is there twice is there once.
func spread(id string, replicas []address) []envoy.HostPort {
	weigh := func(a address) uint64 {
		sum := sha256.Sum256([]byte(id + "\x00" + a.String()))
		return binary.BigEndian.Uint64(sum[:])
	}
	ordered := slices.SortedFunc(slices.Values(replicas), func(a, b address) int {
		return cmp.Or(cmp.Compare(weigh(b), weigh(a)), cmp.Compare(a.String(), b.String()))
	})
	var out []envoy.HostPort
	for _, a := range slices.Compact(ordered) {
		out = append(out, envoy.HostPort(a))
	}
	return out
}

// grpcBootstrap is what a gRPC client is told when it starts, in the form of gRPC's proposals A27 and, for several servers,
// A71: the client falls back to the next when the one before cannot be reached and something that it wants is not in its
// cache. TLS is that of A65. It stands alone, since a client that does not know it must not go on in plain text. The error is that of
// [envoy.ScopeOf], for a node that meshd would refuse.
func grpcBootstrap(node *corev3.Node, replicas []envoy.HostPort, reports envoy.Reports, secure tlsFlags) ([]byte, error) {
	if _, err := envoy.ScopeOf(node); err != nil {
		return nil, err
	}
	n := proto.CloneOf(node)
	if reports == envoy.LoadReports {
		n = envoy.WithLoadReports(n)
	}
	n.UserAgentName = "" // the client's own to say
	text, err := protoJSON(n)
	if err != nil {
		return nil, err
	}
	type files struct {
		CA   string `json:"ca_certificate_file"`
		Cert string `json:"certificate_file,omitempty"`
		Key  string `json:"private_key_file,omitempty"`
	}
	type credentials struct {
		Type   string `json:"type"`
		Config *files `json:"config,omitempty"`
	}
	by := credentials{Type: "insecure"}
	if secure.ca != "" {
		by = credentials{"tls", &files{secure.ca, secure.cert, secure.key}}
	}
	type server struct {
		URI         string        `json:"server_uri"`
		Credentials []credentials `json:"channel_creds"`
		Features    []string      `json:"server_features"`
	}
	var servers []server
	for _, r := range replicas {
		a := address(r)
		servers = append(servers, server{a.String(), []credentials{by}, []string{"xds_v3", "ignore_resource_deletion"}})
	}
	return json.MarshalIndent(struct {
		Servers []server        `json:"xds_servers"`
		Node    json.RawMessage `json:"node"`
	}{servers, text}, "", "  ")
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

// addresses is a flag that takes HOST:PORT several times. The first replaces the default.
type addresses struct {
	all   []address
	given bool
}

func (a *addresses) String() string {
	var texts []string
	for _, one := range a.all {
		texts = append(texts, one.String())
	}
	return strings.Join(texts, ",")
}

func (a *addresses) Type() string { return "HOST:PORT" }

func (a *addresses) Set(s string) error {
	var one address
	if err := one.Set(s); err != nil {
		return err
	}
	if !a.given {
		a.all, a.given = nil, true
	}
	a.all = append(a.all, one)
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
