# SPDX-License-Identifier: Apache-2.0
"""A server that answers reads of objects as S3 does."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CODES = {403: "AccessDenied", 404: "NoSuchKey", 503: "SlowDown"}


class S3Endpoint:
    """Answers as S3 does: objects by ``/bucket/name``, whole or a range of bytes. ``fails`` are the statuses of the
    next requests for objects, one each. ``signed`` has the authorization of each request."""

    def __init__(self, bucket: str) -> None:
        self.bucket, self.objects, self.fails = bucket, dict[str, bytes](), list[int]()
        self.requests, self.signed = list[str](), list[str]()
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(with_body=False)

            def do_GET(self) -> None:
                self._answer(with_body=True)

            def _answer(self, *, with_body: bool) -> None:
                path = self.path.partition("?")[0].strip("/")
                store.requests.append(f"{self.command} {path}")
                store.signed.append(self.headers.get("Authorization") or "")
                status, body = store._found(path)
                if status == 200 and (wanted := self.headers.get("Range")):
                    first, _, last = wanted.removeprefix("bytes=").partition("-")
                    status, body = 206, body[int(first) : int(last) + 1]
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Type", "application/xml" if status >= 400 else "binary/octet-stream")
                self.end_headers()
                if with_body:
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _found(self, path: str) -> tuple[int, bytes]:
        if path == self.bucket:
            return 200, b""
        status = self.fails.pop(0) if self.fails else 200 if path in self.objects else 404
        if status == 200:
            return status, self.objects[path]
        return status, f"<Error><Code>{CODES[status]}</Code><Message>no</Message></Error>".encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
