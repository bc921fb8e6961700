package consulreg

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
)

// How long an answer may take. To the wait of a blocking query Consul itself adds up to a sixteenth.
const (
	dialTimeout   = 5 * time.Second
	answerTimeout = 10 * time.Second
	// patientTimeout is for consistent reads: a server that replays its log answers them only when it is done.
	patientTimeout = 30 * time.Second
)

// query is a question to Consul.
type query struct {
	path        string        // as /v1/catalog/services
	index       uint64        // answer only when the index is another one than this; 0: at once
	wait        time.Duration // but not later than this
	consistency consistency
}

// consistency is how sure an answer must be.
// https://developer.hashicorp.com/consul/api-docs/features/consistency
type consistency uint8

const (
	usual      consistency = iota // by the leader, as far as it knows
	stale                         // by any server
	consistent                    // by the leader, which has made sure that it is the leader
)

// reply is an answer of Consul.
type reply struct {
	body      json.RawMessage
	index     uint64
	filtered  bool          // whether Consul says that it left out what the token may not see
	contact   time.Duration // since the answering server heard of its leader, of an answer that may be stale
	transport string        // how it came: HTTP/1.1 or HTTP/2.0, and the part of Consul that gave it
}

// link is the way to one datacenter's Consul. It asks at the address that answered last, and at the next one after a failure.
type link struct {
	to    Link
	limit int // of connections to one address
	gate  *gate

	requests    atomic.Uint64
	connections atomic.Int64

	mu      sync.Mutex
	known   string    // a token that Consul knows
	knownAt time.Time // when it last said so
	at      int       // in to.Addresses
	clients []*client
	retired []*client // whose TLS files have changed; their blocking queries go on
}

// client asks at one address.
type client struct {
	api       *api.Client
	transport *http.Transport
	proto     atomic.Pointer[string]
	files     string // what the TLS files looked like when it was made
}

func newLink(to Link, connections int) *link {
	return &link{to: to, limit: connections, gate: newGate(), clients: make([]*client, len(to.Addresses))}
}

// address is the one that is asked at present.
func (l *link) address() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Addresses[l.at]
}

// ask asks, and waits as long as the gate says before it does.
func (l *link) ask(ctx context.Context, q query) (reply, error) {
	var r reply
	err := l.pass(ctx, func(probe bool) (at int, err error) {
		if probe {
			q.index = 0 // all others wait for its answer, so that it must not sleep
		}
		r, at, err = l.once(ctx, q)
		return at, err
	})
	if err != nil {
		return reply{}, err
	}
	return r, nil
}

// pass has a question asked as soon as the gate lets it, and tells it and the link how that went.
func (l *link) pass(ctx context.Context, question func(probe bool) (at int, err error)) error {
	probe, err := l.gate.enter(ctx)
	if err != nil {
		return err
	}
	at, err := question(probe)
	if ctx.Err() != nil {
		l.gate.abandon(probe)
		return ctx.Err()
	}
	l.gate.leave(probe, err)
	if err != nil {
		l.avoid(at)
	}
	return err
}

// errSilent has no duration in it, which is not the same for all questions.
var errSilent = errors.New("nothing came in time")

// get asks at the current address.
func (l *link) get(ctx context.Context, path string, o api.QueryOptions, timeout time.Duration, out any) (_ *api.QueryMeta, c *client, at int, err error) {
	c, at, err = l.client()
	if err != nil {
		return nil, nil, at, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errSilent)
	defer cancel()
	l.requests.Add(1)
	meta, err := c.api.Raw().Query(path, out, o.WithContext(ctx))
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return meta, c, at, err
}

