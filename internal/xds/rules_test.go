package xds

import (
	"slices"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// The rules of the design's xds.md, section 2, by number, each in both protocols where it concerns both. Rules 8, 12, 20, 21 and 24
// are the server's: server_test.go.

const (
	cds = envoy.Cluster
	eds = envoy.Endpoints
	lds = envoy.Listener
	rds = envoy.Route
)

func TestRule01NamingNothingFirstIsAWildcard(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.service("b", "1")
		c.publish()
		c.all(cds)
		c.take(cds, "a", "b")
		c.set(cds, "c", "1")
		c.publish()
		c.drain()
		c.has(cds, "a", "b", "c")
	})
}

func TestRule01NamingNothingLaterIsNothing(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.publish()
		c.subscribe(cds, "a")
		c.take(cds, "a")
		c.unsubscribe(cds, "a")
		c.set(cds, "a", "2")
		c.set(cds, "b", "1")
		c.publish()
		c.quiet()
		c.has(cds)
	})
}

func TestRule01AnExplicitWildcardEnds(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.publish()
		c.subscribe(lds, "*")
		c.take(lds, "a")
		c.unsubscribe(lds, "*")
		c.set(lds, "b", "1")
		c.publish()
		c.quiet()
	})
}

func TestRule01ALegacyWildcardStaysWhenANameIsAddedInDelta(t *testing.T) {
	c := newClient(t, Delta)
	c.service("a", "1")
	c.service("b", "1")
	c.publish()
	c.all(cds)
	c.take(cds, "a", "b")
	c.subscribe(cds, "b")
	c.take(cds, "b")
	c.set(cds, "a", "2")
	c.publish()
	c.take(cds, "a")
	c.unsubscribe(cds, "*") // b stays
	c.set(cds, "a", "3")
	c.set(cds, "b", "3")
	c.publish()
	c.take(cds, "b")
}

func TestRule01ALegacyWildcardEndsWhenANameIsGivenInSotW(t *testing.T) {
	c := newClient(t, SotW)
	c.service("a", "1")
	c.service("b", "1")
	c.publish()
	c.all(cds)
	c.take(cds, "a", "b")
	c.subscribe(cds, "b")
	c.take(cds, "b")
	c.set(cds, "a", "2")
	c.publish()
	c.quiet()
	c.unsubscribe(cds, "b") // an empty list is nothing by now
	c.quiet()
	c.set(cds, "b", "2")
	c.publish()
	c.quiet()
}

func TestRule01ANarrowedWildcardAnswersNames(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.service("b", "1")
		c.publish()
		c.subscribe(eds, "a", "*")
		c.unsubscribe(eds, "*") // before the answer
		c.drain()
		c.has(eds, "a")
	})
}

func TestRule01AWidenedSubscriptionIsSentEverything(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.service("b", "1")
		c.publish()
		c.subscribe(rds, "a")
		c.take(rds, "a")
		c.subscribe(rds, "*")
		c.take(rds, "a", "b")
		c.quiet()
	})
}

func TestRule02AnEnvoyAsksForAllClustersAndListenersAndNamesTheRest(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.service("b", "1")
		c.publish()
		c.all(cds)
		c.take(cds, "a", "b")
		c.subscribe(eds, "a", "b")
		c.take(eds, "a", "b")
		c.all(lds)
		c.take(lds, "a", "b")
		c.subscribe(rds, "a")
		c.take(rds, "a")
		c.service("c", "1")
		c.publish()
		full := map[Protocol][]envoy.Name{SotW: {"a", "b", "c"}, Delta: {"c"}}[c.session.protocol]
		g := c.expect(cds, full...)
		c.subscribe(eds, "c")
		c.ack(g)
		c.take(eds, "c")
		c.take(lds, full...)
		c.quiet() // it has yet to ask for the route
		c.subscribe(rds, "c")
		c.take(rds, "c")
		c.quiet()
		c.has(rds, "a", "c")
	})
}

