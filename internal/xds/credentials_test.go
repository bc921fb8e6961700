package xds

import (
	"bytes"
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
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/meshd/meshd/internal/mesh"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{key: newKey(t), pool: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

// issue makes a certificate for 127.0.0.1, for servers and clients, as changed.
func (a *authority) issue(t *testing.T, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "web-1"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(c)
	}
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: c}
}

func expired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }

// pemFiles are files in a folder of the test.
func pemFiles(t *testing.T) CertificateFiles {
	dir := t.TempDir()
	return CertificateFiles{filepath.Join(dir, "meshd.pem"), filepath.Join(dir, "meshd.key"), filepath.Join(dir, "ca.pem")}
}

// save replaces a file.
func save(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := errors.Join(os.WriteFile(name+".new", text, 0o600), os.Rename(name+".new", name)); err != nil {
		t.Fatal(err)
	}
}

func certificateText(all ...*x509.Certificate) (text []byte) {
	for _, c := range all {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return text
}

func keyText(t *testing.T, c tls.Certificate) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// savePair replaces certificate and key.
func (f CertificateFiles) savePair(t *testing.T, c tls.Certificate) {
	t.Helper()
	save(t, f.Key, keyText(t, c))
	save(t, f.Cert, certificateText(c.Leaf))
}

// secured is a server on a port, with these files.
type secured struct {
	*Server
	address string
	logs    *lockedText
}

func startSecured(t *testing.T, files CertificateFiles) *secured {
	t.Helper()
	logs := &lockedText{}
	log := hclog.New(&hclog.LoggerOptions{Output: logs, Level: hclog.Debug})
	c, err := LoadCredentials(log, files)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &secured{New(log, Options{Credentials: c}), l.Addr().String(), logs}
	s.Apply(&mesh.View{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// connect opens a stream as a node, if it is let in. The connection is open until the end of the test.
func (s *secured) connect(t *testing.T, by credentials.TransportCredentials) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.address, grpc.WithTransportCredentials(by))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	if err == nil {
		err = stream.Send(ask(cds))
	}
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

// by are a client's credentials. It shows its certificate even if the server has not asked for one of this authority.
func (a *authority) by(own ...tls.Certificate) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{RootCAs: a.pool, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &append(own, tls.Certificate{})[0], nil
	}})
}

