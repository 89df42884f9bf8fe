# SPDX-License-Identifier: Apache-2.0
"""``scripts/storage-trial``: a bookie process is killed, or loses power, again and again, and is read back in full.

Exit code 0 only if rounds were run and no promise was broken. With ``--resume FILE`` the figures so far are kept there
after every round, and the next call goes on from them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path

from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.metadata import open_store
from tests.trials.kit.nursery import Nursery
from tests.trials.storage.counts import NAMES
from tests.trials.storage.oracle import Oracle
from tests.trials.storage.rounds import Process, StorageRound

WANTED = ("acked", "read beside writers", "fenced", "found deleted", *(n for n in NAMES if n != "segments unlinked"))
DIRECTORY_ROUNDS = 8
"""Then a new directory: reading everything back takes longer each time."""
PROBLEMS_KEPT = 20


@dataclass(slots=True)
class Figures:
    """Sums over the rounds of all runs of one seed."""

    seed: int
    power: bool
    rounds: int = 0
    starts: int = 0
    seconds: float = 0.0
    slowest_start_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, seed: int, power: bool) -> Figures:
        """Those of the file, or new ones. ValueError if the file is of another trial."""
        if not path.exists():
            return cls(seed, power)
        said = json.loads(path.read_text(encoding="utf-8"))
        if (said["seed"], said["power"]) != (seed, power):
            raise ValueError(f"{path} is of seed {said['seed']}, power {said['power']}: name another file")
        return cls(**{**said, "counts": Counter(said["counts"])})

    def save(self, path: Path) -> None:
        new = path.with_name(path.name + ".new")
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        new.write_text(json.dumps(said, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(path)

    @property
    def passed(self) -> bool:
        """Nothing is wrong, and everything that the trial is about did happen."""
        return self.rounds > 0 and not self.problems and not self.missing

    @property
    def missing(self) -> list[str]:
        """What never happened: of that the trial says nothing."""
        return [what for what in WANTED if not self.counts[what]]

    def text(self) -> str:
        """The report, in Markdown."""
        end = "rounds that ended with a loss of power" if self.power else "rounds that ended with kill -9"
        rows = [
            (end, self.rounds),
            ("starts, those killed in the start among them", self.starts),
            ("kills", self.counts["kills"]),
            ("operations: frames sent, reads, fences, deletions", self.counts["operations"]),
            *((f"entries {what}", self.counts[what]) for what in ("acked", "in doubt, kept", "in doubt, gone")),
            ("entries read beside writers", self.counts["read beside writers"]),
            ("entries read back after restarts", self.counts["read"]),
            ("ledgers fenced", self.counts["fenced"]),
            ("ledgers told to be deleted", self.counts["hinted"]),
            ("ledgers found deleted after a restart", self.counts["found deleted"]),
            *((what, self.counts[what]) for what in NAMES),
            *((f"**{what}**", self.counts[what]) for what in ("lost", "resurrected", "changed", "unknown")),
            ("slowest start", f"{self.slowest_start_s:.2f} s"),
            ("time", f"{self.seconds:.0f} s, {self.seconds / max(self.rounds, 1):.1f} s a round"),
        ]
        lines = ["| | |", "|---|---:|"]
        lines += [
            f"| {what} | {value:,} |" if isinstance(value, int) else f"| {what} | {value} |" for what, value in rows
        ]
        lines += ["", *(f"- {problem}" for problem in self.problems), *(f"- NEVER: {what}" for what in self.missing)]
        return "\n".join(lines).rstrip() + "\n"


def run_rounds(figures: Figures, rounds: int, work: Path, tell: Callable[[Figures], None]) -> None:
    """Go on until ``rounds`` are done; one ZooKeeper, and a new data directory now and then."""
    nursery, zookeeper = Nursery(), ZooKeeperServer(tick_ms=100, durable=False)
    try:
        zookeeper.start(work / "zookeeper")
        while figures.rounds < rounds:
            uri = f"zk://127.0.0.1:{zookeeper.port}/{uuid.uuid4().hex}"
            path = work / f"bookie-{figures.rounds}"
            path.mkdir(parents=True)
            problems = len(figures.problems)
            _one_directory(figures, min(rounds, figures.rounds + DIRECTORY_ROUNDS), path, uri, nursery, tell)
            if len(figures.problems) > problems:
                print(f"storage-trial: data and log are kept in {path}", file=sys.stderr)
                return
            shutil.rmtree(path)
    finally:
        nursery.close()
        zookeeper.stop()


def _one_directory(
    figures: Figures, until: int, path: Path, uri: str, nursery: Nursery, tell: Callable[[Figures], None]
) -> None:
    process, oracle = Process(nursery, path, uri, figures.power, figures.seed * 1000 + figures.rounds), Oracle()
    with closing(open_store(uri)) as store, asyncio.Runner() as runner:
        store.initialize_cluster()
        try:
            process.begin()
            process.wait_ready()
            while figures.rounds < until and not figures.problems:
                began = time.monotonic()
                rng = random.Random(f"{figures.seed}/{figures.rounds}")
                StorageRound(process, store, oracle, rng).run(runner)
                figures.seconds += time.monotonic() - began
                _add(figures, oracle, process)
                tell(figures)
        except RuntimeError as error:
            figures.problems.append(f"round {figures.rounds}: {error}")
            tell(figures)
        finally:
            process.kill()


def _add(figures: Figures, oracle: Oracle, process: Process) -> None:
    figures.rounds += 1
    figures.starts += process.starts
    process.starts = 0
    oracle.counts.update(process.take_counts())
    figures.slowest_start_s = max(figures.slowest_start_s, process.slowest_start_s)
    figures.counts.update(oracle.counts)
    figures.problems += [f"round {figures.rounds - 1}: {what}" for what in oracle.problems[:PROBLEMS_KEPT]]
    oracle.counts.clear()


def main() -> int:
    ask = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up then too
    try:
        figures = Figures.load(ask.resume, ask.seed, ask.power) if ask.resume else Figures(ask.seed, ask.power)
    except ValueError as error:
        print(f"storage-trial: {error}", file=sys.stderr)
        return 2

    def tell(so_far: Figures) -> None:
        if ask.resume:
            so_far.save(ask.resume)
        if not ask.quiet:
            counts = so_far.counts
            print(f"round {so_far.rounds}: {counts['acked']:,} acked, {counts['found deleted']} deleted", flush=True)

    if ask.work is not None:
        ask.work.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="storage-trial-", dir=ask.work))
    try:
        run_rounds(figures, ask.rounds, work, tell)
    except KeyboardInterrupt:
        print("storage-trial: interrupted", file=sys.stderr)
    if not figures.problems:
        shutil.rmtree(work, ignore_errors=True)
    text = figures.text()
    print(text)
    if ask.report:
        options = f"--rounds {figures.rounds} --seed {figures.seed}{' --power' if ask.power else ''}"
        head = (
            f"# Trial of storage\n\n`scripts/storage-trial {options}`, {time.strftime('%Y-%m-%d', time.gmtime())}.\n\n"
        )
        ask.report.write_text(head + text, encoding="utf-8")
    return 0 if figures.passed and figures.rounds >= ask.rounds else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/storage-trial", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="how many in all, those of the resumed file included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--power", action="store_true", help="lose what was not synced, instead of only the process")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the figures there and go on from them")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report there as well")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where the bookie's data go while it runs")
    parser.add_argument("--quiet", action="store_true", help="no line for each round")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
