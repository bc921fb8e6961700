package xds

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/meshd/meshd/internal/mesh"
)

// CertificateFiles are the files, in PEM, by which the server and its clients know each other. Without any, both speak plain text.
type CertificateFiles struct {
	Cert     string // the server's certificate, followed by those that lead to its authority
	Key      string // its private key
	ClientCA string // the authorities of which clients must have a certificate; empty: clients need none
}

// Credentials are how clients connect: in plain text, or by TLS. The files are looked at with each connection and whenever somebody
// asks for problems, and what has changed is used for connections from then on, so that no goroutine watches them. What cannot be
// used leaves the last good certificates in use, and is a problem.
type Credentials struct {
	log   hclog.Logger
	files CertificateFiles

	mu     sync.Mutex
	looks  [sha256.Size]byte // what the files looked like when they were read last
	good   *certificates     // nil: plain text
	bad    *fileError        // why what is in the files now is not used
	since  time.Time         // when that was first so
	told   []mesh.Problem
	turned map[turned]*tally
}

// LoadCredentials reads the files. The error names the file that cannot be used, and says what to do.
func LoadCredentials(log hclog.Logger, files CertificateFiles) (*Credentials, error) {
	c := &Credentials{log: log.Named("xds"), files: files, turned: map[turned]*tally{}}
	if files == (CertificateFiles{}) {
		return c, nil
	}
	c.looks = files.looks()
	good, err := files.read()
	if err != nil {
		return nil, err
	}
	c.good = good
	c.look(time.Now()) // tells of what expires
	return c, nil
}

// Mode says how clients connect, in a word.
func (c *Credentials) Mode() string {
	switch {
	case c.files.Cert == "":
		return "off"
	case c.files.ClientCA == "":
		return "server"
	default:
		return "mutual"
	}
}

// certificates are what the files held at one time. They do not change.
type certificates struct {
	server credentials.TransportCredentials
	terms  []term
}

// fileError is why a file cannot be used, and what to do.
type fileError struct {
	file string
	err  error
}

