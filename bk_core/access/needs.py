# SPDX-License-Identifier: Apache-2.0
"""Has the table of the rights that each operation of each port needs in mode ``secure``. The ports enforce this table,
and a test compares it with all operations that the ports accept. Pure.

A port refuses an operation that the table does not list.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from bk_core.access.roles import Anywhere, LedgerFacts, Right, RolesTable, Target


class On(enum.Enum):
    """The object on which an operation needs a right."""

    FREE = "no right is needed, nor an identity"
    IDENTITY = "an identity is enough"
    LEDGER = "the ledger that is named"
    ANYWHERE = "anything at all"
    CLUSTER = "the cluster"


class Need(NamedTuple):
    on: On
    right: Right = Right.NONE


_FREE, _IDENTITY = Need(On.FREE), Need(On.IDENTITY)
_READ, _WRITE, _RECOVER = (Need(On.LEDGER, right) for right in (Right.READ, Right.WRITE, Right.RECOVER))
_LOOK, _HINT = Need(On.ANYWHERE, Right.LOOK), Need(On.ANYWHERE, Right.HINT)
_READ_ALL, _WRITE_ALL, _RECOVER_ALL, _LOOK_ALL = (
    Need(On.CLUSTER, right) for right in (Right.READ, Right.WRITE, Right.RECOVER, Right.LOOK)
)
_OPERATE = Need(On.CLUSTER, Right.OPERATE)

LANES: Mapping[str, Mapping[str, Need]] = MappingProxyType(
    {
        "Add": {
            "hello": _IDENTITY,
            "grants": _IDENTITY,
            "traceparent": _IDENTITY,  # the trace that the requests belong to
            "attach": _WRITE,
            "attach RECOVER": _RECOVER,
            "frames": _IDENTITY,  # the machine refuses frames of sessions that are not attached
            "detach": _IDENTITY,  # ends only sessions of this stream
        },
        "Read": {
            "hello": _IDENTITY,
            "grants": _IDENTITY,
            "traceparent": _IDENTITY,  # the trace that the requests belong to
            "id": _READ,
            "id fence": _RECOVER,
            "cancel": _IDENTITY,  # ends only requests of this stream
        },
        "Control": {
            "hello": _IDENTITY,
            "grants": _IDENTITY,
            "traceparent": _IDENTITY,  # the trace that the requests belong to
            "grant": _IDENTITY,  # the roles decide what is granted
            "fence": _RECOVER,
            "read_lac": _READ,
            "write_lac": _WRITE,
            "watch_lac": _READ,
            "force": _WRITE,
            "list_entries": _READ,
            "bookie_info": _LOOK,
            "delete_hint": _HINT,
            "cancel": _IDENTITY,
        },
    }
)
"""The rights that our lanes need, by stream and then by field of a client's message, in some cases with a flag."""

APACHE: Mapping[str, Need] = MappingProxyType(
    {
        "AUTH": _FREE,
        "START_TLS": _FREE,
        "ADD_ENTRY": _WRITE_ALL,
        "ADD_ENTRY RECOVERY_ADD": _RECOVER_ALL,
        "READ_ENTRY": _READ_ALL,
        "READ_ENTRY FENCE_LEDGER": _RECOVER_ALL,
        "BATCH_READ_ENTRY": _READ_ALL,
        "BATCH_READ_ENTRY FENCE_LEDGER": _RECOVER_ALL,
        "RANGE_READ_ENTRY": _READ_ALL,
        "RANGE_ADD_ENTRY": _WRITE_ALL,
        "READ_LAC": _READ_ALL,
        "WRITE_LAC": _WRITE_ALL,
        "FORCE_LEDGER": _WRITE_ALL,
        "GET_BOOKIE_INFO": _LOOK_ALL,
        "GET_LIST_OF_ENTRIES_OF_LEDGER": _READ_ALL,
    }
)
"""The rights that operations of Apache's wire need, in both versions. This wire carries no grants, so only roles on the
whole cluster count."""

FREE_PATHS = ("/heartbeat", "/live", "/ready", "/api/v1/bookie/is_ready")
"""The paths of the admin port that need no right. Health probes call them, and a probe often has no certificate."""

_PAGE = ("page", "dom", "words", "charts", "overview", "ledgers", "logs", "repair")
_PARTS = ("cluster", "repair", "ledgers", "ledger", "logs", "log", "lac", "tail")

ADMIN: Mapping[tuple[str, str], Need] = MappingProxyType(
    {
        **{("GET", path): _FREE for path in FREE_PATHS},
        **{
            ("GET", path): _LOOK_ALL
            for path in (
                *("/paths", "/config", "/lacking", "/log/level", "/metrics"),
                *("/api/v1/bookie/state", "/api/v1/bookie/state/readonly", "/api/v1/bookie/info"),
                *("/api/v1/bookie/gc", "/api/v1/config/server_config"),
                *("/", "/page.css", "/icon.svg"),
                *(f"/{name}.js" for name in _PAGE),
                *(f"/page/{name}" for name in _PARTS if name != "tail"),
            )
        },
        ("GET", "/page/tail"): _READ_ALL,
        ("PUT", "/log/level"): _OPERATE,
    }
)
"""The rights that the admin port needs, by method and path."""


def allowed(table: RolesTable, identity: str, need: Need, ledger: LedgerFacts | None = None) -> bool:
    """Return whether an identity may do an operation with this need. ``ledger`` is the ledger of an operation whose
    need is on a ledger. An empty ``identity`` means that the client has none."""
    if need.on is On.FREE:
        return True
    if need.on is On.IDENTITY:
        return bool(identity)
    target: Target = Anywhere.ANYWHERE if need.on is On.ANYWHERE else Anywhere.CLUSTER
    if need.on is On.LEDGER:
        if ledger is None:
            return False
        target = ledger
    return bool(need.right) and need.right in table.rights(identity, target)