// presents is the certificate that the server has now.
func (s *secured) presents(t *testing.T, a *authority) *big.Int {
	t.Helper()
	conn, err := tls.Dial("tcp", s.address, &tls.Config{RootCAs: a.pool, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // the server may have ended it
	if v := conn.ConnectionState().Version; v < tls.VersionTLS12 {
		t.Errorf("version %x", v)
	}
	return conn.ConnectionState().PeerCertificates[0].SerialNumber
}

func (s *secured) requireProblem(t *testing.T, code, text string) {
	t.Helper()
	all := s.Problems()
	if len(all) != 1 || all[0].Code != code || !strings.Contains(all[0].String(), text) {
		t.Errorf("problems %v, want one %s with %q", all, code, text)
	}
}

func (s *secured) requireNoProblem(t *testing.T) {
	t.Helper()
	if all := s.Problems(); len(all) > 0 {
		t.Errorf("problems %v", all)
	}
}

func TestCertificatesAreReadAgain(t *testing.T) {
	a, files := newAuthority(t), pemFiles(t)
	files.ClientCA = ""
	first := a.issue(t, nil)
	files.savePair(t, first)
	s := startSecured(t, files)
	requirePresents := func(want tls.Certificate) {
		t.Helper()
		if got := s.presents(t, a); got.Cmp(want.Leaf.SerialNumber) != 0 {
			t.Errorf("the server has certificate %s, not %s", got, want.Leaf.SerialNumber)
		}
	}
	requirePresents(first)
	if err := s.connect(t, a.by()); err != nil {
		t.Error(err)
	}
	s.requireNoProblem(t)

	second := a.issue(t, nil)
	files.savePair(t, second)
	requirePresents(second)
	s.requireNoProblem(t)

	// What cannot be used leaves what is there.
	save(t, files.Key, keyText(t, first))
	for range 3 {
		requirePresents(second)
		s.requireProblem(t, CodeCertificateUnusable, files.Key+": private key does not match public key")
	}
	save(t, files.Cert, []byte("nothing"))
	requirePresents(second)
	s.requireProblem(t, CodeCertificateUnusable, files.Cert+": there is no certificate in it")
	if err := os.Remove(files.Cert); err != nil {
		t.Fatal(err)
	}
	requirePresents(second)
	s.requireProblem(t, CodeCertificateUnusable, files.Cert+": no such file")
	files.savePair(t, a.issue(t, expired))
	requirePresents(second)
	s.requireProblem(t, CodeCertificateUnusable, files.Cert+": what is there now has expired")
	if n := strings.Count(s.logs.String(), "does not match"); n != 1 {
		t.Errorf("a key that does not match is logged %d times:\n%s", n, s.logs)
	}

	files.savePair(t, first)
	requirePresents(first)
	s.requireNoProblem(t)
}

func TestAnAuthorityThatIsReplaced(t *testing.T) {
	a, other, files := newAuthority(t), newAuthority(t), pemFiles(t)
	files.savePair(t, a.issue(t, nil))
	save(t, files.ClientCA, certificateText(a.cert))
	s := startSecured(t, files)
	old, fresh := a.issue(t, nil), other.issue(t, nil)
	if err := s.connect(t, a.by(old)); err != nil {
		t.Error(err)
	}
	if err := s.connect(t, a.by(fresh)); err == nil {
		t.Error("a client of an unknown authority is let in")
	}
	save(t, files.ClientCA, certificateText(a.cert, other.cert))
	for _, c := range []tls.Certificate{old, fresh} {
		if err := s.connect(t, a.by(c)); err != nil {
			t.Error(err)
		}
	}
	save(t, files.ClientCA, certificateText(other.cert))
	if err := s.connect(t, a.by(fresh)); err != nil {
		t.Error(err)
	}
	if err := s.connect(t, a.by(old)); err == nil {
		t.Error("a client of an authority that is gone is let in")
	}
}

func TestWhoIsLetIn(t *testing.T) {
	a, other, files := newAuthority(t), newAuthority(t), pemFiles(t)
	files.savePair(t, a.issue(t, nil))
	save(t, files.ClientCA, certificateText(a.cert))
	s := startSecured(t, files)
	uri, err := url.Parse("spiffe://mesh.example/web-1")
	if err != nil {
		t.Fatal(err)
	}
	for want, names := range map[string]func(*x509.Certificate){
		uri.String():        func(c *x509.Certificate) { c.URIs, c.DNSNames = []*url.URL{uri}, []string{"web-1.example.net"} },
		"web-1.example.net": func(c *x509.Certificate) { c.DNSNames = []string{"web-1.example.net", "other.example.net"} },
		"web-1":             nil,
	} {
		if err := s.connect(t, a.by(a.issue(t, names))); err != nil {
			t.Errorf("%s: %v", want, err)
		}
		if !slices.ContainsFunc(s.Nodes(), func(n NodeStatus) bool { return n.Identity == want }) {
			t.Errorf("nobody is %s: %+v", want, s.Nodes())
		}
	}
	before := len(s.Nodes())

	own := a.issue(t, nil)
	for _, tt := range []struct {
		name string
		by   credentials.TransportCredentials
		want string
	}{
		{"without a certificate", a.by(), `reason="it has no certificate: `},
		{"of another authority", a.by(other.issue(t, nil)), `reason="its certificate is of no authority in `},
		{"expired", a.by(a.issue(t, expired)), `reason="its certificate has expired, or is not valid yet" detail="`},
		{"for servers", a.by(a.issue(t, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] })), `reason="its certificate is not one for clients (extended key usage clientAuth)" detail="certificate specifies an incompatible key usage, of \"web-1\""`},
		{"in plain text", insecure.NewCredentials(), `reason="it does not speak TLS: `},
		{"that does not trust meshd", other.by(own), `reason="it ends the handshake: `},
		{"of another age", credentials.NewTLS(&tls.Config{RootCAs: a.pool, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}}), `detail="client offered only unsupported versions: `},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 3 {
				if err := s.connect(t, tt.by); err == nil {
					t.Error("it is let in")
				}
			}
			await(t, tt.want, func() bool { return strings.Contains(s.logs.String(), tt.want) })
		})
	}
	t.Run("without HTTP/2", func(t *testing.T) {
		conn, err := tls.Dial("tcp", s.address, &tls.Config{RootCAs: a.pool, Certificates: []tls.Certificate{own}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		await(t, "the reason", func() bool { return strings.Contains(s.logs.String(), `reason="it does not offer HTTP/2 `) })
	})
	t.Run("that only looks", func(t *testing.T) {
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		await(t, "its end", func() bool {
			return strings.Contains(s.logs.String(), "[DEBUG] xds: a connection has ended before it had begun")
		})
	})
	if now := len(s.Nodes()); now != before {
		t.Errorf("there are %d nodes, not %d", now, before)
	}
	for line := range strings.Lines(s.logs.String()) { // each reason once, though it came several times
		if strings.Contains(line, "cannot connect") && !strings.Contains(line, "times=1") {
			t.Error(line)
		}
	}
	if n := strings.Count(s.logs.String(), `reason="it does not speak TLS`); n != 1 {
		t.Errorf("plain text is logged %d times:\n%s", n, s.logs)
	}
}

func TestATLSClientAtAPlainPort(t *testing.T) {
	a := newAuthority(t)
	s := startSecured(t, CertificateFiles{})
	if err := s.connect(t, insecure.NewCredentials()); err != nil {
		t.Error(err)
	}
	for range 3 {
		err := s.connect(t, a.by())
		if err == nil || !strings.Contains(err.Error(), "first record does not look like a TLS handshake") {
			t.Errorf("the client is told %v", err)
		}
	}
	if n := strings.Count(s.logs.String(), "it speaks TLS and this is plain text"); n != 1 {
		t.Errorf("it is logged %d times:\n%s", n, s.logs)
	}
	if n := s.Nodes(); len(n) != 1 || n[0].Identity != "" {
		t.Errorf("nodes %+v", n)
	}
}

func TestTerms(t *testing.T) {
	day := 24 * time.Hour
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name     string
		lasts    time.Duration
		after    time.Duration
		severity mesh.Severity
		want     string
	}{
		{"early", 365 * day, -time.Hour, mesh.Error, "is not valid before 2026-01-01T00:00:00Z"},
		{"long before its end", 365 * day, 350 * day, 0, ""},
		{"two weeks before its end", 365 * day, 352 * day, mesh.Warning, "expires at 2027-01-01T00:00:00Z"},
		{"late", 365 * day, 365*day + time.Second, mesh.Error, "has expired at 2027-01-01T00:00:00Z"},
		{"short, in its last third", day, 18 * time.Hour, 0, ""},
		{"short, in its last fifth", day, 20 * time.Hour, mesh.Warning, "expires at 2026-01-02T00:00:00Z"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, ok := term{"a.pem", from, from.Add(tt.lasts)}.problem(from.Add(tt.after))
			if ok != (tt.want != "") || p.Severity != tt.severity || !strings.Contains(p.String(), tt.want) {
				t.Errorf("%s %v", p.Severity, p)
			}
		})
	}
}