func TestRule02AGRPCClientNamesEverything(t *testing.T) {
	c := newClient(t, SotW)
	c.service("a", "1")
	c.service("b", "1")
	c.publish()
	for _, typ := range []envoy.Type{lds, rds, cds, eds} {
		c.subscribe(typ, "a")
		c.take(typ, "a")
	}
	c.quiet()
	c.service("b", "2")
	c.publish()
	c.quiet()
	c.remove(lds, "a")
	c.publish()
	c.take(lds) // its parent goes, and it names nothing any more, which is not all
	for _, typ := range []envoy.Type{rds, cds, eds} {
		c.unsubscribe(typ, "a")
	}
	c.service("b", "3")
	c.service("c", "1")
	c.publish()
	c.quiet()
}

func TestRule03OnlyTheNewestRequestOfATypeCounts(t *testing.T) {
	c := newClient(t, SotW)
	c.service("a", "1")
	c.service("b", "1")
	c.publish()
	c.subscribe(eds, "a")
	g := c.expect(eds, "a")
	c.types[eds].names = map[envoy.Name]bool{"b": true}
	c.ack(g) // carries the new list
	c.take(eds, "b")
	c.set(eds, "a", "2")
	c.publish()
	c.quiet()
	if rows := c.session.deliveries(); rows[0].Subscribed != 1 {
		t.Errorf("%d subscribed, want 1", rows[0].Subscribed)
	}
}

func TestRule04ANewNameIsSentThoughItWasSentBefore(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.service("b", "1")
		c.publish()
		c.subscribe(eds, "a", "b")
		c.take(eds, "a", "b")
		c.unsubscribe(eds, "b")
		c.quiet()
		c.subscribe(eds, "b")
		c.take(eds, "b")
	})
}

func TestRule04EveryNameIsAnsweredInDelta(t *testing.T) {
	c := newClient(t, Delta)
	c.service("a", "1")
	c.publish()
	c.subscribe(eds, "a")
	c.take(eds, "a")
	c.subscribe(eds, "a") // it has it, and asks anew
	c.take(eds, "a")
	c.all(cds)
	c.take(cds, "a")
	c.take(eds, "a") // forced by the cluster
	c.subscribe(cds, "a")
	c.take(cds, "a")
}

func TestRule04InitialVersionsThatMatchAreNotSentAgain(t *testing.T) {
	for _, wildcard := range []string{"by name", "wildcard"} {
		t.Run(wildcard, func(t *testing.T) {
			c := newClient(t, Delta)
			c.service("a", "1")
			c.service("b", "1")
			c.publish()
			if wildcard == "wildcard" {
				c.all(lds)
			} else {
				c.subscribe(lds, "a", "b")
			}
			c.take(lds, "a", "b")
			c.set(lds, "b", "2")
			c.publish() // while it is away
			c.reconnect()
			c.resume(lds)
			c.take(lds, "b")
			c.quiet()
			c.reconnect()
			c.resume(lds)
			if wildcard == "wildcard" {
				c.take(lds) // rule 16: empty
			}
			c.quiet()
			c.has(lds, "a", "b")
			c.accepted(lds)
		})
	}
}

func TestRule05ANameThatIsNotThereIsRemembered(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.publish()
		for typ := range envoy.Types {
			c.subscribe(typ, "late")
			if c.session.protocol == Delta {
				c.removed(typ, []envoy.Name{"late"})
			}
			c.quiet()
		}
		c.service("late", "1")
		c.publish()
		for typ := range envoy.Types {
			c.take(typ, "late")
		}
	})
}

func TestRule05EndpointsAreNotRemovedBeforeTheirCluster(t *testing.T) {
	c := newClient(t, Delta)
	c.service("a", "1")
	c.service("b", "1")
	c.publish()
	c.all(cds)
	c.take(cds, "a", "b")
	c.subscribe(eds, "a", "b")
	c.take(eds, "a", "b")
	c.withdraw("a")
	c.publish()
	c.quiet()
	c.now = c.now.Add(grace)
	g := c.expect(cds)
	if !slices.Equal(g.Removed, []envoy.Name{"a"}) {
		t.Fatalf("removed %q, want a", g.Removed)
	}
	c.quiet()
	c.unsubscribe(eds, "a") // an Envoy does so before it acknowledges
	c.ack(g)
	c.quiet()
	c.now = c.now.Add(2 * grace)
	c.quiet()
}

