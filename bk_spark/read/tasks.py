# SPDX-License-Identifier: Apache-2.0
"""Turns resolved ranges into the plans of tasks: checks them against the codec, packs them, and gives each task what it
needs."""

from __future__ import annotations

import os
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
"""The cost of a range in addition to its bytes, because it is a request of its own. The unit is bytes that could be
read in the same time."""
ID_BYTES = 16
"""The cost of an entry if only its id is wanted, in bytes that could be read in the same time."""

PROCESSORS = os.cpu_count() or 1
"""The number of processors of the driver's machine. Spark does not tell a Python data source how many tasks it can run
at the same time."""

Schemas = Mapping[str, Mapping[int, bytes]]


def task_plans(
    bookkeeper: BookKeeper, options: BkOptions, resolved: Resolved, codec: codecs.RowCodec, *, stream: bool = False
) -> list[TaskPlan]:
    """Return one plan for each Spark partition, with only what its task needs. Raises what ``codec.check`` raises, for
    extents of another codec and for a schema that cannot be read."""
    schemas = check_codec(bookkeeper, options, resolved, codec, stream=stream)
    return packed_plans(bookkeeper, options, resolved.ranges, schemas, None if codec.reads_values else ID_BYTES)


def packed_plans(
    bookkeeper: BookKeeper,
    options: BkOptions,
    ranges: Sequence[LedgerRange],
    schemas: Schemas,
    entry_bytes: int | None = None,
) -> list[TaskPlan]:
    """Return one plan for each Spark partition of these ranges. ``entry_bytes``, if given, is the cost of each entry,
    because entries are not read."""
    limits = PartitionLimits(
        options.max_bytes_per_partition,
        options.max_entries_per_partition,
        options.min_partitions,
        RANGE_BYTES,
        entry_bytes,
        PROCESSORS,
    )
    packed = pack(ranges, limits)
    infos = bookie_infos(bookkeeper) if packed else {}
    return [
        _task_plan(bookkeeper.instance_id, task, infos, schemas, prefer=number) for number, task in enumerate(packed)
    ]


def check_codec(
    bookkeeper: BookKeeper, options: BkOptions, resolved: Resolved, codec: codecs.RowCodec, *, stream: bool
) -> Schemas:
    """Let the codec check the extents of each log. Return the schemas of each log, or nothing if the codec needs no
    schemas."""
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
