package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// fleet is many clients of one server. Each has all clusters by wildcard, names the endpoints of each of them once it has been
// given clusters, and acknowledges all that comes.
type fleet struct {
	protocol *protocol
	services int
	nodes    func(i int) *corev3.Node

	clusters, endpoints []byte // what the first request of a type says beside node and type
	returning           bool   // they come with all that they had, and ask for both types at once
	names               []byte // of endpoints, for each acknowledgement in the state of the world

	counters
	clients []*client
	running sync.WaitGroup
	ended   atomic.Bool
	failed  chan error
	full    chan struct{} // closed when all have everything
	lack    atomic.Int64
	unsent  atomic.Int64 // bytes of requests for which the server has no room yet
	round   atomic.Pointer[round]
}

// counters are what a fleet has received.
type counters struct{ messages, bytes, resources, removed atomic.Int64 }

// client is one Envoy, as the server sees it.
type client struct {
	fleet               *fleet
	node                []byte
	wire                *wire
	responses           responses
	asked, full         bool // for endpoints; has everything
	clusters, endpoints int  // how many came
}

// newFleet makes a fleet of clients that want the endpoints of some clusters, and connect for the first time.
func newFleet(p *protocol, nodes func(int) *corev3.Node, names []string) *fleet {
	f := &fleet{protocol: p, services: len(names), nodes: nodes, failed: make(chan error, 1)}
	for _, n := range names {
		f.names = appendText(f.names, p.names, n)
	}
	f.endpoints = f.names
	return f
}

// oneScope makes all clients alike to the server; ownAddresses gives each an address of its own.
func oneScope(i int) *corev3.Node {
	return &corev3.Node{Id: "bench-" + strconv.Itoa(i), Cluster: "bench", UserAgentName: "envoy"}
}

func ownAddresses(i int) *corev3.Node {
	id := fmt.Sprintf("sidecar~198.51.%d.%d~bench-%d.default~default.svc.cluster.local", i>>8&255, i&255, i)
	return &corev3.Node{Id: id, Cluster: "bench", UserAgentName: "envoy"}
}

// connect opens n streams at once.
func (f *fleet) connect(address string, n int) error {
	f.full, f.clients = make(chan struct{}), make([]*client, n)
	f.lack.Store(int64(n))
	f.ended.Store(false)
	var dialling sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		node, err := proto.Marshal(f.nodes(i))
		if err != nil {
			return err
		}
		c := &client{fleet: f, node: node}
		c.responses = responses{resource: c.resource, whole: c.response}
		f.clients[i] = c
		dialling.Add(1)
		f.running.Go(func() {
			c.wire, errs[i] = dialWire(address, f.protocol.path, c.responses.take, &f.unsent)
			dialling.Done()
			if errs[i] != nil {
				return
			}
			if err := errors.Join(c.begin(), c.wire.read()); !f.ended.Load() {
				select {
				case f.failed <- fmt.Errorf("client %d: %w", i, err):
				default:
				}
			}
		})
	}
	dialling.Wait()
	for _, err := range errs {
		if err != nil {
			return err // the others have the same
		}
	}
	return nil
}

// close ends all streams.
func (f *fleet) close() {
	f.ended.Store(true)
	for _, c := range f.clients {
		if c.wire != nil {
			c.wire.conn.Close()
		}
	}
	f.running.Wait()
	f.clients = nil
}

// await waits for something, a failure of a client, or the limit.
func (f *fleet) await(what string, done <-chan struct{}, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case err := <-f.failed:
		return fmt.Errorf("%s: %w", what, err)
	case <-timer.C:
		return fmt.Errorf("%s: not after %s; %d of %d clients have not everything", what, limit, f.lack.Load(), len(f.clients))
	}
}

func (c *client) begin() error {
	p := c.fleet.protocol
	head := appendText(appendBytes(nil, p.node, c.node), p.typeURL, clusterType)
	if err := c.wire.send(head, c.fleet.clusters); err != nil || !c.fleet.returning {
		return err
	}
	return c.askForEndpoints()
}

func (c *client) askForEndpoints() error {
	c.asked = true
	return c.wire.send(appendText(nil, c.fleet.protocol.typeURL, endpointType), c.fleet.endpoints)
}

// response takes a response that is whole.
func (c *client) response(in response) error {
	f, p := c.fleet, c.fleet.protocol
	f.messages.Add(1)
	f.bytes.Add(int64(in.size))
	f.resources.Add(int64(in.resources))
	endpoints := string(in.typeURL) == endpointType
	if endpoints {
		c.endpoints += in.resources
	} else {
		c.clusters += in.resources
	}
	ack := make([]byte, 0, 128)
	ack = appendBytes(ack, p.typeURL, in.typeURL)
	ack = appendBytes(ack, p.nonce, in.nonce)
	pieces := [][]byte{ack}
	if p.version != 0 {
		pieces[0] = appendBytes(ack, p.version, in.version)
		if endpoints {
			pieces = append(pieces, f.names)
		}
	} else {
		f.removed.Add(int64(in.removed))
	}
	if err := c.wire.send(pieces...); err != nil {
		return err
	}
	if !c.asked {
		if err := c.askForEndpoints(); err != nil {
			return err
		}
	}
	if !c.full && c.clusters >= f.services && c.endpoints >= f.services {
		c.full = true
		if f.lack.Add(-1) == 0 {
			close(f.full)
		}
	}
	return nil
}

// resource looks for the mark of a change.
func (c *client) resource(b []byte) {
	if r := c.fleet.round.Load(); r != nil {
		if mark, ok := findMark(b); ok {
			r.arrived(mark, time.Now())
		}
	}
}