func TestRule06UnsubscribingBesideAWildcardIsAnswered(t *testing.T) {
	c := newClient(t, Delta)
	c.service("a", "1")
	c.publish()
	c.all(cds)
	c.take(cds, "a")
	c.subscribe(cds, "a", "none")
	c.removedAndSent(cds, "none", "a")
	c.unsubscribe(cds, "a", "none", "superfluous")
	c.removedAndSent(cds, "none", "a")
	c.quiet()
}

func (c *client) removedAndSent(t envoy.Type, removed, sent envoy.Name) {
	c.t.Helper()
	g := c.take(t, sent)
	if !slices.Equal(g.Removed, []envoy.Name{removed}) {
		c.t.Fatalf("removed %q, want %q", g.Removed, removed)
	}
}

func TestRule06ASuperfluousUnsubscribeIsIgnored(t *testing.T) {
	c := newClient(t, Delta)
	c.service("a", "1")
	c.publish()
	c.subscribe(rds, "a")
	c.take(rds, "a")
	c.unsubscribe(rds, "b", "*")
	c.quiet()
	c.set(rds, "a", "2")
	c.publish()
	c.take(rds, "a")
}

func TestRule07NothingIsSentThatWasNotAskedFor(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.service("b", "1")
		c.publish()
		c.subscribe(cds, "a")
		c.take(cds, "a")
		c.set(cds, "b", "2")
		c.publish()
		c.quiet()
	})
}

func TestRule09ARejectionIsAnErrorDetailAndNothingElse(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.publish()
		c.all(cds)
		g := c.expect(cds, "a")
		c.types[cds].nonce = g.Nonce // with the old version, as if it had been rejected
		c.send(cds, nil, nil, g.Nonce)
		row := c.session.deliveries()[0]
		if row.Rejected != nil || row.Accepted.Nonce != g.Nonce {
			t.Errorf("delivery %+v, want it accepted", row)
		}
		c.set(cds, "a", "2")
		c.publish()
		g = c.expect(cds, "a")
		c.types[cds].version, c.types[cds].nonce = g.Version, g.Nonce // with the new version, as if it had been accepted
		detail := status.New(codes.Internal, "").Proto()              // and without a word
		if c.session.protocol == SotW {
			c.request(cds, &discovery.DiscoveryRequest{TypeUrl: cds.URL(), VersionInfo: g.Version, ResponseNonce: g.Nonce, ErrorDetail: detail})
		} else {
			c.request(cds, &discovery.DeltaDiscoveryRequest{TypeUrl: cds.URL(), ResponseNonce: g.Nonce, ErrorDetail: detail})
		}
		if row := c.session.deliveries()[0]; row.Rejected == nil || row.Accepted.Nonce == g.Nonce {
			t.Errorf("delivery %+v, want it rejected", row)
		}
	})
}

func TestRule10AStaleNonceIsIgnoredInSotW(t *testing.T) {
	c := newClient(t, SotW)
	c.service("a", "1")
	c.service("b", "1")
	c.publish()
	c.subscribe(eds, "a")
	g := c.take(eds, "a")
	c.set(eds, "a", "2")
	c.publish()
	next := c.expect(eds, "a")
	c.subscribe(eds, "b") // crosses it, with the nonce of g
	c.quiet()
	if got := c.session.deliveries()[0]; !got.Pending || got.Subscribed != 1 {
		t.Errorf("delivery %+v after a request with nonce %s, want it pending still", got, g.Nonce)
	}
	c.ack(next) // carries both names
	c.take(eds, "b")
	c.quiet()
}

func TestRule10SubscriptionsCountWhateverTheNonceInDelta(t *testing.T) {
	c := newClient(t, Delta)
	c.service("a", "1")
	c.service("b", "1")
	c.publish()
	c.subscribe(eds, "a")
	g := c.take(eds, "a")
	c.set(eds, "a", "2")
	c.publish()
	next := c.expect(eds, "a")
	c.send(eds, []envoy.Name{"b"}, nil, g.Nonce) // stale
	if row := c.session.deliveries()[0]; row.Subscribed != 2 || !row.Pending {
		t.Errorf("delivery %+v, want 2 subscribed, and pending", row)
	}
	c.types[eds].names["b"] = true
	c.quiet()
	c.ack(next)
	c.take(eds, "b")
	if rejection := c.request(eds, &discovery.DeltaDiscoveryRequest{TypeUrl: eds.URL(), ResponseNonce: "99", ErrorDetail: status.New(codes.InvalidArgument, "x").Proto()}); rejection != nil {
		t.Errorf("a rejection of a response that was never sent: %+v", rejection)
	}
}