// TestAnExpiredCertificateDoesNotStopTheStart shows that meshd is there to say what is wrong, and to take what is put right.
func TestAnExpiredCertificateDoesNotStopTheStart(t *testing.T) {
	a, files := newAuthority(t), pemFiles(t)
	files.ClientCA = ""
	files.savePair(t, a.issue(t, expired))
	s := startSecured(t, files)
	if !strings.Contains(s.logs.String(), "has expired") {
		t.Errorf("the log says nothing:\n%s", s.logs)
	}
	s.requireProblem(t, CodeCertificateExpires, files.Cert+": the certificate has expired")
	files.savePair(t, a.issue(t, nil))
	if err := s.connect(t, a.by()); err != nil {
		t.Error(err)
	}
	s.requireNoProblem(t)
}

func TestTheChainCountsAsLongAsAllOfIt(t *testing.T) {
	a, files := newAuthority(t), pemFiles(t)
	files.ClientCA = ""
	leaf, between := a.issue(t, nil), a.issue(t, expired)
	files.savePair(t, leaf)
	save(t, files.Cert, certificateText(leaf.Leaf, between.Leaf))
	c, err := LoadCredentials(hclog.NewNullLogger(), files)
	if err != nil {
		t.Fatal(err)
	}
	if all := c.problems(); len(all) != 1 || !strings.Contains(all[0].Message, "has expired") {
		t.Errorf("problems %v", all)
	}
}

