# SPDX-License-Identifier: Apache-2.0
"""Has Apache's status codes in versions 3 and 2 of its protocol, and converts them from and to the reasons of our own
lanes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bk_core.wire.bookie_rpc.frames import I64
from bk_core.wire.lane.reasons import Reason


class Status(enum.IntEnum):
    """Apache's statuses; the values are those of version 3."""

    EOK = 0
    ENOLEDGER = 402
    ENOENTRY = 403
    EBADREQ = 404
    EIO = 501
    EUA = 502
    EBADVERSION = 503
    EFENCED = 504
    EREADONLY = 505
    ETOOMANYREQUESTS = 506
    EUNKNOWNLEDGERSTATE = 507


class StatusRow(NamedTuple):
    """The conversions of one status. ``v2`` is its code of version 2 when it is read, and ``v2_sent`` when it is sent.
    ``reason`` is the reason that our client uses for it. ENOLEDGER and ENOENTRY have REASON_NONE, and make the entry
    ABSENT. Every other status except EOK makes the entry UNKNOWN (MUST4)."""

    v2: int
    v2_sent: int
    reason: Reason


STATUSES: Mapping[Status, StatusRow] = MappingProxyType(
    {
        Status.EOK: StatusRow(0, 0, Reason.REASON_NONE),
        Status.ENOLEDGER: StatusRow(1, 1, Reason.REASON_NONE),
        Status.ENOENTRY: StatusRow(2, 2, Reason.REASON_NONE),
        Status.EBADREQ: StatusRow(100, 100, Reason.BAD_REQUEST),
        Status.EIO: StatusRow(101, 101, Reason.IO_ERROR),
        Status.EUA: StatusRow(102, 102, Reason.UNAUTHORIZED),
        Status.EBADVERSION: StatusRow(103, 103, Reason.UNSUPPORTED_VERSION),
        Status.EFENCED: StatusRow(104, 104, Reason.FENCED),
        Status.EREADONLY: StatusRow(105, 105, Reason.READ_ONLY),
        Status.ETOOMANYREQUESTS: StatusRow(106, 106, Reason.OVERLOADED),
        # Java's client of version 2 has no code 107. It raises in its event loop and closes the connection, so that
        # every request in flight there fails. EIO also makes the entry UNKNOWN there, and fails only one request.
        Status.EUNKNOWNLEDGERSTATE: StatusRow(107, 101, Reason.LIMBO),
    }
)

_REFUSED_ADD = {
    Reason.FENCED: Status.EFENCED,
    Reason.UNAUTHORIZED: Status.EUA,
    Reason.UNAUTHENTICATED: Status.EUA,
    Reason.READ_ONLY: Status.EREADONLY,
    Reason.NO_SPACE: Status.EREADONLY,
    Reason.OVERLOADED: Status.ETOOMANYREQUESTS,
    Reason.UNSUPPORTED_VERSION: Status.EBADVERSION,
    Reason.DELETED: Status.EFENCED,  # Apache's bookies keep a deleted ledger as fenced
    Reason.INTEGRITY: Status.EBADREQ,
    Reason.BAD_REQUEST: Status.EBADREQ,
    Reason.TOO_LARGE: Status.EBADREQ,
    Reason.UNIMPLEMENTED: Status.EBADREQ,
}

_REFUSED_READ = _REFUSED_ADD | {
    Reason.DELETED: Status.ENOLEDGER,
    Reason.LIMBO: Status.EUNKNOWNLEDGERSTATE,
    Reason.COPY_DROPPED: Status.EUNKNOWNLEDGERSTATE,
    Reason.INTEGRITY: Status.EIO,
}


def refused_add(reason: Reason) -> Status:
    """Return the status for an add that this bookie refuses. If Apache has no status for the reason, such as a failed
    disk, limbo, a time limit or a shutdown, it is EIO; a client then replaces the bookie."""
    return _REFUSED_ADD.get(reason, Status.EIO)


def refused_read(reason: Reason) -> Status:
    """Return the status for a read whose entry is UNKNOWN on this bookie. The status is never ENOENTRY, and is
    ENOLEDGER only for a deleted ledger."""
    return _REFUSED_READ.get(reason, Status.EIO)


def reason_of(status: Status) -> Reason:
    """Return the reason that our client uses for a status."""
    return STATUSES[status].reason


BY_CODE: Mapping[int, Status] = MappingProxyType({row.v2: status for status, row in STATUSES.items()})
"""The status for each code of version 2."""

UNKNOWN_CODE = -1

_TO_V2 = np.full(max(Status) + 1, UNKNOWN_CODE, dtype=np.int64)
_FROM_V2 = np.full(max(row.v2 for row in STATUSES.values()) + 1, UNKNOWN_CODE, dtype=np.int64)
for _status, _row in STATUSES.items():
    _TO_V2[_status] = _row.v2_sent
    _FROM_V2[_row.v2] = _status


def to_v2(statuses: I64 | int) -> I64:
    """Convert statuses, one or many, to codes of version 2."""
    return _TO_V2[statuses]


def from_v2(codes: I64) -> I64:
    """Convert codes of version 2 to statuses; a code that does not exist becomes UNKNOWN_CODE."""
    known = (codes >= 0) & (codes < _FROM_V2.size)
    return np.where(known, _FROM_V2[np.where(known, codes, 0)], UNKNOWN_CODE)
