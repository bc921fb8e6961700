package integration

import (
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
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// credentials are those of the tests themselves.
func (d *daemon) credentials() credentials.TransportCredentials {
	if d.tls == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(d.tls)
}

// certificates is a folder with those of meshd and of an Envoy.
type certificates struct{ dir string }

func (c certificates) path(name string) string { return filepath.Join(c.dir, name) }

// put writes a file and renames it into place.
func (c certificates) put(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := errors.Join(os.WriteFile(c.path("."+name), text, 0o600), os.Rename(c.path("."+name), c.path(name))); err != nil {
		t.Fatal(err)
	}
}

// trust writes the certificates of authorities.
func (c certificates) trust(t *testing.T, name string, all ...*authority) {
	t.Helper()
	var text []byte
	for _, ca := range all {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})...)
	}
	c.put(t, name, text)
}

// issue writes NAME.key, and then NAME.pem, a certificate for 127.0.0.1 and with a URI.
func (c certificates) issue(t *testing.T, ca *authority, name, uri string) {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, URIs: []*url.URL{u}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: ca.cert.NotBefore, NotAfter: ca.cert.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c.put(t, name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	c.put(t, name+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// The names in certificates.
const (
	meshdURI = "spiffe://tests/meshd"
	envoyURI = "spiffe://tests/vm1"
)

// newSecureMeshd makes a daemon that wants certificates of an authority, with more settings if there are any, and the folder that
// has them.
func newSecureMeshd(t *testing.T, ca *authority, settings string) (*daemon, certificates) {
	t.Helper()
	d := newMeshd(t, folders(redirect)...)
	c := certificates{t.TempDir()}
	c.issue(t, ca, "meshd", meshdURI)
	c.issue(t, ca, "envoy", envoyURI)
	c.issue(t, ca, "tests", "spiffe://tests/tests")
	c.trust(t, "ca.pem", ca)
	own, err := tls.LoadX509KeyPair(c.path("tests.pem"), c.path("tests.key"))
	if err != nil {
		t.Fatal(err)
	}
	d.tls = &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{own}}
	d.configure(t, fmt.Sprintf("xds-tls-cert-file: %s\nxds-tls-key-file: %s\nxds-tls-client-ca-file: %s\n%s",
		c.path("meshd.pem"), c.path("meshd.key"), c.path("ca.pem"), settings))
	return d, c
}

// flags are those of meshd bootstrap for an Envoy that notices when its certificates are replaced.
func (c certificates) flags(more ...string) []string {
	return append([]string{"--xds-ca-file", c.path("ca.pem"), "--xds-cert-file", c.path("envoy.pem"), "--xds-key-file", c.path("envoy.key"), "--xds-secrets-dir", c.dir}, more...)
}

// awaitIdentity waits until meshd says that a node is connected with a certificate of this name, and tells since when.
func (d *daemon) awaitIdentity(t *testing.T, want string) (connected string) {
	t.Helper()
	eventually(t, "a node with the certificate of "+want, func() error {
		var answer struct {
			Nodes []struct{ Identity, Connected string }
		}
		if err := d.get("/api/v1/nodes", &answer); err != nil {
			return err
		}
		for _, n := range answer.Nodes {
			if n.Identity == want {
				connected = n.Connected
				return nil
			}
		}
		return fmt.Errorf("nodes: %+v", answer.Nodes)
	})
	return connected
}

// awaitLog waits until meshd has logged a line with all of these texts.
func (d *daemon) awaitLog(t *testing.T, texts ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("a line of the log with %q", texts), func() error {
	lines:
		for line := range strings.Lines(tail(d.log, 1<<20)) {
			for _, text := range texts {
				if !strings.Contains(line, text) {
					continue lines
				}
			}
			return nil
		}
		return errors.New("there is none")
	})
}

// TestMutualTLS shows that all of xDS works where both sides show certificates: both protocols, load reports, and a meshd that is
// killed and returns.
func TestMutualTLS(t *testing.T) {
	for _, p := range []protocol{delta, stateOfTheWorld} {
		t.Run(string(p), func(t *testing.T) {
			app, ca := newMesh(t, redirect), newAuthority(t)
			d, c := newSecureMeshd(t, ca, "load-report-interval: 200ms\n")
			d.start(t)
			e := startEnvoy(t, d.bootstrap(t, redirect, p, c.flags("--load-reports")...))
			d.awaitIdentity(t, envoyURI)
			requireInStep(t, d, e, redirect, p)
			l := startLoad(t, app.unchanging())
			d.edit(t, "shop.yaml", "10.77.0.13", "10.77.0.14")
			awaitReaches(t, "an edit", app.http("http://shop.mesh.internal:8080/"), "10.77.0.14:9001")
			eventually(t, "a report of the load", func() error {
				have, err := d.loads()
				if err == nil && have["outbound|8080||web.mesh.internal"].Total.Requests == 0 {
					err = errors.New("there is no request in it")
				}
				return err
			})

			d.kill()
			e.awaitConnected(t, 0)
			l.progress(t)
			d.start(t)
			e.awaitConnected(t, 1)
			d.requireAccepted(t)
			requireInStep(t, d, e, redirect, p)
			l.requireNoFailure(t)
		})
	}
}

// relay is a way to meshd that can be cut.
type relay struct {
	mu   sync.Mutex
	open map[net.Conn]bool
}

// startRelay passes on what comes to an address.
func startRelay(t *testing.T, address, to string) *relay {
	t.Helper()
	l, r := listen(t, address), &relay{open: map[net.Conn]bool{}}
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			r.mu.Lock()
			r.open[in], r.open[out] = true, true
			r.mu.Unlock()
			pass := func(from, to net.Conn) {
				_, _ = io.Copy(to, from) // it ends when either is closed
				from.Close()
				to.Close()
			}
			passing.Go(func() { pass(in, out) })
			passing.Go(func() { pass(out, in) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.cut()
		passing.Wait()
	})
	return r
}

// cut ends all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		c.Close()
	}
	clear(r.open)
}

