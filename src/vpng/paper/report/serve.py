"""A page on the loopback interface: one document, for this machine alone."""

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"


def make_server(page: str, port: int = 0) -> ThreadingHTTPServer:
    """A server of `page` at `/` and nothing else, on a free port unless one is given."""
    body = page.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            port = self.server.server_port  # pyright: ignore[reportAttributeAccessIssue]
            # Another site's name that resolves to this machine gets nothing.
            names = {f"{name}:{port}" for name in (HOST, "localhost")}
            if self.headers.get("Host") not in names or self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: the terminal belongs to the user."""

    return ThreadingHTTPServer((HOST, port), Handler)


def address(server: ThreadingHTTPServer) -> str:
    """Where the page is."""
    return f"http://{HOST}:{server.server_port}/"
