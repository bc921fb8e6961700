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
	"syscall"
	"time"

	"github.com/hashicorp/consul/api"
)

// times are how long a link waits.
type times struct {
	dial   time.Duration
	answer time.Duration // to the wait of a blocking query Consul itself adds up to a sixteenth
	// patient is for consistent reads: a server that replays its log answers them only when it is done.
	patient time.Duration
	// The waits of blocking queries. A restore of an older state wakes none that waits for a newer one, and nobody tells when a token
	// sees more: the few queries that watch all wait for list, and for short where something is hidden. Those of single
	// services, which may be thousands, wait for longest over HTTP/2, which finds dead paths by itself, and for long where something is hidden.
	list, short, longest, long time.Duration
	ping, pong                 time.Duration // of silence on an HTTP/2 connection until it is tried, and then until it is given up
}

// usualTimes are the times but in tests.
var usualTimes = times{
	dial: 5 * time.Second, answer: 10 * time.Second, patient: 30 * time.Second,
	list: 15 * time.Second, short: 5 * time.Second, longest: 5 * time.Minute, long: time.Minute, ping: 15 * time.Second, pong: 10 * time.Second,
}

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
	times times
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
	return &link{to: to, limit: connections, times: usualTimes, gate: newGate(), clients: make([]*client, len(to.Addresses))}
}

// address is the one that is asked at present.
func (l *link) address() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Addresses[l.at]
}

// ask asks, and waits as long as the gate says before it does.
func (l *link) ask(ctx context.Context, q query) (reply, error) {
	probe, err := l.gate.enter(ctx)
	if err != nil {
		return reply{}, err
	}
	if probe {
		q.index = 0 // all others wait for its answer, so that it must not sleep
	}
	r, at, err := l.once(ctx, q)
	if ctx.Err() != nil {
		l.gate.abandon(probe)
		return reply{}, ctx.Err()
	}
	l.gate.leave(probe, err)
	if err != nil {
		l.avoid(at)
	}
	return r, err
}

// inquire asks for what is not of the catalog. The gate lets it wait as well, but an answer opens it for nobody: an agent that has
// lost its servers may have one.
func (l *link) inquire(ctx context.Context, path string, o api.QueryOptions, out any) error {
	probe, err := l.gate.enter(ctx)
	if err != nil {
		return err
	}
	_, _, at, err := l.get(ctx, path, o, l.times.answer, out)
	refusal := new(api.StatusError)
	if err == nil || ctx.Err() != nil || errors.As(err, refusal) && refusal.Code < 500 {
		l.gate.abandon(probe)
		return err
	}
	l.gate.leave(probe, err)
	l.avoid(at)
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
	timeout := l.times.answer
	switch {
	case q.consistency == consistent:
		timeout = l.times.patient
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
	var self json.RawMessage
	err = l.inquire(ctx, "/v1/acl/token/self", api.QueryOptions{Datacenter: l.to.Datacenter}, &self)
	if refusal := new(api.StatusError); errors.As(err, refusal) && refusal.Code == http.StatusUnauthorized {
		err = nil // ACLs are switched off, and nothing is hidden from anybody
	}
	if err == nil {
		l.mu.Lock()
		l.known, l.knownAt = token, time.Now()
		l.mu.Unlock()
	}
	return err
}

// identified is for how long a token that Consul knew is taken to be known.
const identified = time.Second

// home is the datacenter of the agent; empty if the token may not know. What the agent says of itself takes a right of its own;
// where its servers are says the same.
func (l *link) home(ctx context.Context) (string, error) {
	var self struct{ Config struct{ Datacenter string } }
	err := l.inquire(ctx, "/v1/agent/self", api.QueryOptions{}, &self)
	if refusal := new(api.StatusError); !errors.As(err, refusal) || refusal.Code != http.StatusForbidden {
		return self.Config.Datacenter, err
	}
	var servers []struct{ Node struct{ Datacenter string } }
	err = l.inquire(ctx, instancesPath+consulService, api.QueryOptions{}, &servers)
	if len(servers) == 0 {
		return "", err
	}
	return servers[0].Node.Datacenter, nil
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
	config.NextProtos = []string{"h2", "http/1.1"}
	dialer := &net.Dialer{Timeout: l.times.dial, KeepAlive: 15 * time.Second}
	network := func(ctx context.Context, _, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	}
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "unix", path) }
		address = "localhost"
	}
	address = strings.TrimRight(address, "/") // or the paths of requests begin with two
	// The transport counts connections as well, but not those that it has found to be one too many over HTTP/2 and is about to close.
	slots := make(chan struct{}, l.limit)
	c := &client{transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, a, b string) (net.Conn, error) {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			conn, err := network(ctx, a, b)
			if err != nil {
				<-slots
				return nil, err
			}
			l.connections.Add(1)
			return &countedConn{Conn: conn, closed: func() { l.connections.Add(-1); <-slots }}, nil
		},
		TLSClientConfig:     config,
		TLSHandshakeTimeout: l.times.dial,
		ForceAttemptHTTP2:   true,
		MaxConnsPerHost:     l.limit,
		MaxIdleConnsPerHost: l.limit,
		IdleConnTimeout:     30 * time.Second,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: l.times.ping, PingTimeout: l.times.pong},
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
	r.URL.RawPath = escaped(r.URL.Path)
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

// escaped is a path in which the name of a service is one part, whatever is in it. The library leaves "/" and ".." as they are, which
// would be other paths.
func escaped(path string) string {
	at := strings.Index(path, instancesPath)
	if at < 0 {
		return ""
	}
	at += len(instancesPath)
	name := url.PathEscape(path[at:])
	if strings.Trim(name, ".") == "" {
		name = strings.ReplaceAll(name, ".", "%2E")
	}
	return (&url.URL{Path: path[:at]}).EscapedPath() + name
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
	once   sync.Once
	closed func()
}

func (c *countedConn) Close() error {
	defer c.once.Do(c.closed)
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
			return CodeDenied, fmt.Sprintf("refuses the request: %s; give a token that may read services and nodes (%s), by token or token-file", said, readAll)
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
	case strings.Contains(err.Error(), "tls: certificate required"), strings.Contains(err.Error(), "tls: bad certificate"),
		strings.Contains(err.Error(), "client conn could not be established"), // this is HTTP/2's word for it
		// The request may be written before the refusal is read, which then is lost.
		l.to.TLS.CertFile == "" && strings.HasPrefix(l.address(), "https:") && (errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)):
		return CodeUnreachable, "does not answer: it closes connections, as one does that wants to know its clients; name a certificate by tls.cert-file and tls.key-file, or correct its address"
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