// TestCertificatesAreReplaced replaces under load meshd's certificate, then the authority of both sides step by step as one would,
// and spoils files on the way. Nobody is restarted, each step is followed by a new connection, and no request fails.
func TestCertificatesAreReplaced(t *testing.T) {
	app, old, next := newMesh(t, redirect), newAuthority(t), newAuthority(t)
	d, c := newSecureMeshd(t, old, "")
	d.start(t)
	r := startRelay(t, "127.0.0.1:15020", xdsAddress)
	bootstrap := strings.ReplaceAll(string(d.bootstrap(t, redirect, delta, c.flags()...)), `"port_value": 15010`, `"port_value": 15020`)
	e := startEnvoy(t, []byte(bootstrap))
	before := d.awaitIdentity(t, envoyURI)
	requireInStep(t, d, e, redirect, delta)
	l := startLoad(t, app.unchanging())
	// again has the Envoy connect anew, and waits until it has, with a certificate of this name.
	again := func(uri string) {
		t.Helper()
		r.cut()
		eventually(t, "another connection", func() error {
			since := d.awaitIdentity(t, uri)
			if since == before {
				return errors.New("there is none")
			}
			before = since
			return nil
		})
	}
	// noticed waits until the Envoy has taken what a change puts into its files.
	noticed := func(change func()) {
		t.Helper()
		taken := func() int {
			const name = "cluster.meshd.client_ssl_socket_factory.ssl_context_update_by_sds"
			return e.stats(t, "^"+regexp.QuoteMeta(name)+"$")[name]
		}
		had := taken()
		change()
		eventually(t, "Envoy to read its certificates", func() error {
			if taken() == had {
				return errors.New("it has not")
			}
			return nil
		})
	}
	again(envoyURI)

	c.issue(t, old, "meshd", meshdURI)
	again(envoyURI)
	d.awaitLog(t, "certificates have been read again")

	c.put(t, "meshd.key", []byte("nothing"))
	d.awaitProblem(t, "certificate-unusable", "meshd.key")
	again(envoyURI)
	c.issue(t, old, "meshd", meshdURI)
	d.awaitNoProblem(t, "certificate-")

	const renewed = "spiffe://tests/vm1-renewed"
	noticed(func() { c.trust(t, "ca.pem", old, next) })
	c.issue(t, next, "meshd", meshdURI)
	again(envoyURI)
	noticed(func() { c.issue(t, next, "envoy", renewed) })
	again(renewed)
	noticed(func() { c.trust(t, "ca.pem", next) })
	again(renewed)
	l.progress(t)

	d.edit(t, "shop.yaml", "10.77.0.13", "10.77.0.14")
	awaitReaches(t, "an edit after all of it", app.http("http://shop.mesh.internal:8080/"), "10.77.0.14:9001")
	l.requireNoFailure(t)
}

// TestWhoIsNotLetIn shows that an Envoy without the right certificate gets nothing, and that the log tells why; and that one is let in
// once it has the right one, without a restart.
func TestWhoIsNotLetIn(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	d, c := newSecureMeshd(t, ca, "")
	d.start(t)
	plain := d.bootstrap(t, redirect, delta)
	without := d.bootstrap(t, redirect, delta, "--xds-ca-file", c.path("ca.pem"))
	misnamed := d.bootstrap(t, redirect, delta, c.flags("--xds-server-name", "meshd.example.net")...)
	right := d.bootstrap(t, redirect, delta, c.flags("--xds", "127.0.0.1:15020")...) // one of two is not there
	for _, tt := range []struct {
		name      string
		bootstrap []byte
		reason    string
	}{
		{"in plain text", plain, "it does not speak TLS"},
		{"without a certificate", without, "it has no certificate"},
		{"that wants another meshd", misnamed, "it ends the handshake"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := launchEnvoy(t, tt.bootstrap)
			d.awaitLog(t, "[WARN]", "a client cannot connect", tt.reason)
			e.awaitConnected(t, 0)
			if n, err := nodesAt(adminAddress); n != 0 || err != nil {
				t.Errorf("%d nodes are connected (%v)", n, err)
			}
		})
	}
	t.Run("of another authority", func(t *testing.T) {
		c.issue(t, other, "envoy", envoyURI)
		e := launchEnvoy(t, right)
		d.awaitLog(t, "[WARN]", "a client cannot connect", "its certificate is of no authority in "+c.path("ca.pem"), envoyURI)
		e.awaitConnected(t, 0)
		c.issue(t, ca, "envoy", envoyURI)
		d.awaitIdentity(t, envoyURI)
		e.awaitReady(t)
		requireInStep(t, d, e, redirect, delta)
	})
	if n := strings.Count(tail(d.log, 1<<20), "a client cannot connect"); n > 6 {
		t.Errorf("the log says %d times that a client cannot connect", n)
	}
}