// once asks at the current address.
func (l *link) once(ctx context.Context, q query) (r reply, at int, err error) {
	timeout := answerTimeout
	switch {
	case q.consistency == consistent:
		timeout = patientTimeout
	case q.index > 0:
		timeout += q.wait + q.wait/16
	}
	o := api.QueryOptions{
		Datacenter: l.to.Datacenter, Namespace: l.to.Namespace, Partition: l.to.Partition,
		AllowStale: q.consistency == stale, RequireConsistent: q.consistency == consistent,
	}
	if q.index > 0 {
		o.WaitIndex, o.WaitTime = q.index, q.wait
	}
	meta, c, at, err := l.get(ctx, q.path, o, timeout, &r.body)
	if err != nil {
		return reply{}, at, err
	}
	if meta.LastIndex == 0 {
		// Consul never says 0; what does is a proxy on the way that takes headers out, or no Consul.
		return reply{}, at, errNoIndex
	}
	r.index, r.filtered, r.contact = meta.LastIndex, meta.ResultsFilteredByACLs, meta.LastContact
	if p := c.proto.Load(); p != nil {
		r.transport = strings.TrimSpace(*p + " " + meta.QueryBackend)
	}
	return r, at, nil
}

var errNoIndex = errors.New("the answer has no X-Consul-Index: this is no Consul, or something on the way takes the header out")

// identify makes sure that the token, if there is one, is known to Consul.
func (l *link) identify(ctx context.Context) error {
	token, err := l.token()
	if token == "" || err != nil {
		return err
	}
	l.mu.Lock()
	fresh := l.known == token && time.Since(l.knownAt) < identified
	l.mu.Unlock()
	if fresh {
		return nil
	}
	err = l.pass(ctx, func(bool) (int, error) {
		var self json.RawMessage
		_, _, at, err := l.get(ctx, "/v1/acl/token/self", api.QueryOptions{Datacenter: l.to.Datacenter}, answerTimeout, &self)
		if refusal := new(api.StatusError); errors.As(err, refusal) && refusal.Code == http.StatusUnauthorized {
			err = nil // ACLs are switched off, and nothing is hidden from anybody
		}
		return at, err
	})
	if err == nil {
		l.mu.Lock()
		l.known, l.knownAt = token, time.Now()
		l.mu.Unlock()
	}
	return err
}

// identified is for how long a token that Consul knew is taken to be known.
const identified = time.Second

// home is the datacenter of the agent; empty if the token may not know.
func (l *link) home(ctx context.Context) (string, error) {
	var self struct{ Config struct{ Datacenter string } }
	err := l.pass(ctx, func(bool) (int, error) {
		_, _, at, err := l.get(ctx, "/v1/agent/self", api.QueryOptions{}, answerTimeout, &self)
		if refusal := new(api.StatusError); errors.As(err, refusal) && refusal.Code == http.StatusForbidden {
			err = nil
		}
		return at, err
	})
	return self.Config.Datacenter, err
}

// avoid goes on to the address after the one that failed.
func (l *link) avoid(failed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == failed {
		l.at = (failed + 1) % len(l.to.Addresses)
	}
}

// client is the one for the current address. It is made anew if its TLS files have changed.
func (l *link) client() (c *client, at int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	files := l.to.TLS.looks()
	if c = l.clients[l.at]; c != nil && c.files == files {
		return c, l.at, nil
	}
	is, err := l.dial(l.to.Addresses[l.at])
	if err != nil {
		return nil, l.at, ownError{fmt.Errorf("set up the connection: %w", err)}
	}
	if c != nil {
		c.transport.CloseIdleConnections()
		l.retired = append(l.retired[max(0, len(l.retired)-mostRetired+1):], c)
	}
	is.files = files
	l.clients[l.at] = is
	return is, l.at, nil
}

// mostRetired is how many clients are remembered whose files have changed. Of older ones all queries have ended long ago.
const mostRetired = 8

// ownError is one that no Consul can do anything about: files that meshd itself needs to ask.
type ownError struct{ error }

func (e ownError) Unwrap() error { return e.error }

// close lets go of connections that nobody uses.
func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range append(l.retired, l.clients...) {
		if c != nil {
			c.transport.CloseIdleConnections()
		}
	}
}

