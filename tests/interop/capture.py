# SPDX-License-Identifier: Apache-2.0
"""Captures of Apache's wire protocol: ``python -m tests.interop.capture [VERSION …]`` writes tests/golden/apache_wire.

Apache's client library sends each request to an Apache bookie through a recording proxy; what it would not send is sent
by hand. A file holds one version of the jars and of the wire, a line a frame:

- ``label``: what was asked; a request and what answers it have the same.
- ``from``: ``client``, ``bookie``, or ``library``: what Apache's client library made of the answer.
- ``by``: of a client's frame, whether ``java`` or a ``hand`` made it.
- ``hex``: the frame with its length; ``closed`` instead: who sent this line closed the connection.
- ``set``: fields whose values differ each time, set to the value that stands here.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from bk_cli.local.java import find_java
from bk_cli.local.zookeeper_server import ZooKeeperServer
from tests.interop.jars import MAIN, SECOND, toolchain
from tests.interop.peer_client import PASSWORD, JavaBookieClient, PeerClient
from tests.interop.peers import ApacheCluster
from tests.interop.recording_proxy import Passed, RecordingProxy

FOLDER = Path(__file__).parent.parent / "golden" / "apache_wire"
VERSIONS = (MAIN, SECOND)
CONNECT_S = 10.0

LEDGER_KEY = "9596625852f7fafc2c9cf0f9f7f3e5995206452b"  # of PASSWORD
WRONG_KEY = b"\xff" * 20
LARGE_LEDGER = 3_000_000_000
LARGE_ENTRY = 5_000_000_000

BOTH = (
    *("add", "add_next", "add_crc32", "add_mac", "add_dummy", "add_empty", "add_large_ids", "recovery_add"),
    *("read", "read_last", "fencing_read", "fencing_read_last", "fencing_read_unknown_ledger", "auth_disabled"),
    *("error_no_ledger", "error_no_entry", "error_wrong_key", "error_fence_wrong_key", "error_fenced"),
    *("error_read_only", "error_bad_version", "error_unknown_operation", "error_frame_too_long"),
    *("add_again", "add_again_other_payload", "error_entry_too_short", "session_write", "session_recover"),
)
"""Labels of the captures of v2 and v3."""

V3 = (
    *("add_deferred_sync", "force", "write_lac", "read_lac", "bookie_info", "list_of_entries", "start_tls_refused"),
    *("long_poll_at_once", "long_poll_piggyback", "long_poll_timeout", "long_poll_without_piggyback"),
    *("force_unknown_ledger", "error_read_lac_unknown_ledger", "error_list_unknown_ledger"),
    *("error_write_lac_wrong_key", "error_write_lac_read_only", "error_fence_without_key", "error_no_body"),
    *("piggyback_without_previous_lac", "error_piggyback_with_entry_id", "error_range_read", "error_batch_read"),
)
"""Labels of v3 alone."""

V2 = (
    *("batch_read", "batch_read_count", "batch_read_size", "batch_read_size_0", "batch_read_fencing"),
    *("error_batch_no_ledger", "error_batch_no_entry", "version_0", "version_1"),
)
"""Labels of v2 alone."""

# Fields of v3 answers that differ each time: (their path, name, value that stands for them).
_VARYING = (
    ((100, 6), "readResponse.lacUpdateTimestamp", 1_700_000_000_000),
    ((105, 2), "getBookieInfoResponse.totalDiskCapacity", 500_000_000_000),
    ((105, 3), "getBookieInfoResponse.freeDiskSpace", 400_000_000_000),
)


class Capture:
    """One wire version against one Apache bookie that takes adds and one that is read-only."""

    def __init__(self, peer: PeerClient, wire: int, bookie: RecordingProxy, read_only: RecordingProxy) -> None:
        self.peer, self.wire, self.bookie, self.read_only = peer, wire, bookie, read_only
        self.client: JavaBookieClient = peer.bookie_client(wire=wire)
        self.said: dict[str, list[dict[str, Any]]] = {}  # by label: what the library made of the answers
        self.labels: dict[str, None] = {}  # in the order of their use
        self.by_hand: set[str] = set()

    # --- asking ---

    def label(self, label: str) -> None:
        self.bookie.label = self.read_only.label = label
        self.labels.setdefault(label)

    def ask(self, label: str, command: str, *, proxy: RecordingProxy | None = None, **arguments: Any) -> None:
        """One request of Apache's library, and its answer."""
        self.label(label)
        self.note(label, self.client.call(command, (proxy or self.bookie).address, **arguments))

    def note(self, label: str, said: dict[str, Any]) -> None:
        self.said.setdefault(label, []).append({name: said[name] for name in ("rc", "name") if name in said})

    def add(self, label: str, ledger_id: int, entry_id: int, lac: int, payload: bytes = b"hello", **more: Any) -> None:
        arguments: dict[str, Any] = {
            "digest": "CRC32C",
            "password": PASSWORD,
            "length": 5 * (entry_id + 1),
            "payload": payload,
            **more,
        }
        self.ask(label, "add", ledger_id=ledger_id, entry_id=entry_id, lac=lac, **arguments)

    def read(self, label: str, ledger_id: int, entry_id: int, **more: Any) -> None:
        self.ask(label, "read", ledger_id=ledger_id, entry_id=entry_id, **more)

    def send(self, label: str, body: bytes, *, size: int | None = None) -> None:
        """One request by hand, on a connection of its own; ends with the answer or the bookie's close."""
        self.label(label)
        self.by_hand.add(label)

        def mine(passed: list[Passed]) -> list[Passed]:
            """What passed on this connection: another one may end only now."""
            asked = {one.connection for one in passed if one.label == label and one.sender == "client" and one.frame}
            return [one for one in passed if one.connection in asked]

        with socket.create_connection(("127.0.0.1", self.bookie.port), CONNECT_S) as connection:
            connection.sendall(struct.pack(">i", len(body) if size is None else size) + body)
            self.bookie.wait_for(lambda passed: any(one.sender == "bookie" for one in mine(passed)))
        self.bookie.wait_for(lambda passed: sum(not one.frame for one in mine(passed)) == 2)

    # --- what both wire versions have ---

    def both(self) -> None:
        self.add("add", 1, 0, -1)
        self.add("add_next", 1, 1, 0)
        self.add("recovery_add", 1, 2, 0, recovery=True, high_priority=True)
        self.read("read", 1, 0)
        self.read("read_last", 1, -1)
        for ledger_id, digest in ((2, "CRC32"), (3, "MAC"), (4, "DUMMY")):
            self.add(f"add_{digest.lower()}", ledger_id, 0, -1, digest=digest)
        self.add("add_empty", 5, 0, -1, b"", length=0)
        self.add("add_large_ids", LARGE_LEDGER, LARGE_ENTRY, LARGE_ENTRY - 1, length=LARGE_ENTRY)
        self.read("error_no_ledger", 404, 0)
        self.read("error_no_entry", 1, 999)
        self.add("error_wrong_key", 2, 1, 0, key=WRONG_KEY)
        self.read("error_fence_wrong_key", 2, -1, fence=True, key=WRONG_KEY)
        self.add("error_read_only", 1, 0, -1, proxy=self.read_only)
        self.add("add_again", 1, 0, -1)
        self.add("add_again_other_payload", 3, 0, -1, b"other")

    def fencing(self) -> None:
        """Last, since it ends ledger 1."""
        self.read("fencing_read_last", 1, -1, fence=True, password=PASSWORD)
        self.read("fencing_read", 1, 0, fence=True, high_priority=True, password=PASSWORD)
        self.read("fencing_read_unknown_ledger", 405, -1, fence=True, password=PASSWORD)
        self.add("error_fenced", 1, 5, 3)

    def auth(self) -> None:
        self.label("auth_disabled")
        client = self.peer.bookie_client(wire=self.wire, auth=True)
        self.note("auth_disabled", client.call("read", self.bookie.address, ledger_id=1, entry_id=0))
        client.close()

    def start_tls(self, scratch: Path) -> None:
        """A client that wants TLS, and closes the connection when it is refused. Any trust store serves: Java's own."""
        (scratch / "password").write_text("changeit", encoding="ascii")
        conf = {
            "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "tlsProvider": "JDK",
            "clientTrustStore": Path(find_java().home) / "lib" / "security" / "cacerts",
            "clientTrustStorePasswordPath": scratch / "password",
        }
        self.label("start_tls_refused")
        client = self.peer.bookie_client(wire=self.wire, conf={key: str(value) for key, value in conf.items()})
        self.note("start_tls_refused", client.call("read", self.bookie.address, ledger_id=1, entry_id=0))

    def sessions(self, uri: str) -> None:
        """Whole ledgers of Apache's client, on a cluster whose only bookie is the proxy."""
        sizes: dict[str, Any] = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
        conf = {"recoveryReadBatchSize": 1, "explicitLacInterval": 0}
        self.label("session_write")
        client = self.peer.client(uri, wire=self.wire, conf=conf)
        ledger = client.create(ledger_id=self.wire * 10, **sizes)
        for entry_id, payload in enumerate((b"one", b"two")):
            ledger.add_bytes(payload, entry_id=entry_id)
        self.label("session_recover")
        other = self.peer.client(uri, wire=self.wire, conf=conf)
        assert other.open(ledger.ledger_id, recover=True).opened.lac == 1
        self.label("")
        other.close()
        client.close()

    # --- one version ---

    def v3(self) -> None:
        self.both()
        of: dict[str, Any] = {"ledger_id": 1}
        key: dict[str, Any] = {"digest": "CRC32C", "password": PASSWORD}
        self.add("add_deferred_sync", 1, 3, 1, deferred_sync=True)
        self.ask("force", "force", **of)
        self.ask("write_lac", "write_lac", lac=2, **of, **key)
        self.ask("read_lac", "read_lac", **of)
        self.ask("bookie_info", "info", requested=3)
        self.ask("list_of_entries", "list_entries", **of)
        self.ask("long_poll_at_once", "long_poll", previous_lac=0, timeout_ms=5000, piggyback=True, **of)
        self._long_poll_that_waits()
        self.ask("long_poll_timeout", "long_poll", previous_lac=3, timeout_ms=50, piggyback=True, **of)
        self.ask("long_poll_without_piggyback", "long_poll", previous_lac=2, timeout_ms=5000, **of)
        self.ask("force_unknown_ledger", "force", ledger_id=404)
        self.ask("error_read_lac_unknown_ledger", "read_lac", ledger_id=404)
        self._list_of_unknown_ledger()
        self.ask("error_write_lac_wrong_key", "write_lac", ledger_id=2, lac=0, **{**key, "key": WRONG_KEY})
        self.ask("error_write_lac_read_only", "write_lac", proxy=self.read_only, lac=0, **of, **key)
        self.auth()
        self.fencing()
        read = _field(100, _number(1, 1) + _number(2, 0))
        self.send("error_bad_version", _header(1, version=2) + read)
        self.send("error_unknown_operation", _header(99) + read)
        self.send("error_range_read", _header(3))
        self.send("error_batch_read", _header(12))
        self.send("error_no_body", _header(1))
        self.send("error_fence_without_key", _header(1) + _field(100, _number(1, 1) + _number(2, 0) + _number(100, 1)))
        piggyback = _number(1, 1) + _number(2, 0) + _number(100, 2)
        self.send("piggyback_without_previous_lac", _header(1) + _field(100, piggyback))
        self.send("error_piggyback_with_entry_id", _header(1) + _field(100, piggyback + _number(4, 0)))
        short = _number(1, 6) + _number(2, 0) + _field(3, bytes.fromhex(LEDGER_KEY)) + _field(4, bytes(8))
        self.send("error_entry_too_short", _header(2) + _field(101, short))
        self.send("error_frame_too_long", b"", size=0x7FFFFFFF)

    def _long_poll_that_waits(self) -> None:
        """It is answered by the add that comes after it."""
        label = "long_poll_piggyback"
        self.label(label)
        arguments: dict[str, Any] = {"ledger_id": 1, "previous_lac": 2, "timeout_ms": 20_000, "piggyback": True}
        waiting = self.client.submit("long_poll", self.bookie.address, **arguments)
        self.bookie.wait_for(lambda passed: any(p.label == label for p in passed))
        self.add(label, 1, 4, 3)
        self.note(label, self.peer.result(waiting, CONNECT_S, "long_poll"))

    def _list_of_unknown_ledger(self) -> None:
        """The library raises it; the others answer a code."""
        label = "error_list_unknown_ledger"
        self.label(label)
        error = self.client.submit("list_entries", self.bookie.address, ledger_id=404).exception(CONNECT_S)
        self.note(label, {"rc": getattr(error, "code", None), "name": getattr(error, "name", "")})

    def v2(self) -> None:
        self.both()
        of: dict[str, Any] = {"ledger_id": 1, "entry_id": 0}
        self.ask("batch_read", "batch_read", max_count=10, max_size=1 << 20, **of)
        self.ask("batch_read_count", "batch_read", max_count=2, max_size=1 << 20, **of)
        self.ask("batch_read_size", "batch_read", max_count=10, max_size=126, **of)  # 36 + 2 * 45
        self.ask("batch_read_size_0", "batch_read", max_count=2, max_size=0, **of)
        self.ask("error_batch_no_ledger", "batch_read", ledger_id=404, entry_id=0, max_count=10, max_size=0)
        self.ask("error_batch_no_entry", "batch_read", ledger_id=1, entry_id=999, max_count=10, max_size=0)
        self.auth()
        key = bytes.fromhex(LEDGER_KEY)
        fencing = struct.pack(">iqqqiq", 2 << 24 | 7 << 16 | 1, 3, 0, 1, 10, 1 << 20) + key
        self.send("batch_read_fencing", fencing)
        self.send("error_entry_too_short", struct.pack(">i", 2 << 24 | 1 << 16) + key + bytes(8))
        self.fencing()
        for label, version, opcode in (
            ("version_0", 0, 2),
            ("version_1", 1, 2),
            ("error_bad_version", 3, 2),
            ("error_unknown_operation", 2, 6),
        ):
            self.send(label, struct.pack(">iqq", version << 24 | opcode << 16 if version else opcode, 1, 0))
        self.send("error_frame_too_long", b"", size=0x7FFFFFFF)

    # --- what passed ---

    def lines(self) -> Iterator[dict[str, Any]]:
        """In the order of the labels; each request is followed by its answer, though others passed between them."""
        passed = [*self.bookie.passed(), *self.read_only.passed()]
        answers = [one for one in passed if one.sender == "bookie"]
        for label in self.labels:
            for one in passed:
                if one.label == label and one.sender == "client" and one.frame:
                    yield self._line(label, one)
                    answer = next((other for other in answers if self._answers(other, one)), None)
                    if answer is not None:
                        answers.remove(answer)
                        yield self._line(label, answer)
            for said in self.said.get(label, ()):
                yield {"label": label, "from": "library", **said}

    def _answers(self, answer: Passed, request: Passed) -> bool:
        if answer.connection != request.connection or answer.label != request.label:
            return False
        if request.label in self.by_hand:
            return True
        if not answer.frame:
            return False
        if self.wire == 3:
            return transaction(answer.frame) == transaction(request.frame)
        return v2_key(answer) == v2_key(request)

    def _line(self, label: str, one: Passed) -> dict[str, Any]:
        line: dict[str, Any] = {"label": label, "from": one.sender}
        if one.sender == "client":
            line["by"] = "hand" if label in self.by_hand else "java"
        if not one.frame:
            return {**line, "closed": True}
        frame = one.frame
        if one.sender == "bookie" and self.wire == 3:
            for path, name, value in _VARYING:
                changed = set_number(frame[4:], path, value)
                if changed is not None:
                    frame = struct.pack(">i", len(changed)) + changed
                    line.setdefault("set", {})[name] = value
        return {**line, "hex": frame.hex()}