func TestRule11AfterARejectionNothingIsSentUntilSomethingChanges(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		for typ := range envoy.Types {
			c.set(typ, "a", "1")
			c.set(typ, "b", "1")
		}
		c.publish()
		for typ := range envoy.Types {
			c.subscribe(typ, "a", "b")
			rejection := c.nack(c.expect(typ, "a", "b"), `Error adding/updating x(s) b: no good`)
			if rejection == nil || !slices.Equal(rejection.Resources, []envoy.Name{"b"}) {
				t.Fatalf("rejection %+v, want b's", rejection)
			}
			c.take(typ, "a") // the client may have dropped a with b
			c.quiet()
			c.set(typ, "unrelated", "1")
			c.publish()
			c.quiet()
			c.set(typ, "b", "good")
			c.publish()
			if c.session.protocol == SotW && order[typ].full {
				c.take(typ, "a", "b")
			} else {
				c.take(typ, "b")
			}
			c.quiet()
		}
	})
}

func TestRule11ANewNameGoesWithoutWhatIsRejected(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.service("b", "1")
		c.publish()
		c.subscribe(eds, "a")
		c.nack(c.expect(eds, "a"), "a is bad")
		c.subscribe(eds, "b")
		c.take(eds, "b")
		c.quiet()
	})
}

func TestRule11WhatWasRejectedGoesAtOnceWhenItIsWithdrawn(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.publish()
		c.all(cds)
		c.take(cds, "a")
		c.all(lds)
		c.take(lds, "a")
		c.set(cds, "bad", "1")
		c.publish()
		if c.session.protocol == SotW {
			c.nack(c.expect(cds, "a", "bad"), "bad")
		} else {
			c.nack(c.expect(cds, "bad"), "bad")
		}
		c.remove(cds, "bad")
		c.publish()
		c.removed(cds, []envoy.Name{"bad"}, "a")
		c.has(cds, "a")
	})
}

func TestRule13TheNonceIsEmptyOnANewStream(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.publish()
		c.subscribe(eds, "a")
		c.take(eds, "a")
		c.reconnect()
		c.types[eds].nonce = "77" // a client that keeps it is forgiven
		c.types[eds].held = map[envoy.Name]string{}
		c.resume(eds)
		c.take(eds, "a")
	})
}

func TestRule14NoNameTwice(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.service("b", "1")
		c.publish()
		c.all(cds)
		c.take(cds, "a", "b")
		c.subscribe(eds, "a", "a", "b")
		c.nack(c.expect(eds, "a", "b"), "no")
		c.set(cds, "a", "2") // forces
		c.set(eds, "a", "2") // changes
		c.publish()
		if c.session.protocol == Delta {
			c.take(cds, "a")
		} else {
			c.take(cds, "a", "b")
		}
		c.subscribe(eds, "a") // owes; decode looks for doubles
		c.drain()
		c.has(eds, "a", "b")
	})
}

func TestRule15SotWListsOfClustersAndListenersAreFull(t *testing.T) {
	c := newClient(t, SotW)
	c.service("a", "1")
	c.service("b", "1")
	c.service("c", "1")
	c.publish()
	c.subscribe(lds, "a", "b")
	c.take(lds, "a", "b")
	c.all(cds)
	c.take(cds, "a", "b", "c")
	c.set(lds, "b", "2")
	c.publish()
	c.take(lds, "a", "b")
	c.set(cds, "b", "2")
	c.publish()
	c.take(cds, "a", "b", "c")
	c.remove(lds, "a")
	c.publish()
	c.take(lds, "b")
	c.remove(lds, "b")
	c.publish()
	c.take(lds) // empty: deletes all
}

func TestRule15SotWListsOfEndpointsAndRoutesArePartial(t *testing.T) {
	c := newClient(t, SotW)
	c.service("a", "1")
	c.service("b", "1")
	c.publish()
	for _, typ := range []envoy.Type{eds, rds} {
		c.subscribe(typ, "a", "b")
		c.take(typ, "a", "b")
		c.set(typ, "b", "2")
		c.publish()
		c.take(typ, "b")
		c.remove(typ, "a")
		c.publish()
		c.quiet()
	}
}

