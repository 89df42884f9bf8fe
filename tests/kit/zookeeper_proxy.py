# SPDX-License-Identifier: Apache-2.0
"""A proxy between one client and ZooKeeper that can lose answers, cut the connection and garble an answer."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

_WRITES = {1, 2, 5, 14, 15}  # create, delete, setData, multi, create2


class ZooKeeperProxy:
    """Listens on a free port of loopback and passes whole packets on."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._losses: list[bool] = []
        self._garble = False
        self._is_cut = False
        self._lost: dict[socket.socket, int] = {}  # server socket → xid of the answer to lose
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next_answer(self, *, applied: bool) -> None:
        """Cut the connection instead of passing the next write on, or instead of passing its answer back."""
        with self._lock:
            self._losses.append(applied)

    def garble_next_answer(self) -> None:
        """Give the next answer another number than the request's."""
        self._garble = True

    @contextlib.contextmanager
    def holding_requests(self) -> Iterator[None]:
        """Take requests and pass them on only afterwards."""
        with self._lock:
            yield

    def cut(self) -> None:
        """Break every connection and accept none until :meth:`restore`."""
        self._is_cut = True
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            _shut(one)

    def restore(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        _shut(self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                if self._is_cut:
                    _shut(client)
                    continue
                try:
                    server = socket.create_connection(self._upstream)
                except OSError:
                    _shut(client)
                    continue
                with self._lock:
                    self._sockets |= {client, server}
                threading.Thread(target=self._pump_requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._pump_answers, args=(client, server), daemon=True).start()

    def _pump_requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            server.sendall(_packet(client))  # connect
            while True:
                packet = _packet(client)
                xid, kind = struct.unpack_from(">ii", packet, 4)
                with self._lock:
                    loss = self._losses.pop(0) if kind in _WRITES and self._losses else None
                if loss is False:
                    break
                if loss:
                    self._lost[server] = xid
                server.sendall(packet)
        self._end(client, server)

    def _pump_answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client.sendall(_packet(server))  # connect
            while True:
                packet = _packet(server)
                xid = struct.unpack_from(">i", packet, 4)[0]
                if server in self._lost:
                    if xid == self._lost[server]:
                        break
                    continue
                if self._garble and xid > 0:
                    self._garble = False
                    packet = packet[:4] + struct.pack(">i", xid + 1000) + packet[8:]
                client.sendall(packet)
        self._end(client, server)

    def _end(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._sockets -= set(sockets)
        for one in sockets:
            _shut(one)


def _packet(source: socket.socket) -> bytes:
    head = _exactly(source, 4)
    return head + _exactly(source, struct.unpack(">i", head)[0])


def _exactly(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = source.recv(size - len(data))
        if not chunk:
            raise OSError("closed")
        data += chunk
    return bytes(data)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
