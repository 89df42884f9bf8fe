# SPDX-License-Identifier: Apache-2.0
"""The rules for answers of Apache's bookies and ours that may differ: one for each row of docs/compatibility.md ("What
differs, and why") that a client can see in an answer. A rule fits one kind of request and one pair of answers."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from bk_core.model import LEDGER_KEY_BYTES
from bk_core.wire.bookie_rpc.runs import AddRun, BatchRead, ReadRun, Single
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from tests.interop.differ_operations import Operation
from tests.kit.availability import decode_availability

_IDS_A_PAGE = 1024
"""The number of entries in a page of Java's index."""


class Said(NamedTuple):
    """An answer: the wire, its status, and all its content, of which an explicit LAC, the id of the last entry and a
    list of entries have fields of their own. The wire is ``closed`` or ``silent`` if there was no answer. ``then`` says
    whether the connection ended after the answer."""

    wire: str
    status: Status | None
    text: str = ""
    lac: int | None = None
    then: str = ""
    last: int | None = None
    listed: bytes = b""

    def __str__(self) -> str:
        return " ".join(
            filter(None, (self.wire, self.status.name if self.status is not None else "", self.text, self.then))
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. ``name`` is the text in the first column of the table."""

    name: str
    fits: Callable[[Operation, Said, Said], bool]


class _Add(NamedTuple):
    ids: tuple[int, int]
    key_bytes: int
    body: bytes
    recovery: bool

    @property
    def inside(self) -> tuple[int, int]:
        return struct.unpack_from(">qq", self.body) if len(self.body) >= 16 else (-1, -1)


def _add(one: Operation) -> _Add | None:
    asked = one.asked()
    if not isinstance(asked, AddRun):
        return None
    (body,) = map(bytes, asked.bodies().pieces())
    ids = int(asked.ledger_ids[0]), int(asked.entry_ids[0])
    return _Add(ids, int(asked.key_lengths[0]), body, bool(asked.recovery[0]))


def _single(one: Operation, operation: int) -> pb.Request | None:
    asked = one.asked()
    if isinstance(asked, Single) and asked.request.header.operation == operation:
        return asked.request
    return None


def _another_payload(one: Operation, apache: Said, ours: Said) -> bool:
    add = _add(one)
    noted = add is not None and not add.recovery and "another payload" in one.notes
    return noted and (apache.status, ours.status) == (Status.EOK, Status.EBADREQ)


def _other_ids(one: Operation, apache: Said, ours: Said) -> bool:
    add = _add(one)
    differ = add is not None and len(add.body) >= 16 and add.ids != add.inside
    return differ and apache.wire == ours.wire == "v3" and ours.status is Status.EBADREQ


def _short_entry(one: Operation, apache: Said, ours: Said) -> bool:
    add = _add(one)
    short = add is not None and 16 <= len(add.body) < 32
    return short and ours.status is Status.EBADREQ


def _odd_key(one: Operation, apache: Said, ours: Said) -> bool:
    add = _add(one)
    return add is not None and add.key_bytes != LEDGER_KEY_BYTES and ours.status is Status.EBADREQ


def _without_message(one: Operation, apache: Said, ours: Said) -> bool:
    asked = one.asked()
    bare = isinstance(asked, Single) and asked.status is Status.EBADREQ and one.frame[4] == 0x0A
    return bare and apache.wire in ("v3", "silent", "closed") and ours.status is Status.EBADREQ


def _read_below_0(one: Operation, apache: Said, ours: Said) -> bool:
    """Return whether the id is below 0. Java's storage takes such an id for a place before the beginning of its
    index."""
    asked = one.asked()
    if isinstance(asked, ReadRun):
        ids = asked.entry_ids.tolist()
    else:
        request = _single(one, pb.READ_ENTRY)
        ids = [_read_by(request.readRequest)] if request is not None else [0]
        if ids[0] < -1 and apache.wire == "silent" and "body:" not in ours.text:
            return True  # a poll with its entry: our bookie answers with the LAC
    known = (Status.ENOENTRY, Status.ENOLEDGER, Status.EBADREQ)
    return (
        ids[0] < -1
        and ours.status in known
        and (apache.status in (*known, Status.EIO, Status.EUA) or apache.wire == "silent")
    )


def _read_by(asked: pb.ReadRequest) -> int:
    """Return the id of the entry that the bookie looks for."""
    polls = asked.flag == pb.ReadRequest.ENTRY_PIGGYBACK and asked.HasField("previousLAC") and asked.entryId == -1
    return asked.previousLAC + 1 if polls else asked.entryId


def _lower_lac(one: Operation, apache: Said, ours: Said) -> bool:
    """Return whether both answers have a LAC, and ours is greater."""
    if _single(one, pb.READ_LAC) is None or apache.lac is None or ours.lac is None:
        return False
    return apache.lac < ours.lac and (apache.status is ours.status or _is_without_entry(apache, ours))


def _is_without_entry(apache: Said, ours: Said) -> bool:
    """Return whether both have an explicit LAC and no entry, which only Apache's bookies answer with a failure."""
    return (apache.status, ours.status) == (Status.EIO, Status.EOK) and apache.last is ours.last is None


def _lac_without_an_entry(one: Operation, apache: Said, ours: Said) -> bool:
    if _single(one, pb.READ_LAC) is None or ours.lac is None:
        return False
    return apache.lac == ours.lac and _is_without_entry(apache, ours)


def _lower_last(one: Operation, apache: Said, ours: Said) -> bool:
    """Return whether Apache's last entry is lower. Java's memtable, once switched, answers with the last entry added
    since then."""
    if apache.last is None or ours.last is None or apache.last < 0:
        return False
    return apache.last < ours.last and apache.status is ours.status is Status.EOK


def _list_without_one(one: Operation, apache: Said, ours: Said) -> bool:
    """Return whether only one entry is missing in Apache's list. Java lists the pages of its index up to the last
    entry, and omits that entry if it is the first of its page."""
    if not (apache.listed and ours.listed):
        return False
    held, listed = _ids(ours.listed), _ids(apache.listed)
    return listed < held and [each % _IDS_A_PAGE for each in held - listed] == [0]


def _ids(listed: bytes) -> set[int]:
    ranges = zip(*(each.tolist() for each in decode_availability(listed)), strict=True)
    return {each for first, last in ranges for each in range(first, last + 1)}


def _wrong_digest(one: Operation, apache: Said, ours: Said) -> bool:
    request = _single(one, pb.WRITE_LAC)
    told = request is not None and len(request.writeLacRequest.body) in (20, 24)
    return told and apache.status in (Status.EOK, Status.EUA) and ours.status is Status.EBADREQ


def _poll_of_an_empty_ledger(one: Operation, apache: Said, ours: Said) -> bool:
    request = _single(one, pb.READ_ENTRY)
    polls = request is not None and request.readRequest.HasField("previousLAC")
    return polls and apache.status is Status.ENOENTRY and ours.status is Status.EOK and "body:" not in ours.text


def _poll_for_two(one: Operation, apache: Said, ours: Said) -> bool:
    request = _single(one, pb.READ_ENTRY)
    asked = request.readRequest if request is not None else pb.ReadRequest()
    both = asked.flag == pb.ReadRequest.ENTRY_PIGGYBACK and asked.entryId != -1 and asked.HasField("previousLAC")
    return both and apache.status in (Status.ENOLEDGER, Status.ENOENTRY) and ours.status is Status.EBADREQ


def _poll_of_unknown_ledger(one: Operation, apache: Said, ours: Said) -> bool:
    request = _single(one, pb.READ_ENTRY)
    waits = request is not None and request.readRequest.HasField("previousLAC") and request.readRequest.timeOut > 0
    return waits and apache.status is Status.ENOLEDGER and (ours.wire == "silent" or ours.status is Status.EOK)


def _time_of_the_lac(one: Operation, apache: Said, ours: Said) -> bool:
    request = _single(one, pb.READ_ENTRY)
    polls = request is not None and request.readRequest.HasField("previousLAC")
    plain = [said._replace(text=said.text.replace("lacUpdateTimestamp: 1 ", "")) for said in (apache, ours)]
    return polls and plain[0] == plain[1]


def _batch_below_0(one: Operation, apache: Said, ours: Said) -> bool:
    asked = one.asked()
    return isinstance(asked, BatchRead) and asked.first_entry_id < 0 and ours.status is Status.EBADREQ


def _too_large_a_number(one: Operation, apache: Said, ours: Said) -> bool:
    """Return whether a number is too large. Java takes any tenth byte of a varint for 1, and takes only 32 bits of a
    length or a tag."""
    large = re.search(rb"[\x80-\xff]{9}[\x00\x02-\x7f]", one.frame) is not None or _has_long_length(one.frame[4:])
    return apache.wire in ("v3", "silent", "closed") and large


def _has_long_length(message: bytes) -> bool:
    """Return whether the length or the tag of a field has more than 32 bits."""
    at, fixed = 0, {1: 8, 5: 4}
    while at < len(message):
        tag, at = _varint(message, at)
        if tag >> 32:
            return True
        if tag & 7 in fixed:
            at += fixed[tag & 7]
            continue
        number, at = _varint(message, at)
        if tag & 7 == 2:
            if number >> 32:
                return True
            at += number
    return False


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins here, and where it ends."""
    end = at
    while end < len(message) and message[end] & 0x80:
        end += 1
    bits = 0
    for i in range(at, min(end + 1, len(message))):
        bits |= (message[i] & 0x7F) << 7 * (i - at)
    return bits, end + 1


RULES: tuple[Rule, ...] = (
    Rule("a normal add over an existing id with another payload", _another_payload),
    Rule("an add whose request names other ids than its entry", _other_ids),
    Rule("an add whose entry has 16 to 31 bytes", _short_entry),
    Rule("an add with a ledger key of other than 20 bytes", _odd_key),
    Rule("a request of v3 without its message", _without_message),
    Rule("a number or a length that is too long on v3", _too_large_a_number),
    Rule("a read of an id below −1", _read_below_0),
    Rule("an explicit LAC below the one before", _lower_lac),
    Rule("read LAC of an explicit LAC without an entry", _lac_without_an_entry),
    Rule("list of entries", _list_without_one),
    Rule("the last entry, where ids did not come in order", _lower_last),
    Rule("an explicit LAC with a wrong CRC32 or CRC32C", _wrong_digest),
    Rule("a long poll on a ledger unknown here", _poll_of_unknown_ledger),
    Rule("a long poll on a ledger without entries here", _poll_of_an_empty_ledger),
    Rule("a long poll for the next entry and another one", _poll_for_two),
    Rule("the time of the LAC in the answer to a long poll", _time_of_the_lac),
    Rule("a batch read from an id below 0", _batch_below_0),
)

ELSEWHERE: tuple[str, ...] = (
    "a fencing read that finds nothing",  # the answer is the same, but comes at another time
    "an explicit LAC",  # the answer is the same, but comes at another time
    "a fence or a close while a long poll waits",
    "read −1 and read LAC in limbo",
    "an add in limbo",
    "EUNKNOWNLEDGERSTATE on v2",
    "a deleted ledger id",
    "deferred sync",  # the answer is the same, but comes at another time
)
"""Rows that no operation of the differential test can show, because the difference is in the time, in limbo, or after a
deletion."""
