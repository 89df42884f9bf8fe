# SPDX-License-Identifier: Apache-2.0
"""A model of costs: few constants, fitted on some measured points and checked on others, and what it says that a
cluster needs. Pure: of records, wherever they come from.

A constant is seconds of a processor for one thing, on one side. A frame of many entries has digests made by numpy,
which costs something by itself. A frame is sent to each of its bookies, which also write the last add confirmed of idle
ledgers as frames. A request is a message with frames, or a word of the last add confirmed, of which a call sends or
receives several. A group is what a bookie syncs at once. A read has constants of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.figures import Figure, Record, number
from benchmarks.processes import BOOKIES, CLIENT, ZOOKEEPER

Row = tuple[str, ...]
Table = tuple[str, Sequence[str], list[Row]]
"""A title, columns, rows."""
Counts = Mapping[str, float]

APPENDS: dict[str, dict[str, Callable[[Counts], float]]] = {
    CLIENT: {
        "byte": lambda counts: counts["bytes"],
        "byte sent": lambda counts: counts["frame_bytes"],
        "entry": lambda counts: counts["entries"],
        "append": lambda counts: counts["appends"],
        "frame of many": lambda counts: counts["wide"],
        "frame sent": lambda counts: counts["made"] * counts["write_quorum"],
        "request": lambda counts: counts["adds"] + counts["hints"],
        "call": lambda counts: counts["calls"],
    },
    BOOKIES: {
        "byte": lambda counts: counts["frame_bytes"],
        "entry": lambda counts: counts["entries"] * counts["write_quorum"],
        "frame": lambda counts: counts["frames"],
        "request": lambda counts: counts["adds"] + counts["hints"],
        "call": lambda counts: counts["calls"],
        "group": lambda counts: counts["groups"],
    },
}
"""What an append consists of, for each side."""
READS: dict[str, dict[str, Callable[[Counts], float]]] = {
    side: {
        "byte read": lambda counts: counts["bytes"],
        "entry read": lambda counts: counts["entries"],
    }
    for side in (CLIENT, BOOKIES)
}
FITTED = (
    *("batches_100b", "batches_1kb", "batches_200b", "batches_300b", "singles_100b", "few_in_flight", "qw_1"),
    *("ledgers_1", "ledgers_1000", "clients_100", "read_100b", "read_1kb"),
)
CHECKED = (
    *("ledgers_10", "ledgers_10000", "clients_10", "bookies_5", "bookies_9", "batches_500b", "mixed", "qw_2"),
    "read_300b",
)
CYCLE, CYCLE_BYTES = "ledger_cost", 100
LOADS = {
    "batches_1kb": "appends, batches of 1 MB, entries of 1 KB",
    "batches_100b": "appends, batches of 1 MB, entries of 100 B",
    "ledgers_1": "appends, batches of 10 KB, entries of 1 KB",
    "singles_100b": "appends, one entry of 100 B each, 200 in flight",
    "ledgers_1000": "the same batches of 10 KB to 1,000 ledgers in turn",
    "read_1kb": "reads, entries of 1 KB",
    "read_100b": "reads, entries of 100 B",
}
NETWORKS_GBIT = (1, 10, 25)
CLIENTS = (1, 10, 100)
PACKETS = 1538 / 1448
"""Bytes on an Ethernet for each byte of TCP's, at 1,500 a packet."""
LEAST_BOOKIES = 3
ERROR_WANTED = 25.0


@dataclass(frozen=True, slots=True)
class Point:
    """A measured one: what it consisted of, and the seconds of each side."""

    name: str
    counts: Counts
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, record: Record) -> Point:
        gigabytes = record["counts"]["bytes"] / 1e9
        seconds = {side: cost * gigabytes for side, cost in record["cpu_s_per_gb"].items()}
        return cls(record["name"], record["counts"], seconds)

    @property
    def parts(self) -> Mapping[str, Mapping[str, Callable[[Counts], float]]]:
        return APPENDS if "frames" in self.counts else READS


