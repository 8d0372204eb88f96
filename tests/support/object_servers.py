"""Servers of objects for tests: moto's S3, started once per process, and a small S3 that behaves badly on order.

With `TESTS_S3_SERVER=http://HOST:PORT`, a server of that address takes the place of moto. It has to know the key
`test-key-id` with the secret of `SECRET`.
"""

from __future__ import annotations

import atexit
import importlib
import itertools
import os
import secrets
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.support.leftovers import KEPT

SECRET = "a-secret-of-the-tests"
OTHER_SERVER = os.environ.get("TESTS_S3_SERVER")
_MOTO = """
import logging, sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
def one_by_one(environ, start_response):
    with lock:  # moto looks at a condition and then puts: two at once would both succeed
        return moto(environ, start_response)
logging.disable()
server = make_server("127.0.0.1", 0, one_by_one, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()  # ends with the test process, however that ends
"""
_run, _buckets = secrets.token_hex(4), itertools.count()


def options_of(endpoint: str) -> dict[str, Any]:
    """Return the storage options of a server."""
    return {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": "test-key-id",
        "secret_access_key": SECRET,
    }


@cache
def moto_endpoint() -> str:
    """Return the address of this process's moto, which is started by the first call and has answered a PUT."""
    if OTHER_SERVER:
        return OTHER_SERVER
    child = subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdin is not None and child.stdout is not None
    endpoint = f"http://127.0.0.1:{int(child.stdout.readline())}"

    def stop() -> None:
        child.kill()
        child.communicate()

    KEPT.add(child.pid)
    atexit.register(stop)
    _make_bucket(endpoint, "first")
    return endpoint


def moto_bucket() -> tuple[str, dict[str, Any]]:
    """Return the URL of a folder in a new bucket of moto, and the options for it."""
    endpoint, name = moto_endpoint(), f"bucket-{_run}-{next(_buckets)}"
    _make_bucket(endpoint, name)
    return f"s3://{name}/some/folder", options_of(endpoint)


def _make_bucket(endpoint: str, name: str) -> None:
    if OTHER_SERVER:
        names = ("endpoint_url", "region_name", "aws_access_key_id", "aws_secret_access_key")
        facts: Any = dict(zip(names, options_of(endpoint).values(), strict=True))
        importlib.import_module("boto3").client("s3", **facts).create_bucket(Bucket=name)
        return
    # moto finds the service by the header, and checks no signature.
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"}
    request = urllib.request.Request(f"{endpoint}/{name}", method="PUT", headers=signed)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


class OddS3:
    """An S3 of PUT, GET and bulk deletion in memory.

    `rule(method, path)` says how it treats a request: a status to answer without doing it, "lost" to do it and
    close the connection, "ignore" to do it whatever its conditions say, "race" to check the condition and to wait for
    a second request before it is done; None does it well.
    """

    def __init__(self, rule: Callable[[str, str], int | str | None]) -> None:
        self.rule = rule
        self.objects: dict[str, bytes] = {}
        self.generations: Counter[str] = Counter()
        """How often each object was put, which Google's conditions are about."""
        self.requests: list[str] = []
        self.barrier = threading.Barrier(2, timeout=1)
        odd = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                odd.put(self)

            def do_GET(self) -> None:
                odd.get(self)

            def do_POST(self) -> None:
                odd.post(self)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    @property
    def options(self) -> dict[str, Any]:
        """The storage options of this server."""
        return options_of(f"http://127.0.0.1:{self.server.server_address[1]}")

    def put(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a PUT."""
        data = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        rule = self._met(handler)
        if isinstance(rule, int):
            self.answer(handler, rule)
            return
        old = self.objects.get(handler.path)
        wanted = handler.headers.get("If-Match")
        exists = handler.headers.get("If-None-Match") and old is not None
        stale = wanted is not None and (old is None or wanted != self._tag(old))
        generation = handler.headers.get("x-goog-if-generation-match")
        stale = stale or generation not in (None, str(self.generations[handler.path]))
        if rule != "ignore" and (exists or stale):
            self.answer(handler, 412)
            return
        if rule == "race":
            try:
                self.barrier.wait()
            except threading.BrokenBarrierError:
                self.barrier.reset()
        self.objects[handler.path] = data
        self.generations[handler.path] += 1
        if rule == "lost":
            handler.close_connection = True
        else:
            self.answer(handler, 200, data, body=False)

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a deletion, which deletes nothing."""
        handler.rfile.read(int(handler.headers["Content-Length"]))
        rule = self._met(handler)
        self.answer(handler, rule if isinstance(rule, int) else 200, b"<DeleteResult/>")

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a GET."""
        rule, data = self._met(handler), self.objects.get(handler.path)
        if isinstance(rule, int) or data is None:
            self.answer(handler, rule if isinstance(rule, int) else 404)
        elif (span := handler.headers.get("Range")) is not None:
            start, stop = (int(n) for n in span.removeprefix("bytes=").split("-"))
            part = data[start : stop + 1]
            said = {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(data)}"}
            self.answer(handler, 206, data, part, headers=said)
        else:
            self.answer(handler, 200, data)

    def _met(self, handler: BaseHTTPRequestHandler) -> int | str | None:
        self.requests.append(f"{handler.command} {handler.path}")
        return self.rule(handler.command, handler.path)

    def _tag(self, data: bytes) -> str:
        return f'"{md5(data).hexdigest()}"'

    def answer(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        data: bytes = b"",
        part: bytes | None = None,
        *,
        body: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send an answer; an error repeats what the request was signed with, as real ones do."""
        said = f"<Error><Code>Code{status}</Code><Message>{SECRET} test-key-id</Message></Error>".encode()
        whole = data if part is None else part
        sent = said if status >= 400 else whole if body else b""
        handler.send_response(status)
        handler.send_header("ETag", self._tag(data))
        handler.send_header("x-goog-generation", str(self.generations[handler.path]))
        handler.send_header("Last-Modified", "Fri, 27 Nov 2026 17:00:00 GMT")
        handler.send_header("Content-Length", str(len(sent)))
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(sent)
