# SPDX-License-Identifier: Apache-2.0
"""Leaders of a log in processes outside Spark. Each appends, rolls, and keeps a list of its acked entries."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from bk_core import blocking
from bk_core.errors import BookKeeperError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.trials.kit.nursery import Child
    from tests.trials.spark.rig import Space

READY_S = 120.0
PAUSE_S = 0.002
ROLL_EVERY = 40


def lead(uri: str, log: str, tag: str, count: int, acked: str) -> None:
    """Append ``tag:0``, ``tag:1`` and so on, and roll after every 40 entries. Note each number when its append has
    returned. A process runs this."""
    notes = os.open(acked, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with blocking.connect(uri) as bookkeeper:
        leader = bookkeeper.log(log).lead()
        try:
            for number in range(count):
                leader.append(f"{tag}:{number}".encode())
                os.write(notes, b"%d\n" % number)
                if number % ROLL_EVERY == ROLL_EVERY - 1:
                    leader.roll()
                time.sleep(PAUSE_S)
            leader.close()
        except BookKeeperError as error:
            print(f"lost: {error}", flush=True)


class Leader:
    """The trial's end of one leader."""

    def __init__(self, space: Space, log: str, tag: str, count: int) -> None:
        self.tag = tag
        self._acked: Path = space.path / f"acked-{tag}"
        cluster = space.rig.cluster
        self.child: Child = cluster.nursery.start(
            "tests.trials.spark.leaders:lead",
            space.path / f"leader-{tag}.log",
            uri=cluster.direct_uri,
            log=log,
            tag=tag,
            count=count,
            acked=str(self._acked),
        )

    @property
    def acked(self) -> int:
        """The number of acked entries. These are the leader's first ones."""
        try:
            return self._acked.read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def rows(self) -> list[bytes]:
        """Return the acked entries."""
        return [f"{self.tag}:{number}".encode() for number in range(self.acked)]

    def wait_acked(self, count: int) -> None:
        """Wait until this many entries are acked. Raises RuntimeError if the leader ends before, or is too slow."""
        deadline = time.monotonic() + READY_S
        while self.acked < count:
            if not self.child.is_running or time.monotonic() > deadline:
                raise RuntimeError(f"leader {self.tag} has acked {self.acked} of {count}")
            time.sleep(0.02)

    def wait_ended(self) -> None:
        """Wait until another leader took over, or the leader has appended all its entries. Raises RuntimeError."""
        if self.child.wait(READY_S) is None:
            raise RuntimeError(f"leader {self.tag} does not end")

    def kill(self) -> None:
        self.child.signal(signal.SIGKILL)
        self.wait_ended()

    def end(self) -> None:
        """End the process in any case."""
        if self.child.is_running:
            self.kill()
        self.child.release()