func TestFilesThatCannotBeUsedStopTheStart(t *testing.T) {
	a := newAuthority(t)
	own := a.issue(t, nil)
	for name, tt := range map[string]struct {
		spoil func(CertificateFiles)
		want  string
	}{
		"no certificate":       {func(f CertificateFiles) { _ = os.Remove(f.Cert) }, "meshd.pem: no such file or directory; put it where the user that meshd runs as may read it"},
		"an empty certificate": {func(f CertificateFiles) { save(t, f.Cert, nil) }, "meshd.pem: there is no certificate in it; write one in PEM"},
		"a broken certificate": {func(f CertificateFiles) {
			save(t, f.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))
		}, "meshd.pem: its certificate 1 is none ("},
		"no key":                 {func(f CertificateFiles) { _ = os.Remove(f.Key) }, "meshd.key: no such file or directory; put it"},
		"a certificate as key":   {func(f CertificateFiles) { save(t, f.Key, certificateText(own.Leaf)) }, "meshd.key: found a certificate rather than a key in the PEM for the private key; write the private key of the certificate in "},
		"another key":            {func(f CertificateFiles) { save(t, f.Key, keyText(t, a.issue(t, nil))) }, "meshd.key: private key does not match public key; write "},
		"no authority":           {func(f CertificateFiles) { save(t, f.ClientCA, []byte("\n")) }, "ca.pem: there is no certificate in it"},
		"a folder for a file":    {func(f CertificateFiles) { _ = errors.Join(os.Remove(f.ClientCA), os.Mkdir(f.ClientCA, 0o700)) }, "ca.pem: is a directory; put it"},
		"a key where all should": {func(f CertificateFiles) { save(t, f.ClientCA, keyText(t, own)) }, "ca.pem: there is no certificate in it"},
	} {
		t.Run(name, func(t *testing.T) {
			files := pemFiles(t)
			files.savePair(t, own)
			save(t, files.ClientCA, certificateText(a.cert))
			if _, err := LoadCredentials(hclog.NewNullLogger(), files); err != nil {
				t.Fatal(err)
			}
			tt.spoil(files)
			if _, err := LoadCredentials(hclog.NewNullLogger(), files); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, want one with %q", err, tt.want)
			}
		})
	}
}

// from is a connection from an address.
type from struct {
	net.Conn
	address string
}

func (f from) RemoteAddr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", f.address)
	if err != nil {
		panic(err)
	}
	return a
}

func TestTheLogIsNotFilledByClients(t *testing.T) {
	var b bytes.Buffer
	c, err := LoadCredentials(hclog.New(&hclog.LoggerOptions{Output: &b}), CertificateFiles{})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	try := func(host, why string) { c.turnAway(from{address: host + ":1"}, now, turned{why: why}, "") }
	lines := func(want int) {
		t.Helper()
		if n := strings.Count(b.String(), "\n"); n != want {
			t.Errorf("%d lines, want %d:\n%s", n, want, &b)
		}
		b.Reset()
	}
	for range 1000 {
		try("192.0.2.1", "one")
		try("192.0.2.1", "another")
		try("192.0.2.2", "one")
	}
	lines(3)
	now = now.Add(tellAgain)
	try("192.0.2.1", "one")
	if !strings.Contains(b.String(), "times=1000") {
		t.Errorf("it does not say how often:\n%s", &b)
	}
	lines(1)
	now = now.Add(tellAgain)
	for i := range 10 * mostTurned {
		try(fmt.Sprintf("10.0.%d.%d", i/250, i%250), "one")
	}
	lines(mostTurned)
	if len(c.turned) > mostTurned {
		t.Errorf("%d clients are remembered", len(c.turned))
	}
}
