# SPDX-License-Identifier: Apache-2.0
"""The machine's own limit: one process sends the same bytes to three others, which write and sync them, without
encryption or over TLS with Python's ``ssl``."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from benchmarks.peers.bare_clients import PATIENCE_S, BareReaders, BareWriters
from benchmarks.peers.raw_server import ECHO, PIECE, REQUEST, STREAM, SYNC, WRITE
from benchmarks.report.figures import Run, elapsed, percentile
from benchmarks.running.processes import RAW_SERVERS
from benchmarks.running.secured import Secured
from bk_cli.local.children import child_environment
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.model import DigestType

if TYPE_CHECKING:
    from benchmarks.running.world import World

SERVERS, QUORUM = 3, 2
FILE_BYTES = 256 << 20
WINDOW = 16
"""The maximum number of messages of a MiB that are sent and lack a quorum of acks, as in the window of our writer."""
BEHIND_MAX = 64
"""The maximum number of messages that the slowest server may be behind, as a bookie of ours may be."""
READ_BYTES = 1 << 20
TLS_PIECE = 256 << 10
"""The number of bytes that one call encrypts. It is small, because bytes that could not be sent must be passed to
OpenSSL again."""
BARE_S = 300
"""The limit, in seconds, for the work of a bare client. A client that takes longer has missed an answer."""

Message = list[memoryview]
B = TypeVar("B", BareReaders, BareWriters)


class Raw:
    """Three servers, each with a file of its own, and a connection to each."""

    def __init__(self, world: World, *, tls: bool = False) -> None:
        self._world, self._tls = world, tls
        with world.processes.born(RAW_SERVERS):
            servers = [self._start(number) for number in range(SERVERS)]
        self.ports = [int(server.stdout.readline()) for server in servers if server.stdout is not None]
        self._sockets = [self.connection(port) for port in self.ports]
        for each in self._sockets:
            each.setblocking(not tls)  # with TLS a write blocks until OpenSSL has sent the piece

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        path = self._world.folder / f"raw-{'tls-' * self._tls}{number}"
        command = [sys.executable, "-m", "benchmarks.peers.raw_server", str(path), str(FILE_BYTES)]
        if self._tls:
            command += self._world.of(Secured).server_files.pem
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(), start_new_session=True
        )
        self._world.stack.enter_context(process)
        self._world.stack.callback(process.kill)
        return process

    def connection(self, port: int) -> socket.socket:
        """Open a connection, which ends with the world."""
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PATIENCE_S, 0))
        if self._tls:
            context = self._world.of(Secured).client_files.tls().client()
            connection = context.wrap_socket(connection, server_hostname="127.0.0.1")
        return self._world.stack.enter_context(connection)

    def append(self, entry_bytes: int, total: int, *, digests: bool = False) -> Run:
        """Return the bytes per second of messages of a MB to all three servers, until two have synced the last. With
        ``digests`` our client's digests of its entries are made and sent as well."""
        fan_out = FanOut(self._sockets)
        messages = self._digested(entry_bytes, total) if digests else self._plain(total)
        seconds = elapsed(lambda: fan_out.send(messages))
        fan_out.finish()
        return Run.of(total / seconds, total)

    def _plain(self, total: int) -> Iterator[Message]:
        for chunk in self._world.data.chunks(total, 1_000_000):
            yield [chunk]

    def _digested(self, entry_bytes: int, total: int) -> Iterator[Message]:
        rows = 1_000_000 // entry_bytes
        lengths, digester = np.full(rows, entry_bytes, dtype=np.uint32), Digester(DigestType.CRC32C, b"", 1)
        for number, chunk in enumerate(self._world.data.chunks(total, rows * entry_bytes)):
            batch = EntryBatch(lengths=lengths, payload=chunk, first_entry_id=number * rows, ledger_id=1, lac=-1,
                               length_before=number * rows * entry_bytes)  # fmt: skip
            yield [digester.for_batch(batch).data.cast("B"), chunk]

    def many(self, writers: int, rounds: int, size: int) -> Run:
        """Return the entries per second of ``writers`` writers, each of which waits for its entry."""

        async def write(bare: BareWriters) -> Run:
            rate = await bare.rate(writers, rounds, bytes(self._world.data.take(size)))
            return Run.of(rate, writers * rounds * size)

        return self._bare(BareWriters, write)

    def single_by_asyncio(self, count: int, size: int) -> Run:
        """Return the milliseconds until two of the servers have written and synced an entry, one at a time: median and
        p99."""

        async def write(bare: BareWriters) -> Run:
            samples = await bare.single_ms(count, bytes(self._world.data.take(size)))
            return Run((percentile(samples, 0.5), percentile(samples, 0.99)))

        return self._bare(BareWriters, write)

    def read_random(self, readers: int, count: int, entries: int) -> Run:
        """Return the entries per second of ``readers`` readers, each of which waits for one entry out of
        ``entries``."""

        async def read(bare: BareReaders) -> Run:
            return Run.of(await bare.rate(readers, count, entries))

        return self._bare(BareReaders, read)

    def _bare(self, kind: Callable[[], B], use: Callable[[B], Awaitable[Run]]) -> Run:
        """Return what a bare client on all servers measures."""

        async def connected() -> Run:
            bare = kind()
            await bare.connect(self._sockets)
            try:
                async with asyncio.timeout(BARE_S):
                    return await use(bare)
            finally:
                bare.close()

        try:
            return asyncio.run(connected())
        finally:
            for each in self._sockets:
                each.setblocking(True)  # the duplicates, which share this flag, were non-blocking

    def stream(self, total: int) -> Run:
        """Return the bytes per second that one server reads from its file and this process receives."""
        one, buffer = self._sockets[0], memoryview(bytearray(READ_BYTES))

        def receive() -> None:
            one.sendall(REQUEST.pack(STREAM, total))
            left = total
            while left:
                received = one.recv_into(buffer, min(left, READ_BYTES))
                if not received:
                    raise ConnectionError("a raw server is gone")
                left -= received

        return Run.of(total / elapsed(receive), total)

    def single(self, count: int) -> Run:
        """Return the milliseconds of a round trip to one server plus those of one sync of a block there: median and
        p99."""
        one, samples = self._sockets[0], []
        for _ in range(count):
            began = time.perf_counter()
            one.sendall(REQUEST.pack(ECHO, 0))
            one.recv(1)
            trip_ms = (time.perf_counter() - began) * 1e3
            one.sendall(REQUEST.pack(SYNC, 0))
            samples.append(trip_ms + struct.unpack("<I", one.recv(4, socket.MSG_WAITALL))[0] / 1e3)
        return Run((percentile(samples, 0.5), percentile(samples, 0.99)))


