"""Serving: a running job's state over HTTP, read-only, beside its writer.

    command ─▶ server ─▶ answers ─▶ shared ─▶ a followed state
    sockets, tokens      a request   threads, one version per answer

`answers` turns a request into bytes and knows no sockets, so that every answer can be tested without one.
"""

from .server import Server, serve

__all__ = ["Server", "serve"]
