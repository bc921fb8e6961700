package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// nodeFlags are the flags that say which node is meant.
type nodeFlags struct {
	id, metadata, namespace, locality string
	capture                           choice
	grpc                              bool
}

func (f *nodeFlags) register(cmd *cobra.Command) {
	f.capture.words = envoy.CaptureNames()
	flags := cmd.Flags()
	flags.StringVar(&f.id, "node-id", "", "the node's `ID`: any text, or Istio's sidecar~IP~NAME.NAMESPACE~DOMAIN (required)")
	flags.StringVar(&f.metadata, "metadata", "", "the node's metadata, a `JSON` object")
	flags.StringVar(&f.namespace, "namespace", "", "the node's namespace `NAME` (default: what the metadata or id says, else \"default\")")
	flags.StringVar(&f.locality, "locality", "", "where the node is: `REGION/ZONE/SUBZONE`; later parts may be left out")
	flags.Var(&f.capture, "capture", "how connections reach the node's Envoy (default: what the metadata says, else redirect for an id of Istio's form and none for others)")
	flags.BoolVar(&f.grpc, "grpc", false, "the node is a gRPC client without a proxy, which dials xds:///HOST:PORT")
	f.capture.complete(cmd, "capture")
	if err := cmd.MarkFlagRequired("node-id"); err != nil {
		panic(err) // there is such a flag
	}
}

// node makes the node that the flags describe. Whether meshd takes it is for [envoy.ScopeOf] to say.
func (f *nodeFlags) node() (*corev3.Node, error) {
	if f.grpc && f.capture.value != "" {
		return nil, fmt.Errorf("--capture is for proxies: a gRPC client dials services itself; leave out --capture or --grpc")
	}
	metadata := map[string]any{}
	if f.metadata != "" {
		if err := json.Unmarshal([]byte(f.metadata), &metadata); err != nil {
			return nil, fmt.Errorf(`--metadata is not a JSON object such as {"NAMESPACE": "shop"}: %w`, err)
		}
	}
	own, ok := metadata["meshd"].(map[string]any)
	if !ok && metadata["meshd"] == nil {
		own = map[string]any{}
	}
	for key, value := range map[string]string{"capture": f.capture.value, "namespace": f.namespace} {
		if value != "" && own != nil {
			own[key] = value
			metadata["meshd"] = own
		}
	}
	fields, err := structpb.NewStruct(metadata)
	if err != nil {
		return nil, fmt.Errorf("--metadata: %w", err)
	}
	n := &corev3.Node{Id: f.id, Metadata: fields}
	if f.grpc {
		n.UserAgentName = envoy.GRPCAgent // by which meshd knows it; the client itself sends the rest
	}
	if f.locality != "" {
		l := mesh.ParseLocality(f.locality)
		n.Locality = &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.SubZone}
	}
	return n, nil
}

// scope is the node that the flags describe with its scope, if meshd takes it.
func (f *nodeFlags) scope() (*corev3.Node, envoy.Scope, error) {
	n, err := f.node()
	if err != nil {
		return nil, envoy.Scope{}, err
	}
	s, err := envoy.ScopeOf(n)
	return n, s, err
}

// describedNode reads a node as an Envoy's bootstrap has it, in JSON, or by its id alone.
func describedNode(text string) (*corev3.Node, error) {
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return &corev3.Node{Id: text}, nil
	}
	n := &corev3.Node{}
	if err := protojson.Unmarshal([]byte(text), n); err != nil {
		return nil, errors.New(`node: is not described as in an Envoy's bootstrap, such as {"id": "web-1", "metadata": {}}`)
	}
	return n, nil
}
