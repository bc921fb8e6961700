"""The upstreams of scripts/run: who answers is seen from the answer.

HTTP on 127.0.0.1:18081 (hello from a) and 127.0.0.1:18082 (hello from b), TCP that echoes lines on 127.0.0.1:18090.
"""

import http.server
import socketserver
import threading


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def hello(name):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            body = f"hello from {name}, asked as {self.headers['Host']}{self.path}\n".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    return Handler


class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(b"echo: " + line)


servers = [
    Server(("127.0.0.1", 18081), hello("a")),
    Server(("127.0.0.1", 18082), hello("b")),
    Server(("127.0.0.1", 18090), Echo),
]
for server in servers[1:]:
    threading.Thread(target=server.serve_forever, daemon=True).start()
try:
    servers[0].serve_forever()
except KeyboardInterrupt:
    pass
