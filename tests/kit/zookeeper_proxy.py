# SPDX-License-Identifier: Apache-2.0
"""A proxy between clients and ZooKeeper that can lose or garble answers, cut connections, and stay silent."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

_WRITES = {1, 2, 5, 14, 15}  # create, delete, setData, multi, create2

Wanted = Callable[[int, bytes], bool]
"""Decides from the kind of a request and its whole packet whether a fault applies to it."""


STOP_MAX_S = 120.0


def any_write(kind: int, packet: bytes) -> bool:
    """Return whether a request changes something."""
    return kind in _WRITES


class Stop:
    """A request or an answer that the proxy is to hold."""

    def __init__(self, of: Wanted, *, answered: bool) -> None:
        self.of, self.answered = of, answered
        self.reached, self.let_go = threading.Event(), threading.Event()

    def hold(self) -> None:
        self.reached.set()
        self.let_go.wait(STOP_MAX_S)


class ZooKeeperProxy:
    """A proxy that listens on a free port of loopback and passes whole packets on."""

    def __init__(self, host: str, port: int, *, mute_next: int = 0) -> None:
        self._upstream = (host, port)
        self._mute_next = mute_next
        self.answer_delay_s = 0.0
        self._silent: set[socket.socket] = set()  # server sockets whose requests are dropped
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._losses: list[tuple[Wanted, bool]] = []
        self._stops: list[Stop] = []
        self._stopped: dict[tuple[socket.socket, int], Stop] = {}  # by server socket and xid
        self._garble = False
        self._is_cut = False
        self._lost: dict[socket.socket, int] = {}  # server socket → xid of the answer to lose
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next_answer(self, *, applied: bool, of: Wanted = any_write) -> None:
        """Cut the connection instead of passing on the next write, or (``applied``) instead of passing back its
        answer."""
        with self._lock:
            self._losses.append((of, applied))

    @property
    def losses_to_come(self) -> int:
        """The number of losses that were requested and have not happened yet."""
        return len(self._losses)

    def forget_losses(self) -> None:
        """Cancel all losses and stops that were requested."""
        with self._lock:
            self._losses.clear()
            self._stops.clear()

    def stop_next(self, of: Wanted, *, answered: bool) -> Stop:
        """Hold the next request that ``of`` wants, or its answer (``answered``), until the test releases it. A released
        request reaches the server even if its client has ended, like a packet that was under way."""
        stop = Stop(of, answered=answered)
        with self._lock:
            self._stops.append(stop)
        return stop

    def _take_stop(self, kind: int, packet: bytes) -> Stop | None:
        with self._lock:
            for number, stop in enumerate(self._stops):
                if stop.of(kind, packet):
                    return self._stops.pop(number)
        return None

    def _take_loss(self, kind: int, packet: bytes) -> bool | None:
        with self._lock:
            for number, (of, applied) in enumerate(self._losses):
                if of(kind, packet):
                    del self._losses[number]
                    return applied
        return None

    def garble_next_answer(self) -> None:
        """Give the next answer a number that differs from its request's."""
        self._garble = True

    def mute_next(self, connections: int) -> None:
        """Accept the next ``connections`` and send nothing on them, as a server does while it starts."""
        with self._lock:
            self._mute_next = connections

    def go_silent(self) -> None:
        """Silently drop all further requests of the current connections. New connections work."""
        with self._lock:
            self._silent |= self._sockets

    @contextlib.contextmanager
    def holding_requests(self) -> Iterator[None]:
        """Hold requests in this block, and pass them on after it."""
        with self._lock:
            yield

    def cut(self) -> None:
        """Break every connection, and accept none until :meth:`restore`."""
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
                with self._lock:
                    is_mute = self._mute_next > 0
                    if is_mute:
                        self._mute_next -= 1
                        self._sockets.add(client)
                if is_mute:
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
            server.sendall(_packet(client))  # the handshake
            while True:
                packet = _packet(client)
                if server in self._silent:
                    continue
                xid, kind = struct.unpack_from(">ii", packet, 4)
                loss = self._take_loss(kind, packet)
                if loss is False:
                    break
                if loss:
                    self._lost[server] = xid
                stop = self._take_stop(kind, packet)
                if stop is not None and stop.answered:
                    self._stopped[server, xid] = stop
                elif stop is not None:
                    stop.hold()
                server.sendall(packet)
        self._end(client, server)

    def _pump_answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client.sendall(_packet(server))  # the handshake
            while True:
                packet = _packet(server)
                time.sleep(self.answer_delay_s)
                xid = struct.unpack_from(">i", packet, 4)[0]
                if server in self._lost:
                    if xid == self._lost[server]:
                        break
                    continue
                stop = self._stopped.pop((server, xid), None)
                if stop is not None:
                    stop.hold()
                if self._garble and xid > 0:
                    self._garble = False
                    packet = packet[:4] + struct.pack(">i", xid + 1000) + packet[8:]
                client.sendall(packet)
        self._end(client, server)

    def _end(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._sockets -= set(sockets)
            self._silent -= set(sockets)
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
