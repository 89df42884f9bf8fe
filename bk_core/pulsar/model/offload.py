# SPDX-License-Identifier: Apache-2.0
"""Decodes the offload context in a topic's record, which names the copy of a ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from bk_core.pulsar.proto import managed_ledger_pb2 as proto

INDEX = "-index"
"""The suffix of an index object's name. The name begins with the name of the data object."""
_HALF = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class OffloadedCopy:
    """A complete copy of a ledger in other storage.

    ``driver`` is the name of Pulsar's offload driver. ``objects`` are the names of the data objects, in order. Each
    data object has an index object beside it. An offloader of closed ledgers makes one data object for each ledger. A
    streaming offloader makes several, which may also have entries of other ledgers. ``bucket``, ``region`` and
    ``endpoint`` are those of the broker's configuration, and each may be empty. ``last_entry`` is the ledger's last
    entry.
    """

    driver: str
    objects: tuple[str, ...]
    last_entry: int
    bucket: str = ""
    region: str = ""
    endpoint: str = ""


def offloaded_copy(info: proto.LedgerInfo) -> OffloadedCopy | None:
    """Return the copy that a ledger's record names, or None if the record names no complete copy."""
    context = info.offload_context
    segments = list(context.segments)
    streamed = (
        bool(segments)
        and info.entries > 0
        and all(each.complete for each in segments)
        and segments[-1].end_entry_id == info.entries - 1
    )
    if not context.complete and not streamed:
        return None
    if segments:
        objects = tuple(str(_uuid(each.uid_msb, each.uid_lsb)) for each in segments)
        driver = context.driver if context.HasField("driver") else segments[0].driver
    else:
        objects = (f"{_uuid(context.uid_msb, context.uid_lsb)}-ledger-{info.ledger_id}",)
        driver = context.driver
    values = _texts(driver.properties)
    return OffloadedCopy(
        _text(driver.name) or "an unnamed driver",
        objects,
        info.entries - 1,
        values.get("bucket", ""),
        values.get("region", ""),
        values.get("serviceEndpoint", ""),
    )


def _uuid(most: int, least: int) -> UUID:
    return UUID(int=(most & _HALF) << 64 | (least & _HALF))


def _texts(properties: Iterable[proto.KeyValue]) -> dict[str, str]:
    return {_text(each.key): _text(each.value) for each in properties}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