# --- protobuf, as far as it is needed here ---


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _header(operation: int, *, version: int = 3) -> bytes:
    return _field(1, _number(1, version) + _number(2, operation) + _number(3, 1))


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields, in their order; only varints and bytes, as this protocol has. Raises
    ValueError for anything else."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(message) or shift > 63:
                raise ValueError("a varint is cut off")
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 2:
            size = varint()
            if size > len(message) - at:
                raise ValueError("a field is cut off")
            at += size
            yield tag >> 3, message[at - size : at]
        else:
            raise ValueError(f"wire type {tag & 7}")


def transaction(frame: bytes) -> int:
    """The transaction id of a v3 frame. Raises ValueError."""
    header = dict(fields(next(value for field, value in fields(frame[4:]) if field == 1 and isinstance(value, bytes))))
    number = header[3]
    assert isinstance(number, int)
    return number


def v2_key(one: Passed) -> tuple[int, bytes]:
    """What pairs a v2 request with its answer: the operation, and its ledger and entry ids if it has any."""
    (head,) = struct.unpack_from(">i", one.frame, 4)
    operation = head >> 16 & 0xFF
    if operation == 3:  # AUTH
        return operation, b""
    at = 12 if one.sender == "bookie" else 28 if operation == 1 else 8
    return operation, one.frame[at : at + 16]