// dial makes the client for an address. It connects when it is used.
func (l *link) dial(address string) (*client, error) {
	t := l.to.TLS
	config, err := api.SetupTLSConfig(&api.TLSConfig{
		Address: t.ServerName, CAFile: t.CAFile, CAPath: t.CAPath, CertFile: t.CertFile, KeyFile: t.KeyFile, InsecureSkipVerify: t.InsecureSkipVerify,
	})
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}
	network := func(ctx context.Context, _, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	}
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "unix", path) }
		address = "localhost"
	}
	address = strings.TrimRight(address, "/") // or the paths of requests begin with two
	c := &client{transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, a, b string) (net.Conn, error) {
			conn, err := network(ctx, a, b)
			if err != nil {
				return nil, err
			}
			l.connections.Add(1)
			return &countedConn{Conn: conn, counter: &l.connections}, nil
		},
		TLSClientConfig:     withProtocols(config),
		TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2:   true,
		MaxConnsPerHost:     l.limit,
		MaxIdleConnsPerHost: l.limit,
		IdleConnTimeout:     90 * time.Second,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}}
	o := &api.Config{
		Address: address, Scheme: "http", Token: "in the transport", // so that the library looks for none in the environment
		HttpClient: &http.Client{Transport: &authenticated{link: l, client: c}},
	}
	if l.to.Username != "" {
		o.HttpAuth = &api.HttpBasicAuth{Username: l.to.Username, Password: l.to.Password}
	}
	if c.api, err = api.NewClient(o); err != nil {
		return nil, err
	}
	return c, nil
}

func withProtocols(c *tls.Config) *tls.Config {
	c.NextProtos = []string{"h2", "http/1.1"}
	return c
}

// authenticated gives each request the token of the moment, and notes how the answer came.
type authenticated struct {
	link   *link
	client *client
}

func (a *authenticated) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := a.link.token()
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.URL.RawQuery = a.link.onlyOurs(r.URL.Query())
	r.Header.Del("X-Consul-Token")
	if token != "" {
		r.Header.Set("X-Consul-Token", token)
	}
	resp, err := a.client.transport.RoundTrip(r)
	if err == nil {
		if p := a.client.proto.Load(); p == nil || *p != resp.Proto {
			a.client.proto.Store(&resp.Proto)
		}
	}
	return resp, err
}

// onlyOurs takes out of a request what the library has taken from variables of the environment: a namespace and a partition, where
// the options say none.
func (l *link) onlyOurs(parameters url.Values) string {
	if l.to.Namespace == "" {
		parameters.Del("ns")
	}
	if l.to.Partition == "" {
		parameters.Del("partition")
	}
	return parameters.Encode()
}

// token is that of the file, if one is named, as it is now.
func (l *link) token() (string, error) {
	if l.to.TokenFile == "" {
		return l.to.Token, nil
	}
	data, err := os.ReadFile(l.to.TokenFile)
	if err != nil {
		return "", ownError{fmt.Errorf("read the token: %w", err)}
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", ownError{fmt.Errorf("read the token: %s is empty", l.to.TokenFile)}
	}
	return token, nil
}

// looks tells of the files whether they are other ones than before.
func (t TLS) looks() string {
	var b strings.Builder
	for _, name := range []string{t.CAFile, t.CAPath, t.CertFile, t.KeyFile} {
		if name == "" {
			continue
		}
		if info, err := os.Stat(name); err == nil {
			fmt.Fprintln(&b, name, info.Size(), info.ModTime().UnixNano())
		}
	}
	return b.String()
}

// countedConn is a connection that is counted as long as it is open.
type countedConn struct {
	net.Conn
	once    sync.Once
	counter *atomic.Int64
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.counter.Add(-1) })
	return c.Conn.Close()
}

// The codes of the problems of a Consul that does not answer as it should.
const (
	CodeDenied      = "consul-denied"
	CodeThrottled   = "consul-throttled"
	CodeUnreachable = "consul-unreachable"
)

