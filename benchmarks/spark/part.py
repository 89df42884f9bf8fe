# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.spark.part PART …``: measures one part in a process of its own, with a Java of its own.

The figures go to a file as JSON, because Spark writes to stdout and stderr. The process ends with its standard input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.report.figures import Figure
from benchmarks.spark.world import World, add_arguments, world_of
from bk_cli.local.lifeline import end_with


def rows(size: int, world: World) -> list[Figure]:
    from benchmarks.spark.rows import ceiling_figures

    return ceiling_figures(size, world)


def kafka(size: int, world: World) -> list[Figure]:
    from benchmarks.spark.rows import kafka_figures

    return kafka_figures(size, world)


def typed(world: World) -> list[Figure]:
    from benchmarks.spark.typed import typed_figures

    return typed_figures(world)


def kafka_typed(world: World) -> list[Figure]:
    from benchmarks.spark.typed import kafka_typed_figures

    return kafka_typed_figures(world)


def tasks(world: World) -> list[Figure]:
    from benchmarks.spark.tasks import task_figures

    return task_figures(world)


def tail(world: World) -> list[Figure]:
    from benchmarks.spark.tail import tail_figures

    return tail_figures(world)


MEASURES: dict[str, Callable[[World], list[Figure]]] = {
    "rows_100b": partial(rows, 100),
    "rows_1kb": partial(rows, 1_000),
    "tasks": tasks,
    "tail": tail,
    "typed": typed,
    "kafka_100b": partial(kafka, 100),
    "kafka_1kb": partial(kafka, 1_000),
    "kafka_typed": kafka_typed,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.spark.part")
    parser.add_argument("part", choices=MEASURES)
    parser.add_argument("--to", type=Path, required=True)
    add_arguments(parser)
    options = parser.parse_args()
    end_with(sys.stdin.fileno())
    figures = MEASURES[options.part](world_of(options))
    options.to.write_text(json.dumps([asdict(figure) for figure in figures]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
