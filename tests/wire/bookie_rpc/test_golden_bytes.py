# SPDX-License-Identifier: Apache-2.0
"""Apache's own bytes are read, and are what we write.

``tests/data/bookie-rpc*.jsonl`` has frames, one a line: ``{"label": …, "direction": …, "hex": …}``. The direction is
``request`` or ``response``. The frame's length stands in front. ``tests/golden/apache_wire`` has what went between
clients and bookies of two releases of Apache's, a file for each release and wire. A request and its answer have the
same ``label``. ``from`` is ``client``, ``bookie``, or ``library`` for what Apache's client made of the answer. ``by``
says whether ``java`` or a ``hand`` made a request; those by hand, to be refused, are left out here. ``closed`` stands
instead of ``hex`` where this side closed the connection. ``set`` names fields whose values differ each time, with the
value that stands for them. Files and lines may be added; each is tried.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bk_core.entries.apache import lac_body, split_entries
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester, ledger_key
from bk_core.model import DigestType
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.connection import AnswerReader, RequestReader
from bk_core.wire.bookie_rpc.runs import (
    PRIORITY,
    RECOVERY,
    WRITE_FLAGS,
    AddAnswers,
    AddRun,
    BatchRead,
    ReadAnswers,
    ReadRun,
)
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from tests.kit.bookie_requests import add_requests, fencing_read, read_requests
from tests.kit.bookie_wire import as_expected, as_read, told

TESTS = Path(__file__).parent.parent.parent
DATA, CAPTURED = TESTS / "data", TESTS / "golden" / "apache_wire"
LINES = [
    pytest.param(line["direction"], bytes.fromhex(line["hex"]), id=f"{path.stem}-{line['label']}")
    for path in sorted(DATA.glob("bookie-rpc*.jsonl"))
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines())
] + [
    pytest.param(
        "request" if line["from"] == "client" else "response",
        bytes.fromhex(line["hex"]),
        id=f"{path.stem}-{number}-{line['label']}",
    )
    for path in sorted(CAPTURED.glob("*.jsonl"))
    for number, line in enumerate(map(json.loads, path.read_text(encoding="utf-8").splitlines()))
    if "hex" in line and (line["from"] == "bookie" or line.get("by") == "java")
]
KEY = ledger_key(b"passwd")


def version_of(burst: bytes) -> int:
    return 3 if burst[4] == 0x0A else 2


@pytest.mark.rule("L6")
@pytest.mark.parametrize(("direction", "burst"), LINES)
def test_captured_frames_are_read_singly_and_in_bursts(direction: str, burst: bytes) -> None:
    answers, version = direction == "response", version_of(burst)
    for copies in (1, 30):
        reader = AnswerReader(version) if answers else RequestReader()
        found = as_read(burst * copies, reader)
        assert found == as_expected(burst * copies, answers=answers, version=version)
        _, used, fault, spoken = found
        assert (used, fault, spoken) == (len(burst) * copies, False, version)


@pytest.mark.parametrize("wire", [v3, v2])
def test_the_normal_adds_of_apaches_client_are_read_the_short_way(wire: ModuleType) -> None:
    """Else they only take longer, which no other test sees."""
    version, short = 3 if wire is v3 else 2, 0
    for direction, burst in (param.values for param in LINES):
        if direction == "request" and version_of(burst) == version:
            says = told(RequestReader().read(burst).items)
            adds = [row for row in says if isinstance(row, tuple) and row[0] == "AddRun"]
            normal = bool(adds) and not any(row[name + 1] for row in adds for name in (PRIORITY, RECOVERY, WRITE_FLAGS))
            assert (wire.lone_add(memoryview(burst)) is not None) == normal, burst.hex()
            short += normal
    assert short > 3


@pytest.mark.rule("L6")
@pytest.mark.parametrize(("direction", "burst"), LINES)
def test_what_we_build_from_captured_frames_says_the_same(direction: str, burst: bytes) -> None:
    version = version_of(burst)
    wire = v3 if version == 3 else v2
    reader = AnswerReader(version) if direction == "response" else RequestReader()
    if isinstance(reader, RequestReader):
        reader.version = version
    for item in reader.read(burst).items:
        parts: list[object] = []
        if isinstance(item, AddRun):
            keys = item.keys()
            assert keys is not None
            for k in range(len(item)):
                one = item.slice(k, k + 1)
                assert isinstance(one, AddRun)
                parts += add_requests(
                    wire,
                    one.txns,
                    one.ledger_ids,
                    one.entry_ids,
                    keys[k].tobytes(),
                    one.bodies(),
                    recovery=bool(one.recovery[0]),
                    priority=one.rows()[0][PRIORITY],
                    write_flags=int(one.write_flags[0]),
                )
        elif isinstance(item, ReadRun):
            parts.append(
                read_requests(wire, item.txns, item.ledger_ids, item.entry_ids, priority=item.rows()[0][PRIORITY])
            )
        elif isinstance(item, AddAnswers):
            parts.append(wire.add_answers(item.txns, item.ledger_ids, item.entry_ids, item.statuses))
        elif isinstance(item, BatchRead):
            assert v2.batch_read(item) == burst, "as Java's client asks"
            continue
        else:
            continue
        rebuilt = b"".join(parts)
        again = RequestReader() if isinstance(reader, RequestReader) else AnswerReader(version)
        assert _without_frames(told(again.read(rebuilt).items)) == _without_frames(told([item]))


def _without_frames(items: list[object]) -> list[object]:
    return [(*item[:2], *item[3:]) if isinstance(item, tuple) else item for item in items]


def golden() -> Iterator[tuple[str, bytes]]:
    """What we write for the lines of ``tests/data/bookie-rpc-golden.jsonl``: ledger 1, entry 0, "hello"."""
    digester = Digester(DigestType.CRC32C, b"passwd", 1)
    bodies = Bodies.of_batch(replace(EntryBatch.from_list([b"hello"]), ledger_id=1), digester)
    zero = np.zeros(1, dtype=np.int64)
    yield "v3 add", b"".join(v3.add_requests(1, 1, zero, KEY, bodies))
    yield "v3 add answer", v3.add_answers(1, 1, zero)
    fence = v3.request(pb.READ_ENTRY, 2)
    fence.readRequest.ledgerId, fence.readRequest.entryId, fence.readRequest.masterKey = 1, -1, KEY
    fence.readRequest.flag = pb.ReadRequest.FENCE_LEDGER
    yield "v3 fencing read", v3.framed(fence)
    yield "v3 read", v3.read_requests(3, 1, zero)
    yield "v3 read answer", b"".join(v3.read_answers(3, 1, zero, bodies, max_lacs=-1))
    poll = v3.request(pb.READ_ENTRY, 4)
    poll.readRequest.ledgerId, poll.readRequest.entryId, poll.readRequest.previousLAC = 1, -1, 7
    poll.readRequest.timeOut, poll.readRequest.flag = 1000, pb.ReadRequest.ENTRY_PIGGYBACK
    yield "v3 long poll", v3.framed(poll)
    read_lac = v3.request(pb.READ_LAC, 5)
    read_lac.readLacRequest.ledgerId = 1
    yield "v3 read LAC", v3.framed(read_lac)
    force = v3.request(pb.FORCE_LEDGER, 6)
    force.forceLedgerRequest.ledgerId = 1
    yield "v3 force", v3.framed(force)
    write_lac = v3.request(pb.WRITE_LAC, 7)
    write = write_lac.writeLacRequest
    write.ledgerId, write.lac, write.masterKey, write.body = 1, 7, KEY, lac_body(7, digester)
    yield "v3 write LAC", v3.framed(write_lac)
    info = v3.request(pb.GET_BOOKIE_INFO, 8)
    info.getBookieInfoRequest.requested = 3
    yield "v3 bookie info", v3.framed(info)
    tls = v3.request(pb.START_TLS, 9)
    tls.startTLSRequest.SetInParent()
    yield "v3 start TLS", v3.framed(tls)
    auth = v3.answer(v3.request(pb.AUTH, 10))
    auth.authResponse.authPluginName, auth.authResponse.payload = "AuthDisabledPlugin", b""
    yield "v3 auth answer", v3.framed(auth)
    yield "v2 add", b"".join(add_requests(v2, 2, 1, zero, KEY, bodies))
    yield "v2 add answer", v2.add_answers(2, 1, zero)
    yield "v2 fencing read", fencing_read(1, -1, KEY, priority=100)


def test_we_write_the_golden_bytes() -> None:
    lines = map(json.loads, (DATA / "bookie-rpc-golden.jsonl").read_text(encoding="utf-8").splitlines())
    assert {label: burst.hex() for label, burst in golden()} == {line["label"]: line["hex"] for line in lines}


def test_the_golden_entry_is_read_and_verified() -> None:
    burst = dict(golden())["v3 read answer"]
    (run,) = AnswerReader().read(burst).items
    assert isinstance(run, ReadAnswers)
    bodies = run.bodies()
    digester = Digester(DigestType.CRC32C, b"passwd", 1)
    lengths = np.asarray(bodies.lengths, dtype=np.uint32)
    begins = np.zeros(1, dtype=np.int64)
    assert split_entries(memoryview(bodies.joined()), begins, lengths, digester).to_list() == [b"hello"]
    assert (run.statuses.tolist(), run.max_lacs.tolist()) == ([Status.EOK], [-1])