func TestRule15AReconnectingSotWClientLearnsThatAllItNamesIsGone(t *testing.T) {
	c := newClient(t, SotW)
	c.service("a", "1")
	c.publish()
	c.subscribe(cds, "a")
	c.take(cds, "a")
	c.withdraw("a")
	c.publish()
	c.reconnect()
	c.resume(cds)
	c.take(cds)
	c.has(cds)
}

func TestRule16NothingChangedNothingIsSent(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.publish()
		for typ := range envoy.Types {
			c.all(typ)
			c.take(typ, "a")
		}
		r, _ := c.resources[cds].Get("a")
		moved := *r // the same content from another place
		moved.Services = []mesh.Key{serviceKey("elsewhere")}
		c.resources[cds] = c.resources[cds].With("a", &moved)
		c.publish()
		c.quiet()
	})
}

func TestRule16AWildcardIsAnsweredEvenIfThereIsNothing(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.publish() // an empty mesh
		for typ := range envoy.Types {
			c.all(typ)
			c.take(typ)
		}
		c.quiet()
	})
}

func TestRule16ASotWWildcardThatIsUpToDateIsNotAnswered(t *testing.T) {
	c := newClient(t, SotW)
	c.service("a", "1")
	c.publish()
	c.all(cds)
	c.take(cds, "a")
	c.reconnect()
	c.resume(cds)
	c.quiet()
	c.accepted(cds)
	c.set(cds, "a", "2")
	c.publish()
	c.take(cds, "a")
	c.reconnect()
	c.set(cds, "a", "3")
	c.publish()
	c.resume(cds)
	c.take(cds, "a")
}

// An Envoy asks for the endpoints of the clusters that it was given, and so for what it has, if it was not told otherwise.
func TestRule16ALedSotWClientThatIsUpToDateIsNotAnswered(t *testing.T) {
	c := newClient(t, SotW)
	c.service("a", "1")
	c.service("b", "1")
	c.publish()
	connect := func() {
		for _, led := range []envoy.Type{eds, rds} {
			leader := order[led].leader
			c.all(leader)
			c.take(leader, "a", "b")
			c.subscribe(led, "a", "b")
			c.take(led, "a", "b")
		}
		c.quiet()
	}
	connect()
	c.reconnect()
	c.resume(cds, eds, lds, rds)
	c.quiet()
	for typ := range envoy.Types {
		if d := c.session.deliveries()[typ]; d.Accepted.Version != c.types[typ].version {
			t.Errorf("%s: the status says that the client has %q, and it has %q", typ, d.Accepted.Version, c.types[typ].version)
		}
	}

	c.set(eds, "b", "2") // what changes alone is sent, on this stream
	c.publish()
	c.take(eds, "b")
	c.reconnect()
	c.resume(cds, eds, lds, rds)
	c.quiet()

	c.reconnect()
	c.set(eds, "b", "3") // and while it is away all, since nobody knows what it has
	c.publish()
	c.resume(cds, eds, lds, rds)
	c.take(eds, "a", "b")
	c.quiet()

	c.reconnect()
	c.set(cds, "a", "2") // its leader has something new for it, so that it may need what it has already
	c.publish()
	c.resume(cds, eds, lds, rds)
	c.take(cds, "a", "b")
	c.take(eds, "a", "b")
	c.quiet()

	c.reconnect()
	c.resume(eds) // it does not say yet that it is led
	c.take(eds, "a", "b")
}

// What was gone and has come back, a client may have dropped in between, though it names it under the version that it had then.
func TestRule16AVersionSaysNothingThatWasGone(t *testing.T) {
	c := newClient(t, SotW)
	c.service("a", "1")
	c.service("b", "1")
	c.publish()
	c.all(cds)
	c.take(cds, "a", "b")
	c.subscribe(eds, "a", "b")
	c.take(eds, "a", "b")

	c.set(eds, "a", "2")
	c.publish()
	waits := c.expect(eds, "a") // while it waits for the answer,
	b := c.resources
	c.remove(cds, "b") // b goes,
	c.remove(eds, "b")
	c.publish()
	c.quiet() // which waits,
	c.now = c.now.Add(grace)
	c.removed(cds, []envoy.Name{"b"}, "a")
	c.resources = b // and is back,
	c.set(cds, "b", "1")
	c.set(eds, "b", "1")
	c.publish()
	c.quiet() // of which the client does not learn before it has another version of the endpoints.
	c.unsubscribe(eds, "b")
	c.ack(waits)
	if v := c.take(eds).Version; v == waits.Version {
		t.Errorf("the version %s is as it was when b was there", v)
	}
	c.take(cds, "a", "b")
	c.subscribe(eds, "b")
	c.reconnect()
	c.resume(cds, eds)
	c.take(eds, "a", "b")
}

