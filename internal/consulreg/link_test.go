package consulreg

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/meshd/meshd/internal/consultest"
)

// well answers as a Consul that has nothing but itself.
func well(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-Consul-Index", "7")
	w.Header().Set("X-Consul-LastContact", "3")
	_, _ = io.WriteString(w, `{"consul":[]}`)
}

// says answers with a status and a body.
func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Consul-Index", "7")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// quiet is for servers whose clients go away.
var quiet = log.New(io.Discard, "", 0)

// server serves until the test ends.
func server(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = quiet
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// linked is a link that is closed when the test ends.
func linked(t *testing.T, to Link) *link {
	t.Helper()
	l := newLink(Options{Link: to}.withDefaults().Link, 20)
	t.Cleanup(l.close)
	return l
}

// try asks for the list of services, without the pause that there is after a failure.
func (l *link) try(t *testing.T) (reply, error) {
	t.Helper()
	l.gate = newGate()
	return l.ask(t.Context(), query{path: servicesPath})
}

// list asks for the list of services, which must go well.
func (l *link) list(t *testing.T) reply {
	t.Helper()
	r, err := l.try(t)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// requests keeps what a server was asked.
type requests struct {
	mu  sync.Mutex
	all []*http.Request
}

func (r *requests) serve(w http.ResponseWriter, is *http.Request) {
	r.mu.Lock()
	r.all = append(r.all, is)
	r.mu.Unlock()
	well(w, is)
}

func (r *requests) last() *http.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[len(r.all)-1]
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAsk(t *testing.T) {
	var seen requests
	s := server(t, seen.serve)
	l := linked(t, Link{Addresses: []string{s.URL}, Datacenter: "dc2", Namespace: "team", Partition: "west"})
	r, err := l.ask(t.Context(), query{path: "/v1/health/service/a", index: 5, wait: 90 * time.Second, consistency: stale})
	if err != nil {
		t.Fatal(err)
	}
	if string(r.body) != `{"consul":[]}` || r.index != 7 || r.contact != 3*time.Millisecond || r.filtered || r.transport != "HTTP/1.1" {
		t.Errorf("the answer is %s %+v", r.body, r)
	}
	want := url.Values{"dc": {"dc2"}, "ns": {"team"}, "partition": {"west"}, "index": {"5"}, "wait": {"90000ms"}, "stale": {""}}
	if d := cmp.Diff(want, seen.last().URL.Query()); d != "" || seen.last().URL.Path != "/v1/health/service/a" {
		t.Errorf("it asked for %s (-want +got):\n%s", seen.last().URL, d)
	}
	if _, err := l.ask(t.Context(), query{path: servicesPath, consistency: consistent}); err != nil {
		t.Fatal(err)
	}
	if q := seen.last().URL.Query(); !q.Has("consistent") || q.Has("stale") || q.Has("index") || q.Has("wait") {
		t.Errorf("it asked for %s", seen.last().URL)
	}
	if n := l.requests.Load(); n != 2 {
		t.Errorf("it counts %d requests", n)
	}
}

// TestAProbeDoesNotSleep has a question that would wait for a change, after a failure.
func TestAProbeDoesNotSleep(t *testing.T) {
	var seen requests
	l := linked(t, Link{Addresses: []string{server(t, seen.serve).URL}})
	l.gate.leave(false, errSick)
	if _, err := l.ask(t.Context(), query{path: servicesPath, index: 5, wait: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if seen.last().URL.Query().Has("index") {
		t.Errorf("it asked for %s", seen.last().URL)
	}
}

func TestTheToken(t *testing.T) {
	var seen requests
	address := []string{server(t, seen.serve).URL}
	sent := func(l *link) string { l.list(t); return seen.last().Header.Get("X-Consul-Token") }

	if got := sent(linked(t, Link{Addresses: address})); got != "" || len(seen.last().Header.Values("X-Consul-Token")) > 0 {
		t.Errorf("without one, it sent %q", got)
	}
	if got := sent(linked(t, Link{Addresses: address, Token: "one"})); got != "one" {
		t.Errorf("it sent %q", got)
	}

	file := filepath.Join(t.TempDir(), "token")
	l := linked(t, Link{Addresses: address, Token: "one", TokenFile: file})
	fails := func(want string) {
		t.Helper()
		before := l.requests.Load()
		for range 2 {
			_, err := l.try(t)
			if code, message := l.failure(err); code != CodeUnreachable || message != want {
				t.Errorf("%s: %s\nwant %s", code, message, want)
			}
		}
		if _, err := l.try(t); err == nil || len(seen.all) == 0 {
			t.Errorf("of %d requests the error is %v", l.requests.Load()-before, err)
		}
		if err := l.identify(t.Context()); err == nil {
			t.Error("it has identified itself")
		}
	}
	fails("cannot be asked: read the token: open " + file + ": no such file or directory; correct that file, or the setting that names it")
	put(t, file, " \n")
	fails("cannot be asked: read the token: " + file + " is empty; correct that file, or the setting that names it")
	put(t, file, " two\n")
	if got := sent(l); got != "two" {
		t.Errorf("of the file it sent %q", got)
	}
	put(t, file, "three")
	if got := sent(l); got != "three" {
		t.Errorf("after a change it sent %q", got)
	}
}

// TestIdentify asks whether the token is known.
func TestIdentify(t *testing.T) {
	var asked atomic.Int64
	status := http.StatusOK
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/acl/token/self" || r.Header.Get("X-Consul-Token") != "one" {
			t.Errorf("it asked for %s with %q", r.URL, r.Header)
		}
		asked.Add(1)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{}`)
	})
	link := func() *link { return linked(t, Link{Addresses: []string{s.URL}, Token: "one"}) }
	if err := linked(t, Link{Addresses: []string{s.URL}}).identify(t.Context()); err != nil || asked.Load() > 0 {
		t.Errorf("without a token it asks %d times, %v", asked.Load(), err)
	}
	for is, ok := range map[int]bool{200: true, 401: true, 403: false, 404: false, 500: false} {
		status = is
		if err := link().identify(t.Context()); (err == nil) != ok {
			t.Errorf("of %d the error is %v", is, err)
		}
	}
	status = http.StatusOK
	l := link()
	asked.Store(0)
	for range 3 {
		if err := l.identify(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("in a row it asks %d times, want once", n)
	}
	l.gate.leave(false, errSick)
	l.knownAt = time.Time{}
	if err := l.identify(t.Context()); err != nil || l.gate.failures == 0 {
		t.Errorf("%v; that the token is known opens the gate", err)
	}
}

func TestHome(t *testing.T) {
	for _, tt := range []struct {
		name string
		h    http.HandlerFunc
		want string
		ok   bool
	}{
		{"it is told", says(200, `{"Config": {"Datacenter": "dc1"}, "Member": {}}`), "dc1", true},
		{"its servers tell", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/agent/self" {
				says(403, "Permission denied")(w, r)
			} else {
				says(200, `[{"Node": {"Datacenter": "dc1"}}]`)(w, r)
			}
		}, "dc1", true},
		{"it may not know", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/agent/self" {
				says(403, "Permission denied")(w, r)
			} else {
				says(200, `[]`)(w, r)
			}
		}, "", true},
		{"it fails", says(500, "No cluster leader"), "", false},
		{"it is something else", says(200, "<html>"), "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := linked(t, Link{Addresses: []string{server(t, tt.h).URL}, Datacenter: "dc2"})
			if got, err := l.home(t.Context()); got != tt.want || (err == nil) != tt.ok {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

func TestTheNextAddressIsAskedAfterAFailure(t *testing.T) {
	var ill [2]atomic.Bool
	var addresses []string
	for i := range ill {
		addresses = append(addresses, server(t, func(w http.ResponseWriter, r *http.Request) {
			if ill[i].Load() {
				says(500, "No cluster leader")(w, r)
				return
			}
			well(w, r)
		}).URL)
	}
	l := linked(t, Link{Addresses: append(addresses, "http://127.0.0.1:1")}) // where nobody is
	expect := func(what string, ok bool, next int) {
		t.Helper()
		if _, err := l.try(t); (err == nil) != ok {
			t.Errorf("%s: %v", what, err)
		}
		if want := l.to.Addresses[next]; l.address() != want {
			t.Errorf("%s: then it asks %s, want %s", what, l.address(), want)
		}
	}
	expect("the first is well", true, 0)
	ill[0].Store(true)
	expect("the first fails", false, 1)
	expect("the second is well", true, 1)
	ill[0].Store(false)
	expect("the second is well although the first is too", true, 1)
	ill[1].Store(true)
	expect("the second fails", false, 2)
	expect("the third is not there", false, 0)
	expect("the first is well again", true, 0)

	l.avoid(2)
	if l.address() != addresses[0] {
		t.Error("the failure of another address made it go on")
	}
}

// authority is a CA.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{}
	a.cert, a.key, a.pem, _ = issue(t, nil, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	return a
}

// server is a certificate for 127.0.0.1 and localhost.
func (a *authority) server(t *testing.T, until time.Time) *tls.Certificate {
	t.Helper()
	_, _, cert, key := issue(t, a, &x509.Certificate{
		NotAfter: until, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return &pair
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

var serial atomic.Int64

func issue(t *testing.T, by *authority, c *x509.Certificate) (_ *x509.Certificate, _ *ecdsa.PrivateKey, certPEM, keyPEM string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore = big.NewInt(serial.Add(1)), time.Now().Add(-time.Hour)
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	if by == nil {
		by = &authority{cert: c, key: key}
	}
	der, err1 := x509.CreateCertificate(rand.Reader, c, by.cert, key.Public(), by.key)
	keyDER, err2 := x509.MarshalPKCS8PrivateKey(key)
	is, err3 := x509.ParseCertificate(der)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return is, key, text("CERTIFICATE", der), text("PRIVATE KEY", keyDER)
}

// secure serves HTTPS and HTTP/2 with the certificate of the moment.
func secure(t *testing.T, h http.HandlerFunc, c *tls.Config) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.TLS, s.EnableHTTP2 = c, true
	s.Config.ErrorLog = quiet
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// TestTLS has servers and clients that know each other, and such that do not.
func TestTLS(t *testing.T) {
	ours, others := newAuthority(t, "ours"), newAuthority(t, "others")
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		put(t, name, text)
		return name
	}
	ca, other := file("ca.pem", ours.pem), file("other.pem", others.pem)
	_, _, cert, key := issue(t, ours, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	certFile, keyFile := file("cert.pem", cert), file("key.pem", key)
	_, _, _, strange := issue(t, ours, &x509.Certificate{})
	strangeFile := file("strange.pem", strange)
	folder := t.TempDir()
	put(t, filepath.Join(folder, "ca.pem"), ours.pem)

	pair := ours.server(t, time.Now().Add(time.Hour))
	plain := &tls.Config{Certificates: []tls.Certificate{*pair}}
	mutual := &tls.Config{Certificates: []tls.Certificate{*pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ours.pool()}
	past := time.Now().Add(-time.Minute)
	expired := &tls.Config{Certificates: []tls.Certificate{*ours.server(t, past)}}
	const name = "name the CA of its certificate by tls.ca-file, or correct its address or tls.server-name"
	for _, tt := range []struct {
		name   string
		server *tls.Config
		tls    TLS
		want   string // what it tells of the failure; empty: there is none
	}{
		{"the CA of a file", plain, TLS{CAFile: ca}, ""},
		{"the CAs of a folder", plain, TLS{CAPath: folder}, ""},
		{"the name of the certificate", plain, TLS{CAFile: ca, ServerName: "localhost"}, ""},
		{"whoever it is", plain, TLS{InsecureSkipVerify: true}, ""},
		{"a client that shows a certificate", mutual, TLS{CAFile: ca, CertFile: certFile, KeyFile: keyFile}, ""},
		{"no CA", plain, TLS{}, "does not answer: tls: failed to verify certificate: x509: certificate signed by unknown authority; " + name},
		{"the wrong CA", plain, TLS{CAFile: other}, "does not answer: tls: failed to verify certificate: x509: certificate signed by unknown authority; " + name},
		{"the wrong name", plain, TLS{CAFile: ca, ServerName: "elsewhere"}, "does not answer: tls: failed to verify certificate: x509: certificate is valid for localhost, not elsewhere; " + name},
		{"a client that shows none", mutual, TLS{CAFile: ca}, "does not answer: it closes connections, as one does that wants to know its clients; name a certificate by tls.cert-file and tls.key-file, or correct its address"},
		{"a certificate that has expired", expired, TLS{CAFile: ca}, "does not answer: its certificate is valid from "},
		{"no such CA", plain, TLS{CAFile: filepath.Join(dir, "none.pem")}, "cannot be asked: set up the connection: Error loading CA File: open " + filepath.Join(dir, "none.pem") + ": no such file or directory; correct that file, or the setting that names it"},
		{"a certificate without a key", plain, TLS{CertFile: certFile}, "cannot be asked: set up the connection: both client cert and client key must be provided; correct that file, or the setting that names it"},
		{"a certificate with another's key", plain, TLS{CertFile: certFile, KeyFile: strangeFile}, "cannot be asked: set up the connection: tls: private key does not match public key; correct that file, or the setting that names it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := linked(t, Link{Addresses: []string{secure(t, well, tt.server.Clone()).URL}, TLS: tt.tls})
			if tt.want == "" {
				if r := l.list(t); r.transport != "HTTP/2.0" {
					t.Errorf("it came by %s", r.transport)
				}
				return
			}
			stable(t, l, CodeUnreachable, tt.want)
		})
	}
}

// stable sees to it that a link fails, and says the same of it each time.
func stable(t *testing.T, l *link, code, want string) {
	t.Helper()
	var first string
	for n := range 3 {
		_, err := l.try(t)
		if err == nil {
			t.Fatal("there is no error")
		}
		is, message := l.failure(err)
		if n == 0 {
			first = message
		}
		if is != code || !strings.HasPrefix(message, want) || message != first {
			t.Fatalf("failure %d is %s: %s\nwant %s: %s", n, is, message, code, want)
		}
		if n == 1 {
			<-time.After(time.Millisecond) // so that what tells the time tells another one
		}
	}
}

// TestCertificatesChangeWhileItRuns has a server with a certificate of another CA, and then a client that is told.
func TestCertificatesChangeWhileItRuns(t *testing.T) {
	one, two := newAuthority(t, "one"), newAuthority(t, "two")
	var current atomic.Pointer[tls.Certificate]
	current.Store(one.server(t, time.Time{}))
	release := make(chan struct{})
	s := secure(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("index") {
			<-release
		}
		well(w, r)
	}, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*current.Load()}, NextProtos: []string{"h2", "http/1.1"}}, nil
	}})
	ca := filepath.Join(t.TempDir(), "ca.pem")
	put(t, ca, one.pem)
	l := linked(t, Link{Addresses: []string{s.URL}, TLS: TLS{CAFile: ca}})
	l.list(t)

	s.CloseClientConnections()
	current.Store(two.server(t, time.Time{}))
	if _, err := l.try(t); err == nil {
		t.Fatal("it trusts the new certificate")
	}
	put(t, ca, one.pem+two.pem)
	l.list(t)

	// A blocking query sleeps on by the connection that it has.
	ctx, cancel := context.WithCancel(t.Context())
	slept := make(chan error)
	asleep := l.requests.Load()
	go func() {
		_, err := l.ask(ctx, query{path: servicesPath, index: 7, wait: time.Minute})
		slept <- err
	}()
	for l.requests.Load() == asleep {
		time.Sleep(time.Millisecond) // a counter tells nobody
	}
	put(t, ca, two.pem)
	l.list(t)
	if got := l.connections.Load(); got != 2 && got != 1 {
		t.Errorf("there are %d connections, want the old one and the new one", got)
	}
	cancel()
	if err := <-slept; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(release)
	l.close()
	// A counter tells nobody.
	for deadline := time.Now().Add(10 * time.Second); l.connections.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are left", l.connections.Load())
		}
		l.close() // a stream that was cancelled ends a little later
	}
}

// TestAClientsCertificateChangesWhileItRuns has a server that looks at it.
func TestAClientsCertificateChangesWhileItRuns(t *testing.T) {
	ours := newAuthority(t, "ours")
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	put(t, ca, ours.pem)
	renew := func() *big.Int {
		is, _, c, k := issue(t, ours, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		put(t, cert, c)
		put(t, key, k)
		return is.SerialNumber
	}
	var shown atomic.Pointer[big.Int]
	s := secure(t, func(w http.ResponseWriter, r *http.Request) {
		shown.Store(r.TLS.PeerCertificates[0].SerialNumber)
		well(w, r)
	}, &tls.Config{Certificates: []tls.Certificate{*ours.server(t, time.Time{})}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ours.pool()})
	l := linked(t, Link{Addresses: []string{s.URL}, TLS: TLS{CAFile: ca, CertFile: cert, KeyFile: key}})
	for range 12 {
		want := renew()
		l.list(t)
		if got := shown.Load(); got.Cmp(want) != 0 {
			t.Errorf("it shows certificate %s, want %s", got, want)
		}
	}
	if n := len(l.retired); n > mostRetired {
		t.Errorf("it remembers %d clients", n)
	}
}

func TestAUnixSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "meshd") // a path that is short enough
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "consul.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var seen requests
	s := httptest.NewUnstartedServer(http.HandlerFunc(seen.serve))
	s.Listener.Close()
	s.Listener = listener
	s.Start()
	t.Cleanup(s.Close)
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	l := linked(t, Link{Addresses: []string{"unix://" + path}})
	l.list(t)
	if seen.last().Host != "localhost" || l.address() != "unix://"+path {
		t.Errorf("it asked %q at %s", seen.last().Host, l.address())
	}
	s.Close()
	stable(t, l, CodeUnreachable, "does not answer: "+path+": connect: ")
}

func TestBasicAuthentication(t *testing.T) {
	var seen requests
	l := linked(t, Link{Addresses: []string{server(t, seen.serve).URL}, Username: "me", Password: "p:w", Token: "one"})
	l.list(t)
	if user, password, ok := seen.last().BasicAuth(); user != "me" || password != "p:w" || !ok || seen.last().Header.Get("X-Consul-Token") != "one" {
		t.Errorf("it sent %q", seen.last().Header)
	}
}

func TestAnAddressMayHaveAPath(t *testing.T) {
	var seen requests
	s := server(t, seen.serve)
	at := strings.TrimPrefix(s.URL, "http://")
	for address, want := range map[string]string{
		at: "/v1/catalog/services", s.URL: "/v1/catalog/services", s.URL + "/": "/v1/catalog/services",
		s.URL + "/consul": "/consul/v1/catalog/services", s.URL + "/a/b/": "/a/b/v1/catalog/services",
	} {
		linked(t, Link{Addresses: []string{address}}).list(t)
		if got := seen.last().URL.Path; got != want {
			t.Errorf("at %s it asks for %s, want %s", address, got, want)
		}
	}
}

// TestTheEnvironmentDoesNotMatter sets all the variables that the library reads.
func TestTheEnvironmentDoesNotMatter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	put(t, file, "of the file in the environment")
	for name, value := range map[string]string{
		api.HTTPAddrEnvName: "127.0.0.1:1", api.HTTPTokenEnvName: "of the environment", api.HTTPTokenFileEnvName: file, api.HTTPAuthEnvName: "some:body",
		api.HTTPSSLEnvName: "true", api.HTTPCAFile: "/nowhere", api.HTTPCAPath: "/nowhere", api.HTTPClientCert: "/nowhere", api.HTTPClientKey: "/nowhere",
		api.HTTPTLSServerName: "elsewhere", api.HTTPSSLVerifyEnvName: "false", api.HTTPNamespaceEnvName: "theirs", api.HTTPPartitionEnvName: "theirs",
	} {
		t.Setenv(name, value)
	}
	var seen requests
	s := server(t, seen.serve)
	for _, address := range []string{s.URL, strings.TrimPrefix(s.URL, "http://")} {
		l := linked(t, Link{Addresses: []string{address}})
		l.list(t)
		if r := seen.last(); r.URL.RawQuery != "" || len(r.Header.Values("X-Consul-Token"))+len(r.Header.Values("Authorization")) > 0 {
			t.Errorf("it asked for %s with %v", r.URL, r.Header)
		}
		if _, err := l.home(t.Context()); err != nil || seen.last().URL.RawQuery != "" {
			t.Errorf("%v; it asked for %s", err, seen.last().URL)
		}
	}
	l := linked(t, Link{Addresses: []string{s.URL}, Namespace: "ours", Partition: "our own", Token: "ours"})
	l.list(t)
	if r := seen.last(); r.URL.RawQuery != "ns=ours&partition=our+own" || r.Header.Get("X-Consul-Token") != "ours" {
		t.Errorf("it asked for %s with %v", r.URL, r.Header)
	}

	ours := newAuthority(t, "ours")
	secured := secure(t, seen.serve, &tls.Config{Certificates: []tls.Certificate{*ours.server(t, time.Time{})}})
	if _, err := linked(t, Link{Addresses: []string{secured.URL}}).try(t); err == nil {
		t.Error("it trusts a server that it does not know")
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	put(t, ca, ours.pem)
	linked(t, Link{Addresses: []string{secured.URL}, TLS: TLS{CAFile: ca}}).list(t)
}

// TestFailures has Consuls, and what is none, that fail. What is told of it is the same at the next try.
func TestFailures(t *testing.T) {
	const (
		remedy = "; see to it that it runs and can be reached, or correct its address"
		leader = "; see to it that its servers run and have a leader (consul operator raft list-peers)"
		token  = `; give a token that may read services and nodes (service_prefix "" and node_prefix "" with policy read), by token or token-file`
	)
	port := func(r *http.Request) string { return r.RemoteAddr }
	hijacked := func(do func(net.Conn)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			do(c)
			c.Close()
		}
	}
	for _, tt := range []struct {
		name, code string
		h          http.HandlerFunc
		want       string
	}{
		{
			"no index", CodeUnreachable,
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) },
			"does not answer: the answer has no X-Consul-Index: this is no Consul, or something on the way takes the header out; correct its address",
		},
		{
			"an index that is none", CodeUnreachable,
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Consul-Index", "many")
				_, _ = io.WriteString(w, `{}`)
			},
			"does not answer: the answer has no X-Consul-Index",
		},
		{
			"a body that ends too early", CodeUnreachable,
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Consul-Index", "7")
				w.Header().Set("Content-Length", "1000")
				_, _ = io.WriteString(w, `{"consul": [`)
			},
			"does not answer: the connection was closed" + remedy,
		},
		{"a body that is not whole, though its connection is", CodeUnreachable, says(200, `{"consul": [`), "does not answer: the connection was closed" + remedy},
		{"no body", CodeUnreachable, says(200, ``), "does not answer: the connection was closed" + remedy},
		{"a web page", CodeUnreachable, says(200, `<html>`), "does not answer: what came is not what Consul says; correct its address"},
		{"a connection that is closed", CodeUnreachable, hijacked(func(net.Conn) {}), "does not answer: the connection was closed" + remedy},
		{
			"a connection that is reset", CodeUnreachable,
			hijacked(func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }), "does not answer: read: connection reset by peer" + remedy,
		},
		{"something that is not HTTP", CodeUnreachable, hijacked(func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0\r\n\r\n") }), "does not answer: net/http: HTTP/1.x transport connection broken: malformed HTTP response"},
		{"nothing comes", CodeUnreachable, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "does not answer: nothing came in time" + remedy},
		{"too many", CodeThrottled, says(429, "Your IP is issuing too many concurrent connections\n"), "says that there are too many requests or connections: Your IP is issuing too many concurrent connections; raise limits.http_max_conns_per_client of the agent, or lower the setting connections"},
		{"refused", CodeDenied, says(403, "ACL not found"), "refuses the request: ACL not found" + token},
		{"unauthorized", CodeDenied, says(401, "who are you?"), "refuses the request: who are you?" + token},
		{"no leader", CodeUnreachable, says(500, "No cluster leader"), "fails: No cluster leader" + leader},
		{"no way", CodeUnreachable, says(500, "rpc error: No path to datacenter"), `knows no way to the datacenter "dc2": correct its name, or see to it that its servers are joined (consul members -wan)`},
		{
			"ports of its own connections", CodeUnreachable,
			func(w http.ResponseWriter, r *http.Request) {
				says(500, "rpc error making call: read tcp "+port(r)+"->192.0.2.1:8300: read: connection reset by peer")(w, r)
			},
			"fails: rpc error making call: read tcp 192.0.2.1:8300: read: connection reset by peer" + leader,
		},
		{"a page of a proxy", CodeUnreachable, says(502, "<html>\n<body>\n"+strings.Repeat("<br/>", 1000)), "fails: <html> <body> <br/>"},
		{"a request that it does not take", CodeUnreachable, says(400, `Invalid query parameter: "ns"`), `does not take the request: 400 Invalid query parameter: "ns"; correct its address, or what else is asked for`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var next atomic.Int64
			l := linked(t, Link{Addresses: []string{server(t, func(w http.ResponseWriter, r *http.Request) {
				next.Add(1)
				tt.h(w, r)
			}).URL}, Datacenter: "dc2"})
			l.times.answer = 100 * time.Millisecond
			if tt.name != "nothing comes" {
				l.times.answer = 10 * time.Second
			}
			stable(t, l, tt.code, tt.want)
			if next.Load() == 0 {
				t.Error("nobody was asked")
			}
			_, err := l.try(t)
			if _, message := l.failure(err); len(message) > 500 || strings.ContainsAny(message, "\n") {
				t.Errorf("it says %q", message)
			}
		})
	}
	t.Run("nobody is there", func(t *testing.T) {
		s := server(t, well)
		l := linked(t, Link{Addresses: []string{s.URL}})
		s.Close()
		stable(t, l, CodeUnreachable, "does not answer: "+s.Listener.Addr().String()+": connect: connection refused"+remedy)
	})
	t.Run("HTTPS where HTTP is spoken", func(t *testing.T) {
		l := linked(t, Link{Addresses: []string{"https" + strings.TrimPrefix(server(t, well).URL, "http")}})
		stable(t, l, CodeUnreachable, "does not answer: http: server gave HTTP response to HTTPS client"+remedy)
	})
	t.Run("streams of HTTP/2 that are cut", func(t *testing.T) {
		ours := newAuthority(t, "ours")
		ca := filepath.Join(t.TempDir(), "ca.pem")
		put(t, ca, ours.pem)
		s := secure(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Consul-Index", "7")
			_, _ = io.WriteString(w, `{"consul": [`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, &tls.Config{Certificates: []tls.Certificate{*ours.server(t, time.Time{})}})
		stable(t, linked(t, Link{Addresses: []string{s.URL}, TLS: TLS{CAFile: ca}}), CodeUnreachable, "does not answer: stream error: INTERNAL_ERROR; received from peer"+remedy)
	})
}

// TestReasons are errors that no server here makes.
func TestReasons(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "consul.example", Server: "192.0.2.53:53", IsNotFound: true}}, "there is no host consul.example"},
		{&net.DNSError{Err: "read udp 192.0.2.1:40123->192.0.2.53:53: i/o timeout", Name: "consul.example", Server: "192.0.2.53:53", IsTimeout: true}, "the address of consul.example cannot be looked up: no answer"},
		{&net.DNSError{Err: "read udp 192.0.2.1:40123->192.0.2.53:53: read: connection refused", Name: "consul.example"}, "the address of consul.example cannot be looked up: read udp 192.0.2.53:53: read: connection refused"},
		{errors.New(`http2: server sent GOAWAY and closed the connection; LastStreamID=1999, ErrCode=NO_ERROR, debug=""`), `http2: server sent GOAWAY and closed the connection; ErrCode=NO_ERROR, debug=""`},
		{&net.OpError{Op: "read", Net: "tcp", Err: errors.New("i/o timeout")}, "i/o timeout"},
		{io.EOF, "the connection was closed"},
	} {
		if got := reason(&url.Error{Op: "Get", URL: "http://consul.example/v1?index=7", Err: tt.err}); got != tt.want {
			t.Errorf("of %v it is %q, want %q", tt.err, got, tt.want)
		}
	}
}

func TestShort(t *testing.T) {
	for said, want := range map[string]string{
		"":                         "",
		" two\n lines ":            "two lines",
		strings.Repeat("ä", 200):   strings.Repeat("ä", 200),
		strings.Repeat("ä", 201):   strings.Repeat("ä", 200) + " ...",
		"a->b, 1:2, [::1]:99->x:1": "a->b, 1:2, x:1",
	} {
		if got := short(said); got != want {
			t.Errorf("of %q it is %q, want %q", said, got, want)
		}
	}
}

// oddNames are names of services that a path does not take as they are.
var oddNames = []string{
	"plain", "a/b", "a//b", "/a", "a/", "100%", "a%2Fb", "a%20b", "%", "what?", "a?b=c", "two words", " edge ", "größe", "日本", "a+b", "a#b", "a&b=c", "x;y", `"q"`, `back\slash`,
	".", "..", "a/../b", "a/./b", "%2E", "~tilde", "a:b", "a@b", "a,b", "[a]", "{a}", "a|b", "🙂",
}

// TestNames registers services of any name, and reads them, once and by a blocking query.
func TestNames(t *testing.T) {
	type catalog interface {
		Register(...consultest.Service)
	}
	for _, tt := range []struct {
		name  string
		start func(t *testing.T) (string, catalog)
	}{
		{"stand-in", func(t *testing.T) (string, catalog) {
			s := consultest.NewStandIn(t, consultest.StandInOptions{})
			return s.URL, s
		}},
		{"Consul", func(t *testing.T) (string, catalog) {
			a := consultest.Start(t, consultest.Options{})
			return a.Addr, a
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			address, c := tt.start(t)
			for n, name := range oddNames {
				c.Register(consultest.Service{Name: name, ID: fmt.Sprint("id-", n), Port: 1000 + n})
			}
			l := linked(t, Link{Addresses: []string{address}})
			list := l.read(t.Context(), job{of: ofServices})
			for n, name := range oddNames {
				if _, ok := list.names[name]; !ok {
					t.Errorf("%q is not in the list", name)
				}
				for _, consistent := range []bool{false, true} {
					a := l.read(t.Context(), job{of: ofInstances, name: name, consistent: consistent})
					if a.err != nil || len(a.instances) != 1 || a.instances[0].Name != name || a.instances[0].Port != 1000+n {
						t.Errorf("%q is read as %+v, %v", name, a.instances, a.err)
						continue
					}
					if consistent {
						continue
					}
					// A watch that knows less has its answer at once.
					answers := make(chan answer, 1)
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan struct{})
					go func() {
						l.attend(ctx, answer{watch: 1, job: job{of: ofInstances, name: name, known: 1}}, answers)
						close(done)
					}()
					if a := <-answers; a.err != nil || len(a.instances) != 1 || a.instances[0].Name != name {
						t.Errorf("%q is watched as %+v, %v", name, a.instances, a.err)
					}
					cancel()
					<-done
				}
			}
			if n := len(slices.Collect(func(yield func(string) bool) {
				for name := range list.names {
					if name != "consul" && !yield(name) {
						return
					}
				}
			})); n != len(oddNames) {
				t.Errorf("the list has %d names, want %d", n, len(oddNames))
			}
		})
	}
}

// TestARefusalThatIsNotRead has a server close the connection before its refusal is read, which the kernel tells as one of these.
func TestARefusalThatIsNotRead(t *testing.T) {
	for _, err := range []error{syscall.EPIPE, syscall.ECONNRESET} {
		broken := &url.Error{Op: "Get", URL: "https://127.0.0.1:8501", Err: &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", err)}}
		for _, tt := range []struct {
			to   Link
			want string
		}{
			{Link{Addresses: []string{"https://127.0.0.1:8501"}}, "name a certificate by tls.cert-file"},
			{Link{Addresses: []string{"https://127.0.0.1:8501"}, TLS: TLS{CertFile: "cert.pem", KeyFile: "key.pem"}}, "see to it that it runs"},
			{Link{Addresses: []string{"http://127.0.0.1:8500"}}, "see to it that it runs"},
		} {
			if _, message := newLink(tt.to, 1).failure(broken); !strings.Contains(message, tt.want) {
				t.Errorf("%v at %s: %q, want %q", err, tt.to.Addresses[0], message, tt.want)
			}
		}
	}
}
