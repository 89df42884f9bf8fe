# SPDX-License-Identifier: Apache-2.0
"""``scripts/trial interop matrix``: every cell on real processes, one line each, and a table at the end.

With ``--resume FILE`` each result is a line of that file; the next call runs what has not passed yet. Exit code 0 only
if every cell that can exist, of those asked for, has passed, and there was one.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.cells import BOOKIES, CLIENTS, OPERATIONS, WIRES, Cell, all_cells, pairwise
from tests.interop.stories import Matrix
from tests.interop.worlds import mixed_cluster

CLUSTER_CELLS = 100
"""Then a new cluster: it keeps the disk and the JVMs small."""


@dataclass(slots=True)
class Results:
    """How each cell ended, by its name: the last try, and how many of them failed before."""

    path: Path | None = None
    passed: dict[str, float] = field(default_factory=dict)  # seconds
    failed: dict[str, str] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None) -> Results:
        results = cls(path)
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                said = json.loads(line)
                results._take(said["cell"], said["seconds"], said["error"])
        return results

    def add(self, cell: Cell, seconds: float, error: str) -> None:
        self._take(str(cell), seconds, error)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"cell": str(cell), "seconds": round(seconds, 2), "error": error}) + "\n")

    def _take(self, cell: str, seconds: float, error: str) -> None:
        self.tries[cell] = self.tries.get(cell, 0) + 1
        self.passed.pop(cell, None)
        self.failed.pop(cell, None)
        if error:
            self.failed[cell] = error
        else:
            self.passed[cell] = seconds

    def passes(self, cells: Sequence[Cell]) -> bool:
        """Something ran, and nothing of it failed or is missing."""
        wanted = [str(cell) for cell in cells if not cell.impossible]
        return bool(wanted) and all(name in self.passed for name in wanted)

    def table(self, cells: Sequence[Cell]) -> str:
        """Passed of those that can exist, by client, wire and bookies, a column an operation; reasons; failures."""
        wanted = [cell for cell in cells if not cell.impossible]
        lines = [f"| client | wire | bookies | {' | '.join(OPERATIONS)} |", "|---|---|---|" + "---:|" * len(OPERATIONS)]
        for client in CLIENTS:
            for wire in WIRES:
                for bookies in BOOKIES:
                    row = [cell for cell in wanted if (cell.client, cell.wire, cell.bookies) == (client, wire, bookies)]
                    if row:
                        counts = [self._count([cell for cell in row if cell.operation == each]) for each in OPERATIONS]
                        lines.append(f"| {client} | {wire} | {bookies} | {' | '.join(counts)} |")
        passed = [str(cell) for cell in wanted if str(cell) in self.passed]
        seconds = sum(self.passed[name] for name in passed)
        again = sum(self.tries[name] > 1 for name in passed)
        lines += ["", f"{len(passed)} of {len(wanted)} cells passed in {seconds:.0f} s; {again} of them not at once."]
        reasons: dict[str, int] = {}
        for cell in cells:
            if cell.impossible:
                reasons[cell.impossible] = reasons.get(cell.impossible, 0) + 1
        lines += [f"{count} combinations are no cells: {reason}." for reason, count in reasons.items()]
        names = {str(cell) for cell in wanted}
        lines += [f"FAILED {name}: {error}" for name, error in self.failed.items() if name in names]
        return "\n".join(lines)

    def _count(self, cells: Sequence[Cell]) -> str:
        return f"{sum(str(cell) in self.passed for cell in cells)}/{len(cells)}" if cells else "–"


def main(words: Sequence[str]) -> int:
    """Run the cells that the options ask for. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/trial interop matrix", description="Every client on every bookie.")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep results there; go on with what did not pass")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose name has this: java-4.18.0/mixed/v2")
    parser.add_argument("--pairwise", action="store_true", help="the selection that CI runs")
    parser.add_argument("--minutes", type=float, default=90.0, help="end after so long [default: 90]")
    arguments = parser.parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up then too
    cells = [cell for cell in (pairwise() if arguments.pairwise else all_cells()) if arguments.only in str(cell)]
    results = Results.load(arguments.resume)
    for cell in cells:
        if cell.impossible:
            print(f"-    {cell}: {cell.impossible}")
    deadline = time.monotonic() + arguments.minutes * 60
    left = [cell for cell in cells if not cell.impossible and str(cell) not in results.passed]
    random.Random(0).shuffle(left)  # a run that is ended early has seen something of everything,
    first = set(pairwise())
    left.sort(key=lambda cell: cell not in first)  # and before that all pairs
    try:
        while left and time.monotonic() < deadline:
            part, left = left[:CLUSTER_CELLS], left[CLUSTER_CELLS:]
            _run_part(part, results, deadline)
    except KeyboardInterrupt:
        print("interop matrix: interrupted", file=sys.stderr)
    print(results.table(cells))
    return 0 if results.passes(cells) else 1


def _run_part(cells: Sequence[Cell], results: Results, deadline: float) -> None:
    """Some cells on one cluster. What a failed one leaves behind is no reason for the next to fail: a new cluster."""
    left = list(cells)
    while left and time.monotonic() < deadline:
        folder, passes = Path(tempfile.mkdtemp(prefix="matrix-")), True
        with mixed_cluster(folder, ours=Matrix.OURS, apache=Matrix.APACHE) as cluster:
            matrix = Matrix(cluster)
            while left and passes and time.monotonic() < deadline:
                passes = _passes(matrix, left.pop(0), results)
            matrix.close()
        if passes:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"     logs and data are kept in {folder}", flush=True)


def _passes(matrix: Matrix, cell: Cell, results: Results) -> bool:
    began, error = time.monotonic(), ""
    try:
        matrix.play(cell)
    except Exception as failure:  # the next cells tell more
        error = f"{type(failure).__name__}: {failure}".replace("\n", " | ")[:2000]
        traceback.print_exc(file=sys.stderr)
    seconds = time.monotonic() - began
    results.add(cell, seconds, error)
    print(f"{'FAIL' if error else 'ok  '} {cell} {seconds:.1f} s {error}".rstrip(), flush=True)
    return not error