// failure is what the operator is told of an error of a link: the code of a problem, what has happened in words that do not
// change while it goes on, and what to do.
func (l *link) failure(err error) (code, message string) {
	if refusal := new(api.StatusError); errors.As(err, refusal) {
		said := short(refusal.Body)
		switch {
		case refusal.Code == http.StatusForbidden || refusal.Code == http.StatusUnauthorized:
			return CodeDenied, fmt.Sprintf("refuses the request: %s; give a token that may read services and nodes (service_prefix \"\" and node_prefix \"\" with policy read), by token or token-file", said)
		case refusal.Code == http.StatusTooManyRequests:
			return CodeThrottled, fmt.Sprintf("says that there are too many requests or connections: %s; raise limits.http_max_conns_per_client of the agent, or lower the setting connections", said)
		case strings.Contains(said, "No path to datacenter"):
			return CodeUnreachable, fmt.Sprintf("knows no way to the datacenter %q: correct its name, or see to it that its servers are joined (consul members -wan)", l.to.Datacenter)
		case refusal.Code >= 500:
			return CodeUnreachable, fmt.Sprintf("fails: %s; see to it that its servers run and have a leader (consul operator raft list-peers)", said)
		}
		return CodeUnreachable, fmt.Sprintf("does not take the request: %d %s; correct its address, or what else is asked for", refusal.Code, said)
	}
	if own := (ownError{}); errors.As(err, &own) {
		return CodeUnreachable, fmt.Sprintf("cannot be asked: %s; correct that file, or the setting that names it", own)
	}
	remedy := "see to it that it runs and can be reached, or correct its address"
	certificate, syntax, content := (*tls.CertificateVerificationError)(nil), (*json.SyntaxError)(nil), (*json.UnmarshalTypeError)(nil)
	switch {
	case errors.Is(err, errNoIndex):
		remedy = "correct its address"
	case errors.As(err, &syntax), errors.As(err, &content):
		return CodeUnreachable, "does not answer: what came is not what Consul says; correct its address"
	case errors.As(err, &certificate):
		remedy = "name the CA of its certificate by tls.ca-file, or correct its address or tls.server-name"
	}
	return CodeUnreachable, fmt.Sprintf("does not answer: %s; %s", reason(err), remedy)
}

// reason is the cause of an error, without what is never the same: ports, URLs, times.
func reason(err error) string {
	if broken := new(url.Error); errors.As(err, &broken) {
		err = broken.Err
	}
	if unknown := new(net.DNSError); errors.As(err, &unknown) {
		switch {
		case unknown.IsNotFound:
			return fmt.Sprintf("there is no host %s", unknown.Name)
		case unknown.IsTimeout:
			return fmt.Sprintf("the address of %s cannot be looked up: no answer", unknown.Name)
		}
		return short(fmt.Sprintf("the address of %s cannot be looked up: %s", unknown.Name, unknown.Err))
	}
	if expired := new(x509.CertificateInvalidError); errors.As(err, expired) && expired.Reason == x509.Expired {
		return fmt.Sprintf("its certificate is valid from %s to %s only",
			expired.Cert.NotBefore.UTC().Format(time.DateTime), expired.Cert.NotAfter.UTC().Format(time.DateTime))
	}
	if broken := new(net.OpError); errors.As(err, &broken) {
		if broken.Op == "dial" && broken.Addr != nil {
			return broken.Addr.String() + ": " + broken.Err.Error()
		}
		err = broken.Err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the connection was closed"
	}
	return short(err.Error())
}

// fleeting is what is another one each time in what Consul and the Go library say: the own end of a connection, the number of a stream.
var fleeting = regexp.MustCompile(`\S+:\d+->|stream ID \d+; |LastStreamID=\d+, `)

// short is what somebody said, in one line that is not too long, and the same one if it is said again.
func short(said string) string {
	const most = 200
	said = strings.Join(strings.Fields(fleeting.ReplaceAllString(said, "")), " ")
	if runes := []rune(said); len(runes) > most {
		return string(runes[:most]) + " ..."
	}
	return said
}
