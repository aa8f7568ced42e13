"""A local Azure Blob server (Azurite, from npm), where it is installed: `npm install --global azurite`.

    with Azurite() as server:
        storage = CloudStorage("az://container/state", server.options)

CI does not install it: `installed()` says whether its command is on the path.
"""

from __future__ import annotations

import base64
import hmac
import os
import shutil
import subprocess
import urllib.request
from datetime import UTC, datetime

CONTAINER = "container"
_ACCOUNT = "account"
_KEY = base64.b64encode(b"a key that this test has made up").decode()


def installed() -> str | None:
    """Return the path of the server's command, or None."""
    return shutil.which("azurite-blob")


class Azurite:
    """See the module. `url(path)` and `options` are what CloudStorage takes."""

    def __enter__(self) -> Azurite:
        command = [installed() or "azurite-blob", "--inMemoryPersistence", "--skipApiVersionCheck", "--blobPort", "0"]
        environment = {**os.environ, "AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"}
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        printed = ""
        for line in self._process.stdout:
            printed += line
            _, listening, address = line.partition("successfully listens on ")
            if listening:
                self.endpoint = f"{address.strip()}/{_ACCOUNT}"
                break
        else:
            raise RuntimeError(f"azurite did not start: {printed}")
        self._make_container()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()

    @property
    def options(self) -> dict[str, str]:
        return {"endpoint": self.endpoint, "account_name": _ACCOUNT, "account_key": _KEY}

    def url(self, path: str = "") -> str:
        return f"az://{CONTAINER}/{path}".rstrip("/")

    def _make_container(self) -> None:
        """Create the container, by a request that is signed as Azure wants it ("Shared Key"): the client cannot."""
        headers = {
            "x-ms-date": datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"),
            "x-ms-version": "2021-08-06",
        }
        resource = f"/{_ACCOUNT}/{_ACCOUNT}/{CONTAINER}\nrestype:container"
        text = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items()) + resource
        signed = base64.b64encode(hmac.digest(base64.b64decode(_KEY), text.encode(), "sha256")).decode()
        request = urllib.request.Request(f"{self.endpoint}/{CONTAINER}?restype=container", method="PUT", data=b"")
        for name, value in {**headers, "Authorization": f"SharedKey {_ACCOUNT}:{signed}"}.items():
            request.add_header(name, value)
        request.add_header("Content-Type", "")
        urllib.request.urlopen(request).close()
