"""The state of a running job over HTTP: GET /STORE/KEY gives a key's records as JSON, at the newest committed version.

python examples/serve_state.py LOCATION [PORT]        curl localhost:8000/windows/alice
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import unquote

import hybridstore as hs

_FIELDS = ("key", "start", "end", "value")


def server(location: str, port: int) -> HTTPServer:
    view = hs.inspect(location).follow()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            store, _, key = unquote(self.path).strip("/").partition("/")
            view.refresh()
            try:
                rows = [{name: getattr(row, name) for name in _FIELDS} for row in view.get(store, key)]
                answer: dict[str, Any] = {"version": view.version, "rows": rows}
                self.send_response(200)
            except (KeyError, TypeError) as error:
                answer = {"error": str(error)}
                self.send_response(404)
            self.end_headers()
            self.wfile.write(json.dumps(answer, default=str).encode())

    return HTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    server(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8000).serve_forever()
