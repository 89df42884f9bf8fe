# SPDX-License-Identifier: Apache-2.0
"""Recognizes the writes to ZooKeeper that make up a publish by their bytes (docs/formats.md §4, Apache's layout)."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

_CREATE, _DELETE, _SET_DATA, _MULTI, _CREATE2 = 1, 2, 5, 14, 15
_HEADER_BYTES = 12  # length, xid, kind
_OPERATION_BYTES = 9  # before each operation of a multi: kind, done, error
_LEDGER = re.compile(rb"/ledgers/\d+/(?:\d+/)+L\d+\Z")
_PAGE = re.compile(rb"/ledgers-logs/[^/]+/pages/[^/]+\Z")
_HEAD = re.compile(rb"/ledgers-logs/[^/]+\Z")

Step = Callable[[int, bytes], bool]


def ledger_create(kind: int, packet: bytes) -> bool:
    """Return whether this creates the record of a new ledger, alone or in the transaction that first deletes the node
    of its id."""
    if kind != _MULTI:
        return kind in (_CREATE, _CREATE2) and _LEDGER.search(_path(packet, _HEADER_BYTES)) is not None
    if struct.unpack_from(">i", packet, _HEADER_BYTES)[0] != _DELETE:
        return False
    at = _HEADER_BYTES + _OPERATION_BYTES
    at += 4 + len(_path(packet, at)) + 4  # skip the path of the id, and its version
    kind_of_second = struct.unpack_from(">i", packet, at)[0]
    path = _path(packet, at + _OPERATION_BYTES) if kind_of_second in (_CREATE, _CREATE2) else b""
    return _LEDGER.search(path) is not None


def ledger_close(kind: int, packet: bytes) -> bool:
    """Return whether this changes a ledger's record: its end, or an ensemble."""
    return kind == _SET_DATA and _LEDGER.search(_path(packet, _HEADER_BYTES)) is not None


def page_create(kind: int, packet: bytes) -> bool:
    """Return whether this creates a page of a log. The head does not name the page yet."""
    return kind in (_CREATE, _CREATE2) and _PAGE.search(_path(packet, _HEADER_BYTES)) is not None


def head_multi(kind: int, packet: bytes) -> bool:
    """Return whether this is the compare-and-set of a log's head."""
    if kind != _MULTI:
        return False
    first = struct.unpack_from(">i", packet, _HEADER_BYTES)[0]
    return first == _SET_DATA and _HEAD.search(_path(packet, _HEADER_BYTES + _OPERATION_BYTES)) is not None


def head_multi_of(log: str) -> Step:
    """Return the function that recognizes the compare-and-set of this log's head."""
    wanted = f"/ledgers-logs/{log}".encode()

    def is_it(kind: int, packet: bytes) -> bool:
        return head_multi(kind, packet) and _path(packet, _HEADER_BYTES + _OPERATION_BYTES) == wanted

    return is_it


STEPS: dict[str, Step] = {
    "ledger create": ledger_create,
    "ledger close": ledger_close,
    "page create": page_create,
    "head multi": head_multi,
}


def _path(packet: bytes, at: int) -> bytes:
    size = struct.unpack_from(">i", packet, at)[0]
    return packet[at + 4 : at + 4 + size]