func (e *fileError) Error() string { return e.file + ": " + e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

// read reads all files. The error is a [fileError].
func (f CertificateFiles) read() (*certificates, error) {
	chain, err := readCertificates(f.Cert)
	if err != nil {
		return nil, err
	}
	key, err := readFile(f.Key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(chain.text, key)
	if err != nil {
		return nil, &fileError{f.Key, fmt.Errorf("%s; write the private key of the certificate in %s there, in PEM and without a password", bare(err), f.Cert)}
	}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2"},
		Certificates: []tls.Certificate{pair},
		// A session that is taken up again would let in whom an authority has signed that is not in the file any more.
		SessionTicketsDisabled: true,
	}
	terms := []term{chain.shortest(f.Cert)}
	if f.ClientCA != "" {
		authorities, err := readCertificates(f.ClientCA)
		if err != nil {
			return nil, err
		}
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		for _, a := range authorities.all {
			config.ClientCAs.AddCert(a)
		}
		terms = append(terms, authorities.longest(f.ClientCA))
	}
	return &certificates{credentials.NewTLS(config), terms}, nil
}

// looks tells of the files whether they are other ones than before. Times would not tell of two changes within some milliseconds.
func (f CertificateFiles) looks() [sha256.Size]byte {
	h := sha256.New()
	for _, name := range []string{f.Cert, f.Key, f.ClientCA} {
		data, err := os.ReadFile(name) // the error is that of the one that reads it to use it
		fmt.Fprintln(h, len(data), err == nil)
		h.Write(data)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func readFile(name string) ([]byte, error) {
	data, err := os.ReadFile(name)
	if cause, ok := errors.AsType[*os.PathError](err); ok {
		err = cause.Err // without the name
	}
	if err != nil {
		return nil, &fileError{name, fmt.Errorf("%w; put it where the user that meshd runs as may read it", err)}
	}
	return data, nil
}

// pemCertificates are the certificates of a file.
type pemCertificates struct {
	text []byte
	all  []*x509.Certificate // at least one
}

func readCertificates(name string) (*pemCertificates, error) {
	data, err := readFile(name)
	if err != nil {
		return nil, err
	}
	p := &pemCertificates{text: data}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		one, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, &fileError{name, fmt.Errorf("its certificate %d is none (%s); write it anew", len(p.all)+1, bare(err))}
		}
		p.all = append(p.all, one)
	}
	if len(p.all) == 0 {
		return nil, &fileError{name, errors.New("there is no certificate in it; write one in PEM, which begins with -----BEGIN CERTIFICATE-----")}
	}
	return p, nil
}

// bare is the text of an error without the name of the package.
func bare(err error) string {
	return strings.TrimPrefix(strings.TrimPrefix(err.Error(), "tls: "), "x509: ")
}

// term is from when until when a file is of use.
type term struct {
	file        string
	from, until time.Time
}

// shortest is the term of a chain: it is of use while all of it is.
func (p *pemCertificates) shortest(file string) term {
	first := slices.MinFunc(p.all, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	return term{file, p.all[0].NotBefore, first.NotAfter}
}

// longest is the term of authorities, of which there may be old ones beside those in use.
func (p *pemCertificates) longest(file string) term {
	last := slices.MaxFunc(p.all, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	return term{file, last.NotBefore, last.NotAfter}
}

// mostNotice is how long before its end a certificate is told of, unless it is a short-lived one: that is renewed late.
const mostNotice = 14 * 24 * time.Hour

// The codes of the problems with certificates.
const (
	CodeCertificateExpires  = "certificate-expires"
	CodeCertificateUnusable = "certificate-unusable"
)

// problem is what is wrong with a term, if anything is.
func (t term) problem(now time.Time) (p mesh.Problem, ok bool) {
	p = mesh.Problem{Severity: mesh.Error, Code: CodeCertificateExpires, Origin: mesh.Origin{Registry: "xds", Source: t.file}}
	const remedy = "put a valid one into the file, which is read then without a restart"
	notice := min(mostNotice, t.until.Sub(t.from)/5)
	switch {
	case now.After(t.until):
		p.Since = t.until
		p.Message = fmt.Sprintf("the certificate has expired at %s, and nodes that are not connected cannot connect; %s", moment(t.until), remedy)
	case now.Before(t.from):
		p.Message = fmt.Sprintf("the certificate is not valid before %s, and nodes cannot connect; look at this machine's clock, or %s", moment(t.from), remedy)
	case t.until.Sub(now) < notice:
		p.Severity, p.Since = mesh.Warning, t.until.Add(-notice)
		p.Message = fmt.Sprintf("the certificate expires at %s, and nodes cannot connect from then on; %s", moment(t.until), remedy)
	default:
		return mesh.Problem{}, false
	}
	return p, true
}

func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// read reads the files again if they are not what they were. The caller holds mu.
func (c *Credentials) read(now time.Time) {
	looks := c.files.looks()
	// What could not be used is read each time: a file that meshd may read now looks as before.
	if looks == c.looks && c.bad == nil {
		return
	}
	c.looks = looks
	next, err := c.files.read()
	if err == nil {
		err = next.worse(c.good, now)
	}
	if bad, ok := errors.AsType[*fileError](err); ok {
		if c.bad == nil {
			c.since = now
		}
		c.bad = bad
		return
	}
	c.good, c.bad = next, nil
	c.log.Info("certificates have been read again", "cert", c.files.Cert, "until", moment(next.terms[0].until))
}

// worse is an error if these are of no use now, while others are.
func (s *certificates) worse(than *certificates, now time.Time) error {
	for i, t := range s.terms {
		if now.After(t.until) && !now.After(than.terms[i].until) {
			return &fileError{t.file, fmt.Errorf("what is there now has expired at %s; put a valid one there", moment(t.until))}
		}
	}
	return nil
}

// problems is what is wrong with the files now.
func (c *Credentials) problems() []mesh.Problem {
	if c == nil {
		return nil
	}
	_, wrong := c.look(time.Now())
	return wrong
}

// look looks at the files. It returns what is to be used, nil for plain text, and what is wrong, of which it logs what is new.
func (c *Credentials) look(now time.Time) (good *certificates, wrong []mesh.Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.good == nil {
		return nil, nil
	}
	c.read(now)
	good = c.good
	if c.bad != nil {
		wrong = append(wrong, mesh.Problem{
			Severity: mesh.Error, Code: CodeCertificateUnusable, Origin: mesh.Origin{Registry: "xds", Source: c.bad.file}, Since: c.since,
			Message: c.bad.err.Error(), Serving: "the certificates that were read before, valid until " + moment(good.terms[0].until),
		})
	}
	for _, t := range good.terms {
		if p, ok := t.problem(now); ok {
			wrong = append(wrong, p)
		}
	}
	for _, p := range wrong {
		if !slices.ContainsFunc(c.told, func(q mesh.Problem) bool { return p.String() == q.String() }) {
			c.log.Warn("something is wrong with certificates", "problem", p)
		}
	}
	c.told = wrong
	return good, slices.Clone(wrong)
}

// option makes a gRPC server use the credentials; nil is plain text of which nobody is told when TLS would have been right.
func (c *Credentials) option() grpc.ServerOption {
	if c == nil {
		return grpc.Creds(insecure.NewCredentials())
	}
	return grpc.Creds(handshakes{insecure.NewCredentials(), c})
}

// handshakes are what gRPC wants of credentials: the server's part, and beside it what only clients use.
type handshakes struct {
	credentials.TransportCredentials
	c *Credentials
}

// ServerHandshake begins a connection with the certificates of now.
func (h handshakes) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	now := time.Now()
	good, _ := h.c.look(now)
	if good == nil {
		if speaksTLS(conn) { // it is answered in plain text all the same, by which it knows
			h.c.turnAway(conn, now, turned{why: "it speaks TLS and this is plain text: give meshd a certificate (xds-tls-cert-file), or make its bootstrap without --xds-ca-file"}, "")
		}
		return h.TransportCredentials.ServerHandshake(conn)
	}
	secure, info, err := good.server.ServerHandshake(conn)
	if err != nil {
		who, detail := h.c.reason(err)
		h.c.turnAway(conn, now, who, detail)
	}
	return secure, info, err
}

// speaksTLS waits for the first byte that a client sends, and leaves it there. The connection itself is not wrapped, since gRPC reads
// from one of TCP without keeping a buffer for it.
func speaksTLS(conn net.Conn) bool {
	const handshake = 0x16 // the type of TLS' first record
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var first [1]byte
	n := 0
	err = raw.Read(func(fd uintptr) bool {
		var err error
		n, _, err = syscall.Recvfrom(int(fd), first[:], syscall.MSG_PEEK)
		return !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR)
	})
	return err == nil && n == 1 && first[0] == handshake
}

// turned is a client that could not connect, and why: in words that are the same each time.
type turned struct{ host, why string }

// tally is how often it has tried since it was last told of.
type tally struct {
	times int
	told  time.Time
}

// A client that cannot connect tries for ever, every ten seconds or so. It is told of this often, and as many at a time.
const (
	tellAgain  = 10 * time.Minute
	mostTurned = 100
)

// reason is why a handshake has failed, and what differs from time to time. Who only looks whether the port is open is no news, and
// has no reason.
func (c *Credentials) reason(err error) (who turned, detail string) {
	detail = bare(err)
	verification, _ := errors.AsType[*tls.CertificateVerificationError](err)
	if verification != nil && len(verification.UnverifiedCertificates) > 0 {
		detail = fmt.Sprintf("%s, of %q", bare(verification.Err), holderOf(verification.UnverifiedCertificates[0]))
	}
	switch {
	case isA[tls.RecordHeaderError](err):
		who.why = "it does not speak TLS: make its bootstrap with --xds-ca-file"
	case verification != nil:
		who.why = c.unfit(verification.Err)
	case strings.Contains(detail, "client didn't provide a certificate"):
		who.why = "it has no certificate: make its bootstrap with --xds-cert-file and --xds-key-file"
	case strings.HasPrefix(detail, "remote error: "): // its alert
		who.why = "it ends the handshake: does it know the authority and the name in meshd's certificate?"
	case strings.Contains(detail, "ALPN"):
		who.why, detail = "it does not offer HTTP/2 (ALPN h2)", ""
	case isA[net.Error](err), detail == "EOF":
	default:
		who.why = "the handshake fails"
	}
	return who, detail
}

// unfit is why a client's certificate is not taken.
func (c *Credentials) unfit(err error) string {
	invalid, _ := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case isA[x509.UnknownAuthorityError](err):
		return "its certificate is of no authority in " + c.files.ClientCA
	case invalid.Cert != nil && invalid.Reason == x509.Expired:
		return "its certificate has expired, or is not valid yet"
	case invalid.Cert != nil && invalid.Reason == x509.IncompatibleUsage:
		return "its certificate is not one for clients (extended key usage clientAuth)"
	}
	return "its certificate is not taken"
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// turnAway tells of a client that could not connect, but not each time.
func (c *Credentials) turnAway(conn net.Conn, now time.Time, who turned, detail string) {
	if who.why == "" {
		c.log.Debug("a connection has ended before it had begun", "peer", conn.RemoteAddr(), "reason", detail)
		return
	}
	who.host, _, _ = net.SplitHostPort(conn.RemoteAddr().String())
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.turned[who]
	if t == nil {
		if len(c.turned) >= mostTurned {
			maps.DeleteFunc(c.turned, func(_ turned, t *tally) bool { return now.Sub(t.told) >= tellAgain })
		}
		if len(c.turned) >= mostTurned {
			return
		}
		t = &tally{}
		c.turned[who] = t
	}
	t.times++
	if now.Sub(t.told) < tellAgain {
		return
	}
	c.log.Warn("a client cannot connect", "peer", conn.RemoteAddr(), "reason", who.why, "detail", detail, "times", t.times)
	t.told, t.times = now, 0
}

// identityOf is who a client is by its certificate; empty if it has none or nobody has looked at it.
func identityOf(info credentials.AuthInfo) string {
	t, ok := info.(credentials.TLSInfo)
	if !ok || len(t.State.VerifiedChains) == 0 {
		return ""
	}
	return holderOf(t.State.PeerCertificates[0])
}

// holderOf is the name of whom a certificate is for: its first URI, else its first DNS name, else its common name.
func holderOf(c *x509.Certificate) string {
	uri, name := "", ""
	if len(c.URIs) > 0 {
		uri = c.URIs[0].String()
	}
	if len(c.DNSNames) > 0 {
		name = c.DNSNames[0]
	}
	return cmp.Or(uri, name, c.Subject.CommonName)
}
