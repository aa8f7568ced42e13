"""The S3 server of the tests with moto's answers, which follow S3 further than those of `tests.tools.s3_server`."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any, Self

from tests.tools.s3_server import BUCKET, Answer, Request, S3Server


class MotoServer(S3Server):
    """See the module. What one has put is gone when the `with` ends: moto has one state in a process."""

    def __init__(self, latency: float = 0.0) -> None:
        super().__init__(latency)
        self._steps = threading.Lock()

    def __enter__(self) -> Self:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.test import Client

        self._moto: Any = Client(DomainDispatcherApplication(create_backend_app), use_cookies=False)
        super().__enter__()
        self.carry_out(Request("PUT", f"/{BUCKET}", {}, b""))
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__(*_)
        self.carry_out(Request("POST", "/moto-api/reset", {}, b""))

    def carry_out(self, request: Request) -> Answer:
        # moto asks whether an object is there and puts it in two steps; on S3 a conditional put is one
        with nullcontext() if request.method in ("GET", "HEAD") else self._steps:
            answer = self._moto.open(
                request.target,
                base_url=self.endpoint,
                method=request.method,
                headers=request.headers,
                data=request.body,
            )
        lost = ("Connection", "Transfer-Encoding")
        headers = {name: value for name, value in answer.headers.items() if name not in lost}
        return Answer(answer.status_code, headers, answer.data)