// A gRPC client names everything, and drops what no application wants any more: its version does not say that.
func TestRule16ASotWClientThatNamesEverythingIsAnswered(t *testing.T) {
	c := newClient(t, SotW)
	c.service("a", "1")
	c.publish()
	for _, typ := range []envoy.Type{lds, rds, cds, eds} {
		c.subscribe(typ, "a")
		c.take(typ, "a")
	}
	c.reconnect()
	for _, typ := range []envoy.Type{lds, rds, cds, eds} {
		c.resume(typ)
		c.take(typ, "a")
	}
	c.quiet()
}

func TestRule16TheVersionOfAListWithDoomedClustersIsAnother(t *testing.T) {
	c := newClient(t, SotW)
	c.service("a", "1")
	c.service("b", "1")
	c.publish()
	c.all(cds)
	c.take(cds, "a", "b")
	c.remove(cds, "a")
	c.set(cds, "b", "2")
	c.publish()
	g := c.next()
	if !slices.Equal(g.Resources, []envoy.Name{"a", "b"}) {
		t.Fatalf("got %q, want a and b: a goes last", g.Resources)
	}
	c.ack(g)
	c.reconnect() // has a still, with a version that nobody has
	c.resume(cds)
	c.take(cds, "b")
}

// What a changed cluster warms with is sent after it: rule 17a. That its assignment has changed as well is the translation's doing, but that
// the assignment waits for the cluster is ours.
func TestRule17aEndpointsFollowTheirChangedCluster(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.service("b", "1")
		c.publish()
		c.all(cds)
		c.take(cds, "a", "b")
		c.subscribe(eds, "a", "b")
		c.take(eds, "a", "b")
		c.set(cds, "a", "2")
		c.publish()
		inFlight := c.next() // of a, not acknowledged
		c.take(eds, "a")     // forced though unchanged
		c.set(cds, "b", "2")
		c.set(eds, "b", "2")
		c.publish()
		c.quiet() // b's endpoints must not come before b
		c.ack(inFlight)
		if g := c.next(); g.Type != cds {
			t.Fatalf("got %s, want clusters", g.Type)
		}
		c.take(eds, "b")
	})
}

func TestRule17bEndpointsAskedForBeforeTheClustersAreSentAgain(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.service("b", "1")
		c.publish()
		c.all(cds)
		c.take(cds, "a", "b")
		c.subscribe(eds, "a", "b")
		c.take(eds, "a", "b")
		c.set(cds, "a", "2")
		c.set(eds, "a", "2")
		c.publish()
		c.reconnect()
		c.resume(eds)
		c.drain()
		c.resume(cds)
		g := c.next()
		if g.Type != cds || !slices.Contains(g.Resources, "a") {
			t.Fatalf("got %s %q, want cluster a", g.Type, g.Resources)
		}
		c.ack(g)
		if g = c.next(); g == nil || g.Type != eds || !slices.Contains(g.Resources, "a") {
			t.Fatalf("got %+v, want a's endpoints again", g)
		}
	})
}

func TestRule17cARepeatedRequestForEndpointsIsAnsweredInSotW(t *testing.T) {
	c := newClient(t, SotW)
	c.service("a", "1")
	c.publish()
	c.subscribe(eds, "a")
	c.take(eds, "a")
	c.send(eds, nil, nil, "")
	c.take(eds, "a")
	c.quiet()
}

