"""Bucket: a place on an object store, with the settings that reach it: one value, accepted wherever a path is.

    s3://bucket/path   s3a://bucket/path   gs://bucket/path   az://container/path
    abfss://container@account.dfs.core.windows.net/path

A plain text with such a URL is the same place with the settings of the environment. `Bucket` is a text, so `os.fspath`
and every hand-over of a location keep its settings; whoever makes another text of it loses them. No message, no `repr`
and no file contains the value of a setting; a pickle does, which Spark sends to its workers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, Self
from urllib.parse import urlsplit

from .errors import HybridStoreError

_SCHEMES: Final = ("s3", "s3a", "gs", "az", "abfs", "abfss", "memory")
_SERVER: Final = "give s3://, gs:// or az://, and the server as a setting: hybridstore.Bucket('s3://...', endpoint=...)"
_INSTEAD: Final = {
    "hdfs": "mount the cluster's file system (an NFS gateway) and give the path of the mount",
    "viewfs": "mount the cluster's file system (an NFS gateway) and give the path of the mount",
    "dbfs": "give a Unity Catalog volume as a path (/Volumes/...), or the bucket behind it (s3://, gs://, abfss://)",
    "wasb": "give the same container as abfss://container@account.dfs.core.windows.net/path",
    "wasbs": "give the same container as abfss://container@account.dfs.core.windows.net/path",
    "s3n": "give the same bucket as s3://bucket/path",
    "http": _SERVER,
    "https": _SERVER,
}

# Settings of the connection, which obstore takes apart from those of the store, and panics for among them. The others
# of the connection are set by `cloud_storage`.
_CONNECTION: Final = frozenset(
    ("allow_http", "allow_invalid_certificates", "proxy_url", "proxy_ca_certificate", "proxy_excludes", "user_agent")
)
_SET_HERE: Final = re.compile(
    "timeout|connect_timeout|read_timeout|default_content_type|randomize_addresses|(http1|http2|pool)_.*", re.ASCII
)
_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}


class Bucket(str):
    """A place on an object store, and how to reach it: a location for `open`, `run`, `apply`, `inspect`, `serve`,
    `rescale` and every other call that takes one.

    location     `s3://bucket/path`, `gs://...`, `az://container/path` or `abfss://container@account.../path`
    cache        the folder on a local disk where checkpoints of the object store are kept for the next restart, shared
                 by all processes of the machine; None: below Spark's local directory or the user's cache directory
    cache_bytes  the limit of that folder; None: 16 GiB or a fifth of the disk, 0: no cache
    settings     what the environment and the machine's role do not give, by obstore's names: `endpoint`, `region`,
                 `access_key_id`, `secret_access_key`, `account_key`, `allow_http`, `proxy_url`, ...; texts, True or
                 False

    A bucket is a text, its URL; `bucket / "folder"` is the place of a folder below it, with the same settings. A
    text that is made of a bucket in another way (an f-string, `+`, `os.path.join`) has no settings: it is reached
    with those of the environment. The values of settings are shown in no message and written to no file; a pickle
    of a bucket contains them. No request is made. Raises HybridStoreError for a URL or a setting that is not
    supported, and TypeError or ValueError for a wrong `cache` or `cache_bytes`. O(settings).

    >>> jobs = hs.Bucket("s3://jobs", endpoint="https://minio:9000", secret_access_key="...", cache="/fast/cache")
    >>> jobs / "counts"
    Bucket('s3://jobs/counts')
    >>> (jobs / "counts").settings["endpoint"]
    'https://minio:9000'
    """

    __slots__ = ("cache", "cache_bytes", "settings")

    cache: str | None
    cache_bytes: int | None
    settings: Mapping[str, str | bool]

    def __new__(
        cls,
        location: str,
        /,
        *,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        **settings: str | bool,
    ) -> Self:
        if not isinstance(location, str):
            raise TypeError(f"location: found {type(location).__name__}, expected the URL of a bucket as a text")
        if cache is not None and not isinstance(cache, (str, os.PathLike)):
            raise TypeError(f"cache: found {type(cache).__name__}, expected the path of a folder, or None")
        if cache_bytes is not None and type(cache_bytes) is not int:
            raise TypeError(
                f"cache_bytes: found {type(cache_bytes).__name__}, expected a whole number of bytes, or None"
            )
        if cache_bytes is not None and cache_bytes < 0:
            raise ValueError(f"cache_bytes: found {cache_bytes}, expected a whole number of bytes, or None")
        address, base = split_url(location)
        split_settings(address, settings)
        bucket = super().__new__(cls, f"{address}/{base}".rstrip("/"))
        bucket.cache = None if cache is None else os.fspath(cache)
        bucket.cache_bytes = cache_bytes
        bucket.settings = settings
        return bucket

    def __truediv__(self, folder: str) -> Bucket:
        return same_settings(self, f"{self}/{folder}")

    def __repr__(self) -> str:
        return f"Bucket({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Bucket, cache=self.cache, cache_bytes=self.cache_bytes, **self.settings), (str(self),)


def same_settings(bucket: Bucket, location: str) -> Bucket:
    """Return another place that is reached as `bucket` is."""
    return Bucket(location, cache=bucket.cache, cache_bytes=bucket.cache_bytes, **bucket.settings)


def settings_of(location: object) -> Mapping[str, Any]:
    """Return the settings of a location: a bucket's, and none of a plain text or path."""
    return location.settings if isinstance(location, Bucket) else {}