class Model:
    """``constants[side][thing]`` in seconds."""

    def __init__(self, points: Iterable[Point]) -> None:
        """Fitted on these, so that shares of the measured seconds are as right as can be."""
        given = list(points)
        self.constants: dict[str, dict[str, float]] = {CLIENT: {}, BOOKIES: {}}
        for kind in (APPENDS, READS):
            some = [point for point in given if point.parts is kind]
            for side, things in kind.items():
                self.constants[side] |= _fitted(some, side, things)

    def seconds(self, point: Point, side: str) -> float:
        """What this side should take."""
        things = point.parts[side].items()
        return sum(self.constants[side][thing] * count(point.counts) for thing, count in things)

    def error(self, point: Point, side: str) -> float:
        """Per cent of what was measured; above 0 where the model says too much."""
        return 100 * (self.seconds(point, side) / point.seconds[side] - 1)


def _fitted(points: Sequence[Point], side: str, things: Mapping[str, Callable[[Counts], float]]) -> dict[str, float]:
    names = list(things)
    matrix = np.array([[things[name](point.counts) / point.seconds[side] for name in names] for point in points])
    return dict(zip(names, not_negative(matrix, np.ones(len(points))), strict=True))


def not_negative(matrix: np.ndarray, wanted: np.ndarray) -> list[float]:
    """Least squares without negative constants: the set of columns with the least error of all sets without one. There
    are few columns."""
    best, found = math.inf, np.zeros(matrix.shape[1])
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    for chosen in range(1, 2 ** matrix.shape[1]):
        columns = [column for column in range(matrix.shape[1]) if chosen >> column & 1]
        solved, *_ = np.linalg.lstsq(matrix[:, columns] / scale[columns], wanted, rcond=None)
        error = float(np.sum((matrix[:, columns] / scale[columns] @ solved - wanted) ** 2))
        if (solved >= 0).all() and error < best - 1e-12:
            best, found = error, np.zeros(matrix.shape[1])
            found[columns] = solved / scale[columns]
    return [float(value) for value in found]


# --- what is told of the records of a run ---


def points_of(records: Iterable[Record]) -> dict[str, Point]:
    """Those that have counts of what they consisted of, by name."""
    known = {*FITTED, *CHECKED, CYCLE}
    return {record["name"]: Point.of(record) for record in records if record["name"] in known and record["counts"]}


def fitted(points: Mapping[str, Point]) -> Model | None:
    """None where a point lacks that it is fitted on."""
    return Model(points[name] for name in FITTED) if points.keys() >= set(FITTED) else None


def figures(records: Iterable[Record]) -> list[Figure]:
    """Memory of a ledger and a client, and how far the model is from what it was not fitted on."""
    points = points_of(records)
    return [*_memory(points), *_errors(points)]


def _errors(points: Mapping[str, Point]) -> list[Figure]:
    model = fitted(points)
    checked = [points[name] for name in CHECKED if name in points]
    if model is None or not checked:
        return []
    errors = [abs(model.error(point, side)) for point in checked for side in (CLIENT, BOOKIES)]
    note = "of the seconds of a side, at points that the model was not fitted on; worst: at the worst of them"
    return [
        Figure("model_error", "%", errors, less_is_better=True, note=note),
        Figure("model_error_worst", "%", [max(errors)], less_is_better=True, wanted=ERROR_WANTED),
    ]


def _memory(points: Mapping[str, Point]) -> list[Figure]:
    note = "resident memory that opening them added, of the process of the clients or of all bookies together"
    return [
        Figure(f"{of}_memory_{side}", unit, [points[name].counts[f"{side}_memory"] / points[name].counts[many] / size],
               less_is_better=True, note=note)
        for name, of, many in (("ledgers_10000", "ledger", "ledgers"), ("clients_100", "client", "clients"))
        if name in points
        for side in ("client", "bookies")
        for unit, size in (("KB", 1e3),)
    ]  # fmt: skip