def set_number(message: bytes, path: tuple[int, ...], value: int) -> bytes | None:
    """The message with another value of the number at ``path``, or None if it has none there."""
    out, found = b"", False
    for field, old in fields(message):
        if field == path[0] and len(path) == 1:
            found, old = True, value
        elif field == path[0] and isinstance(old, bytes):
            changed = set_number(old, path[1:], value)
            found, old = found or changed is not None, old if changed is None else changed
        out += _number(field, old) if isinstance(old, int) else _field(field, old)
    return out if found else None


# --- the command ---


def capture(version: str, scratch: Path, note: Callable[[str], None]) -> None:
    """Write the files of ``version``."""
    tools = toolchain(version)
    server = ZooKeeperServer(tick_ms=100, durable=False)
    server.start(scratch / "zookeeper")
    try:
        with ApacheCluster(tools, server.connect_string, scratch / "cluster") as cluster:
            *fresh, read_only = cluster.start(3)
            read_only.set_read_only(True)
            for normal, wire, labels in zip(fresh, (3, 2), ((*BOTH, *V3), (*BOTH, *V2)), strict=True):
                with RecordingProxy(normal.address) as one, RecordingProxy(read_only.address) as other:
                    uri = _cluster_of(one, cluster, server.connect_string)
                    lines = _capture_wire(cluster, wire, one, other, uri)
                missing = set(labels).difference(line["label"] for line in lines)
                assert not missing, f"nothing was captured of {sorted(missing)}"
                path = FOLDER / f"{version}-v{wire}.jsonl"
                path.parent.mkdir(exist_ok=True)
                path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")
                note(f"{path.name}: {len(lines)} lines")
    finally:
        server.stop()


