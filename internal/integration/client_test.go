package integration

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

// capture is how the application's connections reach its Envoy.
type capture string

const (
	redirect capture = "redirect"
	none     capture = "none"
)

// application dials as one would on a machine of the mesh: the address of the service where connections are redirected, the
// loopback where they are not.
type application struct {
	capture capture
	at      string            // the loopback address that its Envoy listens on, if that is another than 127.0.0.1
	ips     map[string]string // what the name of a service resolves to; if nothing else, anyServiceIP
	ca      *authority
	names   *nameServer // that Envoy asks
}

// caller is one client of one service, with its connections.
type caller struct {
	// call makes one request and gives the address of the upstream that answered. It is not for concurrent use.
	call  func(context.Context) (upstream string, err error)
	close func()
}

func (a *application) dial(ctx context.Context, target string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		return nil, err
	}
	if a.capture == none {
		return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(cmp.Or(a.at, "127.0.0.1"), port))
	}
	ip := a.ips[host]
	switch {
	case net.ParseIP(host) != nil:
		ip = host
	case ip == "":
		ip = anyServiceIP
	}
	return marked.DialContext(ctx, "tcp", net.JoinHostPort(ip, port))
}

// marked makes connections that are redirected.
var marked = net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
	var err error
	if control := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_MARK, redirectMark)
	}); control != nil {
		return control
	}
	return err
}}

// http calls a URL on connections that are kept.
func (a *application) http(url string) caller { return a.httpCaller(url, false) }

// httpOnce calls a URL, each time on a connection of its own.
func (a *application) httpOnce(url string) caller { return a.httpCaller(url, true) }

func (a *application) httpCaller(url string, once bool) caller {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, target string) (net.Conn, error) { return a.dial(ctx, target) },

		DisableKeepAlives: once,
	}
	return caller{
		call: func(ctx context.Context) (string, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return "", err
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				return "", err
			}
			if resp.StatusCode != http.StatusOK {
				return "", fmt.Errorf("%s: %s", resp.Status, body)
			}
			return resp.Header.Get(upstreamHeader), nil
		},
		close: transport.CloseIdleConnections,
	}
}

// grpc calls grpc.health.v1 on one connection.
func (a *application) grpc(target string) caller {
	conn, err := grpc.NewClient("passthrough:///"+target, grpc.WithContextDialer(a.dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return caller{call: func(context.Context) (string, error) { return "", err }, close: func() {}}
	}
	client := healthpb.NewHealthClient(conn)
	return caller{
		call: func(ctx context.Context) (string, error) {
			var header metadata.MD
			resp, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header))
			if err != nil {
				return "", err
			}
			if s := resp.GetStatus(); s != healthpb.HealthCheckResponse_SERVING {
				return "", fmt.Errorf("grpc health: %s", s)
			}
			return strings.Join(header.Get(upstreamHeader), ","), nil
		},
		close: func() { conn.Close() },
	}
}

// tcp greets the upstream, each time on a connection of its own.
func (a *application) tcp(target string) caller { return oneByOne(a.dial, target) }

// tls is tcp within TLS.
func (a *application) tls(target string) caller { return oneByOne(a.dialTLS, target) }

// dialTLS is dial, and a handshake for the target's host as the server name, which the certificate has to be for.
func (a *application) dialTLS(ctx context.Context, target string) (net.Conn, error) {
	host, _, _ := strings.Cut(target, ":")
	raw, err := a.dial(ctx, target)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{ServerName: host, RootCAs: a.ca.pool})
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

type dialer func(ctx context.Context, target string) (net.Conn, error)

func oneByOne(dial dialer, target string) caller {
	return caller{
		call: func(ctx context.Context) (string, error) {
			conn, err := dial(ctx, target)
			if err != nil {
				return "", err
			}
			defer conn.Close()
			return greet(ctx, conn)
		},
		close: func() {},
	}
}

// tcpKept has one connection to the upstream for as long as it lasts; when it is lost that is a failed call.
func (a *application) tcpKept(target string) caller { return kept(a.dial, target) }

// tlsKept is tcpKept within TLS.
func (a *application) tlsKept(target string) caller { return kept(a.dialTLS, target) }

func kept(dial dialer, target string) caller {
	var conn net.Conn
	var upstream string
	return caller{
		call: func(ctx context.Context) (string, error) {
			var err error
			if conn == nil {
				if conn, err = dial(ctx, target); err == nil {
					upstream, err = greet(ctx, conn)
				}
			} else {
				err = echo(ctx, conn)
			}
			if err != nil && conn != nil {
				conn.Close()
				conn = nil
			}
			return upstream, err
		},
		close: func() {
			if conn != nil {
				conn.Close()
			}
		},
	}
}

const greeting = "hello\n"

// greet sends the first line and gives the upstream's name, which comes before the echo.
func greet(ctx context.Context, conn net.Conn) (string, error) {
	var lines [2]string
	if err := exchange(ctx, conn, lines[:]); err != nil {
		return "", err
	}
	if lines[1] != greeting {
		return "", fmt.Errorf("%q came back as %q", greeting, lines[1])
	}
	return strings.TrimSuffix(lines[0], "\n"), nil
}

func echo(ctx context.Context, conn net.Conn) error {
	var lines [1]string
	if err := exchange(ctx, conn, lines[:]); err != nil {
		return err
	}
	if lines[0] != greeting {
		return fmt.Errorf("%q came back as %q", greeting, lines[0])
	}
	return nil
}

// exchange sends the greeting and reads as many lines as there are places for.
func exchange(ctx context.Context, conn net.Conn, lines []string) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(conn, greeting); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	for i := range lines {
		var err error
		if lines[i], err = r.ReadString('\n'); err != nil {
			return fmt.Errorf("waiting for line %d: %w", i+1, err)
		}
	}
	return nil
}

// from takes an answer of any other upstream for a failure.
func (c caller) from(upstreams ...string) caller {
	return caller{close: c.close, call: func(ctx context.Context) (string, error) {
		upstream, err := c.call(ctx)
		if err == nil && !slices.Contains(upstreams, upstream) {
			err = fmt.Errorf("%s answered, want one of %q", upstream, upstreams)
		}
		return upstream, err
	}}
}

// once makes one call with a client of its own.
func (c caller) once(ctx context.Context) (string, error) {
	defer c.close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.call(ctx)
}

// times makes n calls and counts who answered.
func (c caller) times(ctx context.Context, n int) (map[string]int, error) {
	defer c.close()
	answered := map[string]int{}
	for range n {
		upstream, err := func() (string, error) {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			return c.call(ctx)
		}()
		if err != nil {
			return answered, err
		}
		answered[upstream]++
	}
	return answered, nil
}
