package main

import (
	"context"
	"fmt"
	"net"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/xds"

	"github.com/meshd/meshd/internal/envoy"
)

// node is a connected client that answers all that it is sent.
type node struct {
	conn      *grpc.ClientConn
	answering sync.WaitGroup
}

// dialNode connects a node until ctx ends. It takes its clusters, and its listeners unless there is a reason not to.
func dialNode(ctx context.Context, xds, id, reason string) (*node, error) {
	conn, err := grpc.NewClient(xds, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect %s: %w", id, err)
	}
	for _, t := range []envoy.Type{envoy.Cluster, envoy.Listener} {
		err := stream.Send(&discovery.DeltaDiscoveryRequest{
			Node: &corev3.Node{Id: id, UserAgentName: "envoy"}, TypeUrl: t.URL(), ResourceNamesSubscribe: []string{"*"},
		})
		if err != nil {
			conn.Close()
			return nil, fmt.Errorf("subscribe %s: %w", id, err)
		}
	}
	n := &node{conn: conn}
	n.answering.Go(func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			answer := &discovery.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}
			if reason != "" && r.TypeUrl == envoy.Listener.URL() {
				answer.ErrorDetail = &status.Status{Code: 13, Message: reason}
			}
			if stream.Send(answer) != nil {
				return
			}
		}
	})
	return n, nil
}

// wait waits until the node is gone, once its context has ended.
func (n *node) wait() {
	n.answering.Wait()
	n.conn.Close()
}

// serveHealth serves gRPC's health service until it is stopped.
func serveHealth(l net.Listener) (stop func()) {
	g := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(g, health.NewServer())
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(l) }) // calls tell
	return func() {
		g.Stop()
		serving.Wait()
	}
}

// callHealth calls the health service at xds:///target as a process that has the bootstrap, and leaves its connection open.
func callHealth(ctx context.Context, bootstrap []byte, target string) (*grpc.ClientConn, error) {
	resolver, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("xds:///"+target, grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("call %s: %w", target, err)
	}
	return conn, nil
}