def _capture_wire(
    cluster: ApacheCluster, wire: int, bookie: RecordingProxy, read_only: RecordingProxy, uri: str
) -> list[dict[str, Any]]:
    with cluster.peer_client() as peer:  # a new JVM: transaction ids begin with 0
        run = Capture(peer, wire, bookie, read_only)
        (run.v3 if wire == 3 else run.v2)()
        if wire == 3:  # a v2 client asks for TLS with the same frame of v3
            run.start_tls(cluster.path)
        run.sessions(uri)
        return list(run.lines())


def _cluster_of(proxy: RecordingProxy, cluster: ApacheCluster, zookeeper: str) -> str:
    """A ledgers root where the proxy is the only bookie."""
    root = f"/proxied-{proxy.port}"
    uri = f"zk+hierarchical://{zookeeper}{root}"
    cluster.format(uri)
    kazoo = KazooClient(zookeeper)
    kazoo.start(CONNECT_S)
    kazoo.create(f"{root}/available/{proxy.address}")
    kazoo.stop()
    kazoo.close()
    return uri


def main(versions: Sequence[str]) -> None:
    for version in versions or VERSIONS:
        with tempfile.TemporaryDirectory(prefix="capture") as scratch:
            capture(version, Path(scratch), lambda text: print(text, flush=True))


if __name__ == "__main__":
    main(sys.argv[1:])