def split_url(url: str) -> tuple[str, str]:
    """Return a bucket's address (`s3://bucket`) and what is below it (`a/b/`). Raises HybridStoreError for a URL that
    is not supported.
    """
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    if scheme not in _SCHEMES:
        schemes = ", ".join(f"{name}://" for name in _SCHEMES[:-1])
        if not scheme:
            raise HybridStoreError(
                f"{scrubbed(url, ())}: found no URL of a bucket, expected one of {schemes} (a path takes no settings: "
                "give it alone)"
            )
        instead = _INSTEAD.get(scheme, f"expected one of {schemes}, or a path")
        raise HybridStoreError(f"{scrubbed(url, ())}: state cannot be kept at {scheme}:// locations: {instead}")
    if parts.query or parts.fragment or parts.password:
        raise HybridStoreError(
            f"{scrubbed(url, ())}: found a query, a fragment or a password, expected a bucket and a path "
            "(credentials belong into the environment or into hybridstore.Bucket)"
        )
    if scheme != "memory" and not parts.netloc:
        raise HybridStoreError(f"{url}: found no bucket, expected {scheme}://bucket/path")
    return f"{parts.scheme}://{parts.netloc}", "".join(f"{part}/" for part in parts.path.split("/") if part)


def split_settings(address: str, settings: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return obstore's options of the store, and those of the connection. Raises HybridStoreError, naming the setting,
    for a value that is not text or a truth value, and for what hybridstore sets itself. O(settings).
    """
    store: dict[str, Any] = {}
    connection: dict[str, Any] = {}
    for name, value in settings.items():
        if not isinstance(name, str) or not isinstance(value, str | bool):
            raise HybridStoreError(
                f"{address}: Bucket: found setting {name!r} with a value of type {type(value).__name__}, expected "
                "texts (or True, False), such as endpoint='http://localhost:9000'"
            )
        plain = re.sub("^(aws|google|azure)_", "", name.lower())
        if _SET_HERE.fullmatch(plain):
            raise HybridStoreError(
                f"{address}: Bucket: found setting {name!r}, which hybridstore sets itself (leave it out)"
            )
        if plain not in _CONNECTION:
            store[name] = value
        elif not plain.startswith("allow_"):
            connection[plain] = value
        elif isinstance(value, bool) or value.lower() in _TRUTH:
            connection[plain] = value if isinstance(value, bool) else _TRUTH[value.lower()]
        else:
            raise HybridStoreError(f"{address}: Bucket: setting {name!r}: expected 'true' or 'false'")
    return store, connection


def scrubbed(text: str, secrets: Iterable[Any]) -> str:
    """Return a text without the values of settings, and without what is signed or secret in a URL."""
    text = re.sub(r"\?[^\s\"')]+", "?...", text)
    text = re.sub(r"//[^/\s@]*:[^/\s@]*@", "//...@", text)
    for secret in secrets:
        if isinstance(secret, str) and len(secret) > 3 and not secret.startswith("http"):
            text = text.replace(secret, "...")
    return text