// round waits for changes to arrive at all clients. Each has a mark, one more than the one before.
type round struct {
	first   int
	begun   []atomic.Int64 // when, in nanoseconds; 0 if it is not told beforehand
	left    atomic.Int64   // arrivals
	last    atomic.Int64   // when it came, in nanoseconds
	latency []atomic.Int64 // arrivals by milliseconds, where it is told when a change began
	done    chan struct{}
}

// expect makes a fleet wait for some changes.
func (f *fleet) expect(first, changes int) *round {
	r := &round{first: first, begun: make([]atomic.Int64, changes), latency: make([]atomic.Int64, 60_000), done: make(chan struct{})}
	r.left.Store(int64(changes) * int64(len(f.clients)))
	f.round.Store(r)
	return r
}

func (r *round) arrived(mark int, at time.Time) {
	if mark < r.first || mark >= r.first+len(r.begun) {
		return
	}
	now := at.UnixNano()
	for last := r.last.Load(); last < now && !r.last.CompareAndSwap(last, now); last = r.last.Load() {
	}
	if begun := r.begun[mark-r.first].Load(); begun != 0 {
		r.latency[min(int((now-begun)/int64(time.Millisecond)), len(r.latency)-1)].Add(1)
	}
	if r.left.Add(-1) == 0 {
		close(r.done)
	}
}

// percentile is what share of the arrivals took no longer than, in milliseconds.
func (r *round) percentile(share float64) float64 {
	total := int64(0)
	for i := range r.latency {
		total += r.latency[i].Load()
	}
	sum := int64(0)
	for i := range r.latency {
		if sum += r.latency[i].Load(); float64(sum) >= share*float64(total) {
			return float64(i + 1)
		}
	}
	return 0
}

// recording is what a client was sent, byte for byte.
type recording struct {
	fleet *fleet
	sent  chan []byte
	state [][]byte // all that came until it had everything
}

// record connects one client that notes what it is sent.
func record(f *fleet, address string, limit time.Duration) (*recording, error) {
	r := &recording{fleet: f, sent: make(chan []byte, 1<<16)}
	if err := f.connect(address, 0); err != nil {
		return nil, err
	}
	node, err := proto.Marshal(f.nodes(0))
	if err != nil {
		return nil, err
	}
	c := &client{fleet: f, node: node}
	c.responses = responses{resource: c.resource, whole: c.response, copied: func(b []byte) { r.sent <- b }}
	f.clients = []*client{c}
	f.lack.Store(1)
	if c.wire, err = dialWire(address, f.protocol.path, c.responses.take, &f.unsent); err != nil {
		return nil, err
	}
	f.running.Go(func() {
		if err := errors.Join(c.begin(), c.wire.read()); !f.ended.Load() {
			f.failed <- err
		}
	})
	if err := f.await("first state", f.full, limit); err != nil {
		return nil, err
	}
	for len(r.sent) > 0 {
		r.state = append(r.state, <-r.sent)
	}
	return r, nil
}

// change waits for the response that brings a change. What comes before it belongs to the state.
func (r *recording) change(mark int, limit time.Duration) ([]byte, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case message := <-r.sent:
			if got, ok := findMark(message); ok && got == mark {
				return message, nil
			}
			r.state = append(r.state, message)
		case err := <-r.fleet.failed:
			return nil, err
		case <-timer.C:
			return nil, fmt.Errorf("change %d has not come after %s", mark, limit)
		}
	}
}

// versions are the encoded initial_resource_versions of a type, by what was recorded of it.
func (r *recording) versions(typeURL string) ([]byte, error) {
	var out []byte
	for _, message := range r.state {
		of := ""
		var entries []byte
		err := each(message, func(n protowire.Number, v []byte) {
			switch n {
			case responseType:
				of = string(v)
			case responseResources: // Resource: 1 is the version, 3 the name
				var entry []byte
				_ = each(v, func(n protowire.Number, v []byte) { // the server has built it
					switch n {
					case 1:
						entry = appendBytes(entry, 2, v)
					case 3:
						entry = appendBytes(entry, 1, v)
					}
				})
				entries = appendBytes(entries, delta.initial, entry)
			}
		})
		if err != nil {
			return nil, err
		}
		if of == typeURL {
			out = append(out, entries...)
		}
	}
	return out, nil
}

// markPrefix begins an address that says which change a service has seen. No other address has it within.
const markPrefix = "109."

// mostMarks is how many there are, and mostServices how many services have addresses without such a prefix.
const (
	mostMarks    = 100 * 100 * 100
	mostServices = 100 * 100
)

func markAddress(mark int) string {
	return fmt.Sprintf("%s%d.%d.%d", markPrefix, mark/10000%100, mark/100%100, mark%100)
}

// findMark reads the mark in an encoded load assignment.
func findMark(b []byte) (mark int, ok bool) {
	for at := 1; ; at++ {
		i := bytes.Index(b[min(at, len(b)):], []byte(markPrefix))
		if i < 0 {
			return 0, false
		}
		at += i
		// The text's length comes before it. In a host's name, or elsewhere, it is no such address.
		if end := at + int(b[at-1]); end <= len(b) {
			if mark, ok := parseMark(b[at+len(markPrefix) : max(end, at+len(markPrefix))]); ok {
				return mark, true
			}
		}
	}
}

func parseMark(text []byte) (mark int, ok bool) {
	part, dots := 0, 0
	for _, c := range text {
		switch {
		case c == '.':
			mark, part, dots = 100*(mark+part), 0, dots+1
		case '0' <= c && c <= '9':
			part = 10*part + int(c-'0')
		default:
			return 0, false
		}
	}
	return mark + part, dots == 2
}

// names are the clusters' names of some services, in order.
func names(services int) []string {
	out := make([]string, services)
	for i := range out {
		out[i] = "outbound|80||" + hostOf(i)
	}
	slices.Sort(out)
	return out
}
