# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.spark.part PART …``: measures one part in a process of its own, with a Java of its own.

The figures go to a file as JSON, because Spark writes to stdout and stderr. The process ends with its standard input.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benchmarks.spark.world import World
from bk_cli.local.lifeline import end_with

MEASURES: dict[str, tuple[str, str, dict[str, int]]] = {
    "rows_100b": ("rows", "ceiling_figures", {"size": 100}),
    "rows_1kb": ("rows", "ceiling_figures", {"size": 1_000}),
    "tasks": ("tasks", "task_figures", {}),
    "tail": ("tail", "tail_figures", {}),
    "typed": ("typed", "typed_figures", {}),
    "kafka_100b": ("rows", "kafka_figures", {"size": 100}),
    "kafka_1kb": ("rows", "kafka_figures", {"size": 1_000}),
    "kafka_typed": ("typed", "kafka_typed_figures", {}),
}
"""The module and the function that measure each part, and what the function gets besides the world."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.spark.part")
    parser.add_argument("part", choices=MEASURES)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--uri", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--kafka", default="")
    parser.add_argument("--lane", default="direct")
    given = vars(parser.parse_args())
    end_with(sys.stdin.fileno())
    to = given.pop("to")
    module, function, more = MEASURES[given.pop("part")]
    figures = getattr(import_module(f"benchmarks.spark.{module}"), function)(world=World(**given), **more)
    to.write_text(json.dumps([asdict(figure) for figure in figures]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