func TestRule18MakeBeforeBreak(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("old", "1")
		c.publish()
		c.all(cds)
		c.take(cds, "old")
		c.subscribe(eds, "old")
		c.take(eds, "old")
		c.all(lds)
		c.take(lds, "old")
		c.subscribe(rds, "old")
		c.take(rds, "old")

		// The listener and the route lead to another cluster now.
		c.remove(cds, "old")
		c.remove(eds, "old")
		c.set(cds, "new", "1")
		c.set(eds, "new", "1")
		c.set(lds, "old", "2")
		c.set(rds, "old", "2")
		c.publish()
		g := c.next()
		if want := map[Protocol][]envoy.Name{SotW: {"new", "old"}, Delta: {"new"}}[c.session.protocol]; g.Type != cds || !slices.Equal(g.Resources, want) {
			t.Fatalf("got %s %q, want %q", g.Type, g.Resources, want)
		}
		if c.session.protocol == SotW {
			c.take(eds) // its new version says that those of old are gone
		}
		c.quiet() // listeners and routes wait for the clusters to be there
		c.subscribe(eds, "new")
		c.ack(g)
		c.take(eds, "new")
		listener := c.expect(lds, "old")
		route := c.expect(rds, "old")
		c.quiet()
		c.ack(listener)
		c.quiet()
		c.ack(route)
		c.quiet() // grace
		if at := c.session.alarm(c.now); !at.Equal(c.now.Add(grace)) {
			t.Fatalf("alarm at %v, want the end of the grace", at)
		}
		c.now = c.now.Add(grace)
		g = c.next()
		if c.session.protocol == SotW {
			if g.Type != cds || !slices.Equal(g.Resources, []envoy.Name{"new"}) {
				t.Fatalf("got %s %q, want the list without old", g.Type, g.Resources)
			}
		} else if !slices.Equal(g.Removed, []envoy.Name{"old"}) || len(g.Resources) > 0 {
			t.Fatalf("got %q, removed %q; want old removed", g.Resources, g.Removed)
		}
		c.ack(g)
		c.has(cds, "new")
		if c.session.protocol == Delta { // it did not unsubscribe
			c.quiet()
			c.now = c.now.Add(grace)
			c.removed(eds, []envoy.Name{"old"})
		}
		c.quiet()
	})
}

func TestRule18ARejectedRouteKeepsItsCluster(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("old", "1")
		c.publish()
		c.all(cds)
		c.take(cds, "old")
		c.subscribe(rds, "old")
		c.take(rds, "old")
		c.remove(cds, "old")
		c.set(rds, "old", "2")
		c.publish()
		c.nack(c.expect(rds, "old"), "bad route")
		c.now = c.now.Add(10 * grace)
		c.quiet()
		c.set(rds, "old", "3")
		c.publish()
		c.take(rds, "old")
		c.quiet()
		c.now = c.now.Add(grace)
		c.removed(cds, []envoy.Name{"old"})
	})
}

func TestRule18AClusterThatReturnsWithinTheGraceStays(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.publish()
		c.all(cds)
		c.take(cds, "a")
		c.remove(cds, "a")
		c.publish()
		c.quiet()
		c.set(cds, "a", "1")
		c.publish()
		c.take(cds, "a")
		c.now = c.now.Add(grace)
		c.quiet()
		c.has(cds, "a")
	})
}

func TestRule18ARemovalAloneEndsItsGrace(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.set(cds, "b", "1")
		c.publish()
		c.all(cds)
		c.take(cds, "a", "b")
		c.all(lds)
		c.take(lds, "a")
		c.remove(cds, "b")
		c.publish()
		c.quiet()
		if at := c.session.alarm(c.now); !at.Equal(c.now.Add(grace)) {
			t.Fatalf("alarm at %v, want the end of the grace: nothing else wakes the stream", at)
		}
		c.now = c.now.Add(grace)
		c.removed(cds, []envoy.Name{"b"}, "a")
	})
}

func TestRule18ChurnOfEndpointsDoesNotHoldUpRoutes(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.publish()
		c.all(cds)
		c.take(cds, "a")
		c.subscribe(eds, "a")
		c.take(eds, "a")
		c.subscribe(rds, "a")
		c.take(rds, "a")
		c.set(rds, "a", "2")
		for i := range 10 { // whenever something is acknowledged, the endpoints have changed again
			c.set(eds, "a", strings.Repeat("x", i+2))
			c.publish()
			endpoints := c.expect(eds, "a")
			if i == 0 {
				c.quiet() // the route waits for the endpoints
			} else {
				c.take(rds, "a")
				return
			}
			c.set(eds, "a", strings.Repeat("y", i+2))
			c.publish()
			c.ack(endpoints)
		}
		t.Error("the route never came")
	})
}

