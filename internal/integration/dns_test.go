package integration

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
)

const nameServerIP = "127.0.0.53"

// nameServer answers what Envoy asks: A questions over UDP, with a time to live of one second. Whatever else is asked of a
// name that it knows has no answers, and a name that it does not know does not exist.
type nameServer struct {
	conn *net.UDPConn

	mu    sync.Mutex
	names map[string][]netip.Addr
}

func startNameServer(t *testing.T) *nameServer {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(nameServerIP), Port: 53})
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{conn: conn, names: map[string][]netip.Addr{}}
	var serving sync.WaitGroup
	serving.Go(s.serve)
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
	return s
}

// set gives a name these addresses; none takes it away.
func (s *nameServer) set(name string, ips ...string) {
	addrs := make([]netip.Addr, len(ips))
	for i, ip := range ips {
		addrs[i] = netip.MustParseAddr(ip)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[name] = addrs
}

func (s *nameServer) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFromUDP(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if answer := s.answer(buf[:n]); answer != nil {
			// A lost answer is asked for again.
			_, _ = s.conn.WriteToUDP(answer, from)
		}
	}
}

// answer makes the response to a message of one question (RFC 1035, section 4).
func (s *nameServer) answer(query []byte) []byte {
	const (
		header    = 12
		typeA     = 1
		response  = 0x8180 // a response, recursion desired and available
		noSuch    = 3
		toName    = 0xc000 | header // a pointer to the name in the question
		classIN   = 1
		lifetime  = 1
		lengthOfA = 4
	)
	if len(query) < header || binary.BigEndian.Uint16(query[4:]) != 1 {
		return nil
	}
	end := bytes.IndexByte(query[header:], 0)
	if end < 0 || len(query) < header+end+5 {
		return nil
	}
	question := query[header : header+end+5]
	var labels []string
	for rest := question[:end]; len(rest) > 0; {
		n := int(rest[0])
		if n >= len(rest) {
			return nil
		}
		labels = append(labels, string(rest[1:1+n]))
		rest = rest[1+n:]
	}
	s.mu.Lock()
	addrs := slices.Clone(s.names[strings.ToLower(strings.Join(labels, "."))])
	s.mu.Unlock()

	flags := uint16(response)
	if len(addrs) == 0 {
		flags |= noSuch
	}
	if binary.BigEndian.Uint16(question[end+1:]) != typeA {
		addrs = nil
	}
	out := append([]byte(nil), query[:2]...)
	for _, v := range []uint16{flags, 1, uint16(len(addrs)), 0, 0} {
		out = binary.BigEndian.AppendUint16(out, v)
	}
	out = append(out, question...)
	for _, a := range addrs {
		for _, v := range []uint16{toName, typeA, classIN, 0, lifetime, lengthOfA} {
			out = binary.BigEndian.AppendUint16(out, v)
		}
		out = append(out, a.AsSlice()...)
	}
	return out
}