class FanOut:
    """Sends the same messages to all servers, to each at its own pace within the window, on one thread."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = {each.fileno(): each for each in sockets}
        self._queues: dict[int, deque[memoryview]] = {fd: deque() for fd in self._sockets}
        self._acked = dict.fromkeys(self._sockets, 0)
        self._sent = 0
        self._poll = select.poll()

    def send(self, messages: Iterable[Message]) -> None:
        """Send the messages, and wait until a quorum has acked the last."""
        for message in messages:
            self._queue(message)
            while self._sent - self._of_quorum() >= WINDOW or self._sent - min(self._acked.values()) >= BEHIND_MAX:
                self._turn()
            self._turn(0)
        while self._of_quorum() < self._sent:
            self._turn()

    def finish(self) -> None:
        """Wait until all servers have acked everything."""
        while min(self._acked.values()) < self._sent:
            self._turn()

    def _of_quorum(self) -> int:
        return sorted(self._acked.values())[SERVERS - QUORUM]

    def _queue(self, message: Message) -> None:
        head = memoryview(REQUEST.pack(WRITE, sum(map(len, message))))
        for queue in self._queues.values():
            queue.extend([head, *message])
        self._sent += 1

    def _turn(self, timeout_ms: int = PATIENCE_S * 1000) -> None:
        for fd, queue in self._queues.items():
            self._poll.register(fd, select.POLLIN | (select.POLLOUT if queue else 0))
        ready = self._poll.poll(timeout_ms)
        if timeout_ms and not ready:
            raise TimeoutError("the raw servers do not answer")
        for fd, event in ready:
            if event & select.POLLOUT:
                self._write(fd)
            if event & select.POLLIN:
                self._acked[fd] += self._acks(self._sockets[fd])
            elif event & (select.POLLHUP | select.POLLERR):
                raise ConnectionError("a raw server is gone")

    def _acks(self, sock: socket.socket) -> int:
        """Return how many acks have come. Over TLS that may be only some of them."""
        if not isinstance(sock, ssl.SSLSocket):
            return len(sock.recv(PIECE, socket.MSG_DONTWAIT))
        try:
            return len(sock.recv(PIECE))
        except ssl.SSLWantReadError:
            return 0

    def _write(self, fd: int) -> None:
        queue, sock = self._queues[fd], self._sockets[fd]
        if not isinstance(sock, ssl.SSLSocket):
            done = sock.sendmsg(list(queue)[:64], (), socket.MSG_DONTWAIT)
        else:
            try:
                done = sock.send(queue[0][:TLS_PIECE])
            except ssl.SSLWantWriteError:
                return
        while done:
            first = queue.popleft()
            if done < len(first):
                queue.appendleft(first[done:])
                return
            done -= len(first)


class RawTls(Raw):
    """The same three servers over TLS."""

    def __init__(self, world: World) -> None:
        super().__init__(world, tls=True)
