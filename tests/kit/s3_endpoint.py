# SPDX-License-Identifier: Apache-2.0
"""A server that stores objects and returns them as S3 does."""

from __future__ import annotations

import hashlib
import itertools
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from tests.kit.waiting import SHUTDOWN_POLL_S

OWN_HEADERS = "x-amz-meta-"
CODES = {403: "AccessDenied", 404: "NoSuchKey", 503: "SlowDown"}


class S3Endpoint:
    """Answers as S3 does. An object is at ``/bucket/name``; it is read whole or in ranges of bytes, and written at once
    or in parts. ``fails`` has one status for each of the next reads, with which it fails. ``signed`` has the
    authorization of each read. ``headers`` has the headers that a writer gave to an object. Signatures are not
    checked."""

    def __init__(self, bucket: str) -> None:
        self.bucket, self.objects, self.fails = bucket, dict[str, bytes](), list[int]()
        self.requests, self.signed = list[str](), list[str]()
        self.headers = dict[str, dict[str, str]]()
        self._parts = dict[str, dict[int, bytes]]()
        self._uploads = itertools.count()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.store = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(SHUTDOWN_POLL_S,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def found(self, path: str) -> tuple[int, bytes]:
        """Return the status and the body of the answer to a read."""
        if path == self.bucket:
            return 200, b""
        status = self.fails.pop(0) if self.fails else 200 if path in self.objects else 404
        if status == 200:
            return status, self.objects[path]
        return status, f"<Error><Code>{CODES[status]}</Code><Message>no</Message></Error>".encode()

    def written(self, method: str, path: str, asked: dict[str, str], body: bytes) -> bytes:
        """Carry out a writer's request, and return the answer. An object in parts exists once it is complete."""
        number = asked.get("uploadId", "")
        match method:
            case "DELETE":
                self.objects.pop(path, None)
                self._parts.pop(number, None)
            case "PUT" if number:
                self._parts[number][int(asked["partNumber"])] = body
            case "PUT":
                self.objects[path] = body
            case "POST" if "uploads" in asked:
                number = f"upload-{next(self._uploads)}"
                self._parts[number] = {}
                return _xml("InitiateMultipartUploadResult", Bucket=self.bucket, Key=path, UploadId=number)
            case "POST" if number:
                self.objects[path] = b"".join(part for _, part in sorted(self._parts.pop(number).items()))
                return _xml("CompleteMultipartUploadResult", Bucket=self.bucket, Key=path, ETag=_etag(body))
        return b""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    store: S3Endpoint


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._read(with_body=False)

    def do_GET(self) -> None:
        self._read(with_body=True)

    def do_PUT(self) -> None:
        self._write()

    def do_POST(self) -> None:
        self._write()

    def do_DELETE(self) -> None:
        self._write()

    def _read(self, *, with_body: bool) -> None:
        path = self._path()
        self.server.store.requests.append(f"{self.command} {path}")
        self.server.store.signed.append(self.headers.get("Authorization") or "")
        status, body = self.server.store.found(path)
        if status == 200 and (wanted := self.headers.get("Range")):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            status, body = 206, body[int(first) : int(last) + 1 if last else None]
        self._answer(status, body, with_body=with_body)

    def _write(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        asked_of = {name: values[0] for name, values in asked.items()}
        given = {name: value for name, value in self.headers.items() if name.lower().startswith(OWN_HEADERS)}
        if given:
            self.server.store.headers[self._path()] = given
        said = self.server.store.written(self.command, self._path(), asked_of, body)
        self._answer(204 if self.command == "DELETE" else 200, said, etag=_etag(body))

    def _path(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    def _answer(self, status: int, body: bytes, *, with_body: bool = True, etag: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/xml" if status >= 400 else "binary/octet-stream")
        self.send_header("ETag", etag or _etag(body))
        self.send_header("Last-Modified", "Sat, 28 Nov 2026 05:00:00 GMT")
        for name, value in self.server.store.headers.get(self._path(), {}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _xml(name: str, **members: str) -> bytes:
    inside = "".join(f"<{key}>{value}</{key}>" for key, value in members.items())
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    return f'{head}<{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inside}</{name}>'.encode()
