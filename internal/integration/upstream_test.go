package integration

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

// upstreamHeader says which upstream answered, as all of them do: by the address that it listens on.
const upstreamHeader = "x-upstream"

// The upstreams live as long as the test that starts them.

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	netip.MustParseAddrPort(address)
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// startHTTP starts HTTP/1.1 and HTTP/2 (by prior knowledge) servers, which say with which authority and path they were asked.
func startHTTP(t *testing.T, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		l := listen(t, address)
		s := &http.Server{
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set(upstreamHeader, address)
				fmt.Fprintf(w, "%s %s %s %s\n", address, r.Proto, r.Host, r.URL.Path)
			}),
			Protocols: new(http.Protocols),
		}
		s.Protocols.SetHTTP1(true)
		s.Protocols.SetUnencryptedHTTP2(true)
		var serving sync.WaitGroup
		serving.Go(func() { _ = s.Serve(l) })
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			serving.Wait()
		})
	}
}

// startGRPC starts servers of grpc.health.v1 without TLS.
func startGRPC(t *testing.T, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		l := listen(t, address)
		s := grpc.NewServer(grpc.UnaryInterceptor(
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
				if err := grpc.SetHeader(ctx, metadata.Pairs(upstreamHeader, address)); err != nil {
					return nil, err
				}
				return handle(ctx, req)
			}))
		healthpb.RegisterHealthServer(s, health.NewServer())
		var serving sync.WaitGroup
		serving.Go(func() { _ = s.Serve(l) })
		t.Cleanup(func() {
			s.Stop()
			serving.Wait()
		})
	}
}

// startTCP starts servers which, once they were sent a line, say their address in a line and echo from then on. They wait for
// the client's first line because a listener that sniffs does so too.
func startTCP(t *testing.T, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		serveEcho(t, address, listen(t, address))
	}
}

// startTLS starts servers like those of startTCP behind TLS, which have a certificate for whatever name is asked for.
func startTLS(t *testing.T, ca *authority, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		serveEcho(t, address, tls.NewListener(listen(t, address), &tls.Config{GetCertificate: ca.certificate}))
	}
}

func serveEcho(t *testing.T, address string, l net.Listener) {
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[conn] = true
			mu.Unlock()
			serving.Go(func() {
				defer func() {
					mu.Lock()
					delete(open, conn)
					mu.Unlock()
					conn.Close()
				}()
				r := bufio.NewReader(conn)
				first, err := r.ReadString('\n')
				if err != nil {
					return
				}
				if _, err := fmt.Fprintf(conn, "%s\n%s", address, first); err == nil {
					_, _ = io.Copy(conn, r)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for conn := range open {
			conn.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
}

// authority signs certificates for any name, and clients trust it.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool

	mu     sync.Mutex
	issued map[string]*tls.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &authority{key: key, pool: x509.NewCertPool(), issued: map[string]*tls.Certificate{}}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "meshd's tests"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	ca.pool.AddCert(ca.cert)
	return ca
}

func (ca *authority) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := hello.ServerName
	if name == "" {
		return nil, fmt.Errorf("no server name from %s", hello.Conn.RemoteAddr())
	}
	ca.mu.Lock()
	defer ca.mu.Unlock()
	if cert := ca.issued[name]; cert != nil {
		return cert, nil
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(int64(len(ca.issued) + 2)), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: ca.cert.NotBefore, NotAfter: ca.cert.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca.cert, &ca.key.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	cert := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: ca.key}
	ca.issued[name] = cert
	return cert, nil
}