def tables(records: Iterable[Record]) -> list[Table]:
    """What the model says, where all that it is fitted on was measured."""
    points = points_of(records)
    model = fitted(points)
    if model is None:
        return []
    return [
        ("The constants", ("side", "of", "CPU time"), list(_constants(model, points))),
        ("The model beside the points", ("point", "", *_ERROR_COLUMNS), list(_comparison(model, points))),
        ("Bytes for a byte of payload", ("point", "Qw", "on the wire", "on disks"), list(_bytes(points))),
        ("What a cluster needs: MB/s of payload, and how many bookies", _NEEDS_COLUMNS, list(needs(model, points))),
    ]


_ERROR_COLUMNS = tuple(f"{side}: {what}" for side in (CLIENT, BOOKIES) for what in ("s a GB", "model", "error"))
_NEEDS_COLUMNS = (
    *("load", "Gbit/s", "a client", "bound by", "a bookie", "bound by"),
    *(f"{count} client{'s' * (count > 1)}" for count in CLIENTS),
    "its disk",
)


def _constants(model: Model, points: Mapping[str, Point]) -> Iterator[Row]:
    for side, constants in model.constants.items():
        for thing, seconds in constants.items():
            yield side, thing, _time(seconds)
    if CYCLE in points:
        for side in (CLIENT, BOOKIES, ZOOKEEPER):
            seconds = points[CYCLE].seconds.get(side, 0.0)
            yield side, "ledger made, given an entry, closed", _time(seconds / points[CYCLE].counts["ledgers"])


def _time(seconds: float) -> str:
    for unit, size in (("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if seconds >= size:
            return f"{number(seconds / size)} {unit}"
    return f"{number(seconds / 1e-12)} ps"


def _comparison(model: Model, points: Mapping[str, Point]) -> Iterator[Row]:
    for role, names in (("fitted", FITTED), ("checked", CHECKED)):
        for point in (points[name] for name in names if name in points):
            gigabytes = point.counts["bytes"] / 1e9
            cells = [
                cell
                for side in (CLIENT, BOOKIES)
                for cell in (
                    number(point.seconds[side] / gigabytes),
                    number(model.seconds(point, side) / gigabytes),
                    f"{model.error(point, side):+.0f} %",
                )
            ]
            yield point.name, role, *cells


def _bytes(points: Mapping[str, Point]) -> Iterator[Row]:
    for name in ("qw_1", "qw_2", "batches_1kb", "batches_100b", "ledgers_1", "singles_100b"):
        if name in points:
            counts = points[name].counts
            wire, disk = (counts[kind] / counts["bytes"] for kind in ("frame_bytes", "disk_bytes"))
            yield name, f"{counts['write_quorum']:.0f}", number(wire * PACKETS), number(disk)


def needs(model: Model, points: Mapping[str, Point]) -> Iterator[Row]:
    """Of each load on each network: how fast one client may be, what a bookie adds to the cluster, and how many bookies
    so many clients need at full rate, if each client and each bookie has one processor as fast as this machine's and a
    link of its own."""
    for name, told in LOADS.items():
        point = points[name]
        client_s, bookies_s = (model.seconds(point, side) / point.counts["bytes"] for side in (CLIENT, BOOKIES))
        wire = point.counts.get("frame_bytes", point.counts["bytes"]) / point.counts["bytes"] * PACKETS
        for gbit in NETWORKS_GBIT:
            link = gbit * 1e9 / 8 / wire
            client, bookie = min(1 / client_s, link), min(1 / bookies_s, link)
            counts = [max(LEAST_BOOKIES, math.ceil(many * client / bookie - 1e-9)) for many in CLIENTS]
            disk = point.counts.get("disk_bytes", 0.0) / point.counts["bytes"] * CLIENTS[-1] * client / counts[-1]
            yield (
                told, str(gbit), f"{client / 1e6:,.0f}", _bound(1 / client_s, link),
                f"{bookie / 1e6:,.0f}", _bound(1 / bookies_s, link), *map(str, counts),
                f"{disk / 1e6:,.0f}" if disk else "",
            )  # fmt: skip


def _bound(processor: float, link: float) -> str:
    return "processor" if processor < link else "network"
