# SPDX-License-Identifier: Apache-2.0
"""A server that does only a bookie's I/O: ``python -m benchmarks.peers.raw_server PATH BYTES`` prints its port. If
``CERTIFICATE KEY AUTHORITY`` follow, which are files in PEM, it speaks TLS.

A request is an operation and a number. WRITE is followed by that many bytes. They are received into an aligned buffer,
written to the file, with O_DIRECT where that is allowed, and acked by one byte after ``fdatasync``. ECHO
answers one byte. SYNC writes and syncs one block and answers the microseconds. STREAM answers that many bytes of the
file, and READ the entry of that number.
"""

from __future__ import annotations

import mmap
import os
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bk_cli.local.lifeline import end_with
from bk_core.access.tls import Tls, TlsPaths

REQUEST = struct.Struct("<II")
WRITE, ECHO, SYNC, STREAM, READ = range(5)
ENTRY_BYTES = 1_000
DIRECT = getattr(os, "O_DIRECT", 0)
BLOCK, PIECE = 4096, 1 << 20
MESSAGE_MAX = 4 << 20


def tls_paths(pem: Sequence[str]) -> TlsPaths:
    """Return the paths of a certificate, its key and its authority."""
    certificate, key, authority = pem
    return TlsPaths(ca_path=authority, certificate_path=certificate, key_path=key)


def open_direct(path: Path) -> int:
    """Open a file for direct writes, or through the page cache if the system refuses them."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | DIRECT)
    except OSError:
        return os.open(path, os.O_RDWR | os.O_CREAT)


class RawServer:
    """A file that is written over and over. All its blocks were written before, as in a recycled segment."""

    def __init__(self, path: Path, size: int) -> None:
        self._size, self._at = size, 0
        self._direct = open_direct(path)
        with mmap.mmap(-1, PIECE) as block:
            for at in range(0, size, PIECE):
                block[:] = os.urandom(PIECE)
                os.pwritev(self._direct, [block], at)
        os.fdatasync(self._direct)
        self._cached = os.open(path, os.O_RDONLY)

    def write(self, buffer: memoryview) -> None:
        """Write the whole buffer and sync once."""
        if self._at + len(buffer) > self._size:
            self._at = 0
        os.pwritev(self._direct, [buffer], self._at)
        os.fdatasync(self._direct)
        self._at += len(buffer)

    def serve(self, connection: socket.socket) -> None:
        """Answer one client until it is gone."""
        body = memoryview(mmap.mmap(-1, MESSAGE_MAX))
        head = memoryview(bytearray(REQUEST.size))
        while filled(connection, head):
            what, size = REQUEST.unpack(head)
            if what == WRITE:
                filled(connection, body[:size])
                self.write(body[: -(-size // BLOCK) * BLOCK])
                connection.sendall(b"\0")
            elif what == ECHO:
                connection.sendall(b"\0")
            elif what == SYNC:
                began = time.perf_counter()
                self.write(body[:BLOCK])
                connection.sendall(struct.pack("<I", int((time.perf_counter() - began) * 1e6)))
            elif what == READ:
                connection.sendall(os.pread(self._cached, ENTRY_BYTES, size * ENTRY_BYTES))
            else:
                self.stream(connection, body[:PIECE], size)

    def stream(self, connection: socket.socket, buffer: memoryview, size: int) -> None:
        at = 0
        for left in range(size, 0, -PIECE):
            os.preadv(self._cached, [buffer], at)
            connection.sendall(buffer[: min(left, PIECE)])
            at = (at + PIECE) % self._size


def filled(connection: socket.socket, buffer: memoryview) -> bool:
    """Receive until the buffer is full. Return whether it is. One call on a TLS socket returns at most a record."""
    flags = 0 if isinstance(connection, ssl.SSLSocket) else socket.MSG_WAITALL
    while buffer:
        received = connection.recv_into(buffer, len(buffer), flags)
        if not received:
            return False
        buffer = buffer[received:]
    return True


def main(path: str, size: str, *pem: str) -> None:
    end_with(sys.stdin.fileno())
    server, tls = RawServer(Path(path), int(size)), Tls(tls_paths(pem)) if pem else None

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.serve(connection if tls is None else tls.server().wrap_socket(connection, server_side=True))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
