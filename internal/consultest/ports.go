package consultest

import (
	"math/rand/v2"
	"net"
	"testing"
)

// ports are those of one agent. An agent keeps them over restarts, so they are below the ones that the system gives to
// connections: nobody gets them by chance while the agent is away. They are not those of meshd and Envoy, which some tests start later.
type ports struct{ http, https, server, lan, wan int }

func freePorts(t testing.TB) ports {
	t.Helper()
	var p ports
	var held []interface{ Close() error }
	defer func() {
		for _, h := range held {
			_ = h.Close() // they were open, which is all that we wanted to know
		}
	}()
	for _, port := range []*int{&p.http, &p.https, &p.server, &p.lan, &p.wan} {
		for attempt := 0; *port == 0; attempt++ {
			if attempt == 1000 {
				t.Fatal("consultest: no free ports between 10000 and 32000")
			}
			n := 10000 + rand.IntN(22000)
			if n/100 == 150 {
				continue
			}
			l, err := net.Listen("tcp", local(n))
			if err != nil {
				continue
			}
			held = append(held, l)
			u, err := net.ListenPacket("udp", local(n))
			if err != nil {
				continue
			}
			held = append(held, u)
			*port = n
		}
	}
	return p
}
