package xds

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"
	"unique"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"pgregory.net/rapid"

	"github.com/meshd/meshd/internal/envoy"
)

func manyNames(n int) (list []envoy.Name) {
	for i := range n {
		list = append(list, envoy.Name(fmt.Sprintf("service-%d", i)))
	}
	return list
}

// asks is a request of a stream of its own.
func asks(t tester, p Protocol, all *rosters, subscribe, unsubscribe []envoy.Name) *request {
	t.Helper()
	wire := marshal(t, &discovery.DeltaDiscoveryRequest{
		TypeUrl: eds.URL(), ResourceNamesSubscribe: text(subscribe), ResourceNamesUnsubscribe: text(unsubscribe),
	})
	if p == SotW {
		wire = marshal(t, &discovery.DiscoveryRequest{TypeUrl: eds.URL(), ResourceNames: text(subscribe)})
	}
	r, err := (&reader{protocol: p, rosters: all}).read(wire)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Streams that want the same share it, in whatever order and in whatever steps they have asked for it.
func TestAlikeSubscriptionsAreShared(t *testing.T) {
	list := manyNames(500)
	backwards := slices.Clone(list)
	slices.Reverse(backwards)
	var all rosters
	var subscriptions []*subscription
	for _, order := range [][]envoy.Name{list, list, backwards} {
		once, twice, sotw := &subscription{}, &subscription{}, &subscription{}
		once.update(asks(t, Delta, &all, order, nil), true, &all)
		twice.update(asks(t, Delta, &all, order[:100], nil), true, &all)
		twice.update(asks(t, Delta, &all, order[100:], nil), false, &all)
		sotw.replace(asks(t, SotW, &all, order, nil), &all)
		subscriptions = append(subscriptions, once, twice, sotw)
	}
	for i, s := range subscriptions {
		if !s.names.exact() || s.names.roster != subscriptions[0].names.roster {
			t.Errorf("subscription %d of %d names shares nothing", i, s.names.len())
		}
	}
	runtime.KeepAlive(subscriptions)
}

// What nobody has is forgotten.
func TestRostersThatNobodyHasAreForgotten(t *testing.T) {
	var all rosters
	for i := range 2000 {
		s := &subscription{}
		s.update(asks(t, Delta, &all, []envoy.Name{envoy.Name(fmt.Sprint(i))}, nil), true, &all)
		if i%50 == 0 {
			runtime.GC()
		}
	}
	if n, written := len(all.of.of), len(all.written.of); n > 500 || written > 500 {
		t.Errorf("%d and %d rosters are remembered of 2,000 that were dropped", n, written)
	}
}

// A set of names that shares is the set that a map is.
func TestNamedAgainstBuiltInMap(t *testing.T) {
	list := manyNames(150)
	rapid.Check(t, func(t *rapid.T) {
		var all rosters
		var got named
		want := names{}
		some := rapid.SliceOfN(rapid.SampledFrom(list), 0, 60)
		t.Repeat(map[string]func(*rapid.T){
			"anew": func(t *rapid.T) {
				var handles []unique.Handle[envoy.Name]
				want = names{}
				for _, n := range some.Draw(t, "names") {
					handles = append(handles, unique.Make(n))
					want.add(n)
				}
				got = named{roster: all.make(handles)}
			},
			"add": func(t *rapid.T) {
				for _, n := range some.Draw(t, "names") {
					got.add(n)
					want.add(n)
				}
			},
			"remove": func(t *rapid.T) {
				for _, n := range some.Draw(t, "names") {
					got.remove(n)
					delete(want, n)
				}
			},
			"settle": func(*rapid.T) { got.settle(&all) },
			"": func(t *rapid.T) {
				list := slices.Collect(got.all())
				set := names{}
				for _, n := range list {
					set.add(n)
				}
				if !maps.Equal(set, want) || len(list) != len(want) || got.len() != len(want) {
					t.Fatalf("got %v, want %v", list, want)
				}
				for n := range want {
					if !got.has(n) {
						t.Fatalf("%q is not found", n)
					}
				}
			},
		})
	})
}

// A name that is not text is refused wherever it stands, and however often the others were read before.
func TestNamesMustBeText(t *testing.T) {
	for p := range protocols {
		var all rosters
		x := reader{protocol: p, rosters: &all}
		good := asks(t, p, &all, manyNames(3), nil)
		for range 2 {
			r, err := x.read(good.wire)
			if err != nil {
				t.Fatal(err)
			}
			all.named(r)
		}
		name := []byte{namesTag, 2, 'a', 0xff}
		for _, wire := range [][]byte{append(slices.Clone(good.wire), name...), append(slices.Clone(name), good.wire...)} {
			if _, err := x.read(wire); err == nil {
				t.Errorf("%s: %q is read", p, wire)
			}
		}
	}
}
