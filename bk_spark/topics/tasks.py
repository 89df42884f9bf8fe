# SPDX-License-Identifier: Apache-2.0
"""Makes plans of tasks from the plans of topics. A task needs no metadata store.

Theory. Ranges are cut between entries, by bytes, like the ranges of logs. If the chunks of a message are in several
tasks, the message belongs to the task that has its last chunk. That task looks for the other chunks in the entries
before its own (``TopicPart.before``). So rows are in the order of their ids, and a repeated task or micro-batch has the
same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bk_core.pulsar.model.offload import OffloadedCopy
from bk_core.pulsar.model.plan import LOOK_BACK_BYTES, LOOK_BACK_RANGES, Bounds, PartitionPlan, TopicRange
from bk_core.pulsar.model.schemas import TopicSchemas
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.model.transactions import TxnId
from bk_spark.options.options import BkOptions
from bk_spark.plan.packing import Layouts, LedgerRange, PartitionLayout
from bk_spark.read.task_plan import TaskPlan
from bk_spark.read.tasks import packed_plans

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper


@dataclass(frozen=True, slots=True)
class TopicPart:
    """The facts about one topic or partition that a task needs. ``compacted`` has the ledgers of the compacted topic.
    ``aborted``, ``decided`` and ``schemas`` are those of :class:`PartitionPlan`. ``before`` has the ranges before those
    of the task, in order. ``copies`` has the copies of the ledgers that are read from object storage."""

    topic: TopicName
    bounds: Bounds
    compacted: frozenset[int]
    aborted: frozenset[TxnId]
    decided: bool
    before: tuple[LedgerRange, ...] = ()
    schemas: TopicSchemas | None = None
    copies: Mapping[int, OffloadedCopy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicTask:
    """The plan of one task. Each range in ``plan`` has, as its log, the name of its topic or partition. ``parts`` has
    the topics and partitions by this name."""

    plan: TaskPlan
    parts: Mapping[str, TopicPart]


def task_plans(bookkeeper: BookKeeper, options: BkOptions, plans: Sequence[PartitionPlan]) -> list[TopicTask]:
    """Return one plan for each Spark partition."""
    layouts = Layouts()

    def converted(ranges: Sequence[TopicRange]) -> list[LedgerRange]:
        return [ledger_range(each, options.ledger_password, layouts) for each in ranges]

    ranges = [each for plan in plans for each in converted(plan.ranges)]
    history = {str(plan.topic): converted(plan.history) for plan in plans}
    by_name = {str(plan.topic): plan for plan in plans}
    return list(_with_parts(packed_plans(bookkeeper, options, ranges, {}), by_name, history))


def ledger_range(each: TopicRange, password: bytes, layouts: Layouts) -> LedgerRange:
    """Return a range of a topic as a :class:`LedgerRange`, which is packed into tasks."""
    return LedgerRange(
        ledger_id=each.ledger_id,
        first=each.first,
        last=each.last,
        bytes=each.bytes,
        log=str(each.topic),
        closed=each.metadata.is_closed,
        layout=layouts(PartitionLayout.of(each.metadata, password)) if each.copy is None else None,
    )


def _with_parts(
    packed: Sequence[TaskPlan], plans: Mapping[str, PartitionPlan], history: dict[str, list[LedgerRange]]
) -> Iterator[TopicTask]:
    """Yield each plan with the facts about its topics. ``history`` has, by topic, the ranges before the first task. The
    function adds the ranges of each task to it."""
    for task in packed:
        parts = dict[str, TopicPart]()
        for each in task.ranges:
            name = each.log or ""
            if name not in parts:
                parts[name] = _part(plans[name], latest(history.get(name, [])))
            history.setdefault(name, []).append(each)
        yield TopicTask(task, parts)


def _part(plan: PartitionPlan, before: tuple[LedgerRange, ...]) -> TopicPart:
    compacted = frozenset(each.ledger_id for each in plan.ranges if each.is_compacted)
    copies = {each.ledger_id: each.copy for each in (*plan.history, *plan.ranges) if each.copy is not None}
    return TopicPart(plan.topic, plan.bounds, compacted, plan.aborted, plan.decided, before, plan.schemas, copies)


def latest(
    ranges: Sequence[LedgerRange], bytes_max: int = LOOK_BACK_BYTES, ranges_max: int = LOOK_BACK_RANGES
) -> tuple[LedgerRange, ...]:
    """Return the last ranges within the limits, in order, but at least one if there is one. Adjacent ranges of one
    ledger are joined."""
    found, size = list[LedgerRange](), 0
    for each in reversed(ranges):
        if found and (size >= bytes_max or len(found) >= ranges_max):
            break
        size += each.bytes
        after = found[-1] if found else None
        if after is not None and after.ledger_id == each.ledger_id and after.first == each.last + 1:
            found[-1] = _joined(each, after)
        else:
            found.append(each)
    return tuple(reversed(found))


def _joined(each: LedgerRange, after: LedgerRange) -> LedgerRange:
    return LedgerRange(
        ledger_id=each.ledger_id,
        first=each.first,
        last=after.last,
        bytes=each.bytes + after.bytes,
        log=each.log,
        closed=each.closed,
        layout=each.layout,
    )
