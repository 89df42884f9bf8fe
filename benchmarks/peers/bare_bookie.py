# SPDX-License-Identifier: Apache-2.0
"""The least that a bookie in Python can do for a single add: the ceiling in the group ``interop``.

``python -m benchmarks.peers.bare_bookie FOLDER`` listens, prints its port and ends with its standard input. It reads an
add of Apache's wire (version 3 or 2), writes and syncs 4 KiB, and answers. It has no event loop and no fences, checks
and indexes nothing, and does not even write the entry's bytes. It is no bookie, and serves only this measurement.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.raw_server import open_direct
from bk_cli.local.children import child_environment
from bk_core.metadata import open_store
from bk_core.model import BookieServiceInfo
from bk_core.wire.proto import bookie_rpc_pb2 as pb

HOST = "127.0.0.1"
BLOCK = 4096
FILE_BYTES = 16 << 20
_LENGTH = struct.Struct(">I")
_V2_IDS = struct.Struct(">qq")
_V2_IDS_AT = 24  # behind the packet's header and the ledger key
_V2_ANSWER = struct.Struct(">IIiqq")


@contextlib.contextmanager
def bare_cluster(folder: Path, count: int, uri: str) -> Iterator[str]:
    """Start ``count`` bare bookies, and register them in a new cluster at ``uri``."""
    store = open_store(uri)
    processes = []
    try:
        store.initialize_cluster()
        for number in range(count):
            path = folder / f"bare-{number}"
            path.mkdir(parents=True)
            command = [sys.executable, "-m", "benchmarks.peers.bare_bookie", str(path)]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(), text=True
            )
            processes.append(process)
            assert process.stdout is not None
            store.register_bookie(BookieServiceInfo(f"{HOST}:{int(process.stdout.readline())}"))
        yield uri
    finally:
        for process in processes:
            process.communicate()  # its standard input ends
        store.close()


def serve(folder: Path) -> None:
    listening = socket.create_server((HOST, 0))
    disk = _Disk(folder / "bare")
    print(listening.getsockname()[1], flush=True)
    poll, clients = select.epoll(), dict[int, tuple[socket.socket, bytearray]]()
    poll.register(listening, select.EPOLLIN)
    poll.register(0, select.EPOLLIN)
    while True:
        for number, _ in poll.poll():
            if number == 0:
                return
            if number == listening.fileno():
                sock, _ = listening.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                clients[sock.fileno()] = sock, bytearray()
                poll.register(sock, select.EPOLLIN)
                continue
            sock, rest = clients[number]
            received = sock.recv(64 << 10)
            if received:
                sock.sendall(_taken(received, rest, disk))
            else:
                del clients[number]
                sock.close()


def _taken(received: bytes, rest: bytearray, disk: _Disk) -> bytes:
    """Return the answers to all complete adds, once they are on disk."""
    rest += received
    answers: list[bytes] = []
    while len(rest) >= _LENGTH.size and len(rest) >= (end := _LENGTH.size + _LENGTH.unpack_from(rest)[0]):
        answers.append(_answer(bytes(rest[_LENGTH.size : end])))
        del rest[:end]
    if answers:
        disk.sync()
    return b"".join(answers)


def _answer(request: bytes) -> bytes:
    if request[0] == pb.VERSION_TWO:
        return _V2_ANSWER.pack(_V2_ANSWER.size - 4, 2 << 24 | 1 << 16, 0, *_V2_IDS.unpack_from(request, _V2_IDS_AT))
    asked = pb.Request.FromString(request)
    add = asked.addRequest
    told = pb.AddResponse(status=pb.EOK, ledgerId=add.ledgerId, entryId=add.entryId)
    data = pb.Response(header=asked.header, status=pb.EOK, addResponse=told).SerializeToString()
    return _LENGTH.pack(len(data)) + data


class _Disk:
    """A file whose next block is written and synced. All its blocks were written before, as in a recycled segment:
    otherwise the file system would record with each sync that one more block is in use."""

    def __init__(self, path: Path) -> None:
        self._file, self._block, self._at = open_direct(path), mmap.mmap(-1, BLOCK), 0
        os.pwritev(self._file, [mmap.mmap(-1, FILE_BYTES)], 0)
        os.fsync(self._file)

    def sync(self) -> None:
        os.pwritev(self._file, [self._block], self._at)
        os.fdatasync(self._file)
        self._at = (self._at + BLOCK) % FILE_BYTES


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
