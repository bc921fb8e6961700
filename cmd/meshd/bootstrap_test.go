package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/meshd/meshd/internal/envoy"
)

func TestNodesSpreadOverReplicas(t *testing.T) {
	const nodes = 3000
	a, b, c := address{"192.0.2.1", 15010}, address{"192.0.2.2", 15010}, address{"meshd-c.example.net", 15010}
	first, second := map[envoy.HostPort]int{}, map[[2]envoy.HostPort]int{}
	for i := range nodes {
		id := fmt.Sprintf("web-%d", i)
		order := spread(id, []address{a, b, c})
		first[order[0]]++
		second[[2]envoy.HostPort{order[0], order[1]}]++
		if !slices.Equal(order, spread(id, []address{c, a, b, a})) {
			t.Fatalf("%s: the order depends on that of the flags", id)
		}
		without := spread(id, []address{a, b})
		order = slices.DeleteFunc(order, func(x envoy.HostPort) bool { return x == envoy.HostPort(c) })
		if !slices.Equal(order, without) {
			t.Fatalf("%s: a third replica changes the order of the other two", id)
		}
	}
	for x, n := range first {
		if n < nodes/3*9/10 || n > nodes/3*11/10 {
			t.Errorf("%v is the first of %d nodes of %d", x, n, nodes)
		}
	}
	for x, n := range second {
		if n < nodes/6*8/10 || n > nodes/6*12/10 {
			t.Errorf("without %v, %v gets %d nodes of %d", x[0], x[1], n, nodes)
		}
	}
}