func TestRule19OnlyChangedClustersAreSentInDelta(t *testing.T) {
	c := newClient(t, Delta)
	for _, n := range []string{"a", "b", "c"} {
		c.service(n, "1")
	}
	c.publish()
	c.all(cds)
	c.take(cds, "a", "b", "c")
	c.set(cds, "b", "2")
	c.publish()
	c.take(cds, "b")
}

func TestRule22WhatAReconnectingClientHasTooMuchIsRemoved(t *testing.T) {
	c := newClient(t, Delta)
	c.service("a", "1")
	c.service("b", "1")
	c.publish()
	for typ := range envoy.Types {
		c.all(typ)
	}
	c.drain()
	c.withdraw("a")
	c.publish()
	c.reconnect()
	c.resume(cds, eds, lds, rds)
	c.take(cds) // empty, for the wildcard: the removal comes last
	c.take(eds)
	c.removed(lds, []envoy.Name{"a"})
	c.take(rds)
	c.quiet()
	for range 3 {
		c.now = c.now.Add(grace)
		c.drain()
	}
	for typ := range envoy.Types {
		c.has(typ, "b")
	}
}

func TestRule22AVersionThatIsNotOursIsReplaced(t *testing.T) {
	c := newClient(t, Delta)
	c.service("a", "1")
	c.publish()
	c.types[cds].held["a"] = "stale"
	c.all(cds)
	c.take(cds, "a")
}

func TestRule23AnUnknownClusterIsAnsweredOnDemand(t *testing.T) {
	c := newClient(t, Delta)
	c.service("a", "1")
	c.publish()
	c.subscribe(cds, "a")
	c.take(cds, "a")
	c.subscribe(cds, "unknown")
	c.removed(cds, []envoy.Name{"unknown"})
}

func TestOneResponseOfATypeIsInFlightAndTheNewestFollows(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.service("b", "1")
		c.publish()
		c.subscribe(eds, "a", "b")
		g := c.expect(eds, "a", "b")
		for _, content := range []string{"2", "3", "4"} {
			c.set(eds, "a", content)
			c.publish()
			c.quiet()
		}
		c.set(eds, "b", "2")
		c.set(eds, "b", "1") // and back
		c.publish()
		c.ack(g)
		c.take(eds, "a")
		c.has(eds, "a", "b")
		c.quiet()
	})
}

func TestStreamsAreHeldBeforeTheFirstView(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.all(cds)
		c.subscribe(eds, "a")
		c.unsubscribe(eds, "a")
		c.subscribe(eds, "b")
		c.quiet()
		c.service("a", "1")
		c.service("b", "1")
		c.publish()
		c.take(cds, "a", "b")
		c.take(eds, "b")
	})
}

func TestBlameFindsWholeNames(t *testing.T) {
	f := &flight{}
	for _, n := range []string{"outbound|80||a.b", "outbound|80||a.b.c", "a.b", "b"} {
		f.resources = append(f.resources, envoy.NewResource(cds, envoy.Name(n), newMessage(cds, n, ""), "", serviceKey(n[len(n)-1:])))
	}
	for message, want := range map[string]string{
		"Error adding/updating cluster(s) outbound|80||a.b: x":                      "outbound|80||a.b",
		"Error adding/updating cluster(s) outbound|80||a.b.c: x, outbound|80||a.b":  "outbound|80||a.b outbound|80||a.b.c",
		`xds: resource "a.b" is bad.`:                                               "a.b",
		"cluster 'b'.":                                                              "b",
		"it was a.b.":                                                               "a.b",
		"Error adding/updating cluster(s) a.b: needs b, and has none":               "a.b",
		"error parsing \"X\" response: resource \"b\": bad;\nresource \"a.b\": bad": "a.b b",
		"Error adding/updating cluster(s) b: x, a.b":                                "a.b b", // cut
		"no name": "",
	} {
		if got := strings.Join(namesOf(blame(f.resources, message)), " "); got != want {
			t.Errorf("%q names %q, want %q", message, got, want)
		}
	}
}

func namesOf(resources []*envoy.Resource) (out []string) {
	for _, r := range resources {
		out = append(out, string(r.Name))
	}
	return out
}
