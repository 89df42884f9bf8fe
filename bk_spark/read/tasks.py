# SPDX-License-Identifier: Apache-2.0
"""From resolved ranges to the plans of tasks: checked against the codec, packed, each with what it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bk_core import __version__
from bk_core.model import BookieId, BookieServiceInfo
from bk_spark import codecs
from bk_spark.options.options import BkOptions
from bk_spark.plan.packing import LedgerRange, PartitionLayout, PartitionLimits, pack
from bk_spark.plan.resolved import Resolved
from bk_spark.read.task_plan import TaskPlan
from bk_spark.workers.clients import bookie_infos

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper

RANGE_BYTES = 64 << 10
"""The cost of reading a range besides its bytes, because it is a request of its own: as many bytes could be read
instead."""
ID_BYTES = 16
"""The cost of an entry of which only the id is wanted: as many bytes could be read instead."""

Schemas = Mapping[str, Mapping[int, bytes]]


def task_plans(
    bookkeeper: BookKeeper, options: BkOptions, resolved: Resolved, codec: codecs.RowCodec, *, stream: bool = False
) -> list[TaskPlan]:
    """One plan for each Spark partition, with only what its task needs. Raises what ``codec.check`` raises: extents
    that were written with another codec, or a schema that cannot be read."""
    schemas = check_codec(bookkeeper, options, resolved, codec, stream=stream)
    limits = PartitionLimits(
        options.max_bytes_per_partition,
        options.max_entries_per_partition,
        options.min_partitions,
        RANGE_BYTES,
        None if codec.reads_values else ID_BYTES,
    )
    packed = pack(resolved.ranges, limits)
    infos = bookie_infos(bookkeeper) if packed else {}
    return [
        _task_plan(bookkeeper.instance_id, ranges, infos, schemas, prefer=number)
        for number, ranges in enumerate(packed)
    ]


def check_codec(
    bookkeeper: BookKeeper, options: BkOptions, resolved: Resolved, codec: codecs.RowCodec, *, stream: bool
) -> Schemas:
    """The schemas of the logs that are read, after the codec accepted their extents; empty if the codec needs none."""
    schemas: dict[str, Mapping[int, bytes]] = {}
    for log, written in resolved.written.items():
        if log is not None and codecs.keeps_schema(options):
            schemas[log] = bookkeeper.log(log, password=options.ledger_password).schemas()
        codec.check(log, written, schemas.get(log or "", {}), stream=stream)
    return schemas


def _task_plan(
    instance_id: str,
    ranges: tuple[LedgerRange, ...],
    infos: Mapping[BookieId, BookieServiceInfo],
    schemas: Schemas,
    *,
    prefer: int,
) -> TaskPlan:
    bookies = {bookie for layout in _layouts(ranges) for f in layout.fragments for bookie in f.ensemble}
    named = sorted({(r.log, r.schema_number) for r in ranges if r.log is not None and r.log in schemas})
    return TaskPlan(
        version=__version__,
        instance_id=instance_id,
        ranges=ranges,
        bookies={bookie: infos[bookie] for bookie in sorted(bookies) if bookie in infos},
        prefer=prefer,
        schemas={(log, number): schemas[log][number] for log, number in named if number in schemas[log]},
    )


def _layouts(ranges: Sequence[LedgerRange]) -> list[PartitionLayout]:
    return list({id(r.layout): r.layout for r in ranges if r.layout is not None}.values())
