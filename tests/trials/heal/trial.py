# SPDX-License-Identifier: Apache-2.0
"""``scripts/trial heal``: does a cluster of six bookies heal itself whatever happens to it, and lose nothing?

Bookies are killed, frozen, cut off, wiped, replaced, filled, corrupted, drained and restarted one by one, and their
clocks jump. Meanwhile writers, readers, recoverers and a log run. After each turn everything has to be healed, and a
part of all copies is read from each bookie by itself. At the end of a cluster all copies are read. Every second cluster
has four bookies of ours and two of Apache's.

With ``--secure`` bookies and clients use mode secure, with certificates, roles and ACLs in ZooKeeper, to which they
give a password. If there are bookies of Apache's, which then need certificates, the mode is mixed and ZooKeeper is
open.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.trials.harness import Figures, Trial
from tests.trials.heal.schedule import BY_NAME, FILL, KINDS, PARTITION, Kind, Turn, deal
from tests.trials.heal.serve import BREAKS
from tests.trials.heal.stage import Stage

APACHES = 2


class HealTrial(Trial):
    name = "heal"
    about = (
        "Six bookies with auto-recovery, in every second cluster two of them Apache's, must heal themselves within two "
        "minutes of each disturbance, under clients of which some are killed. Every copy is read from its bookie."
    )
    unit = "turn"
    rounds, minutes = None, 60.0
    world_rounds = 40
    isolates = True
    wanted = ("acknowledged", "copies checked at last")

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--secure", action="store_true", help="mode secure; beside Apache's bookies mode mixed")
        parser.add_argument("--apache", choices=("never", "half", "always"), default="half")
        parser.add_argument("--break", dest="broken", choices=sorted(BREAKS), default="", help="put this defect in")

    @property
    def _kinds(self) -> list[Kind]:
        return [kind for kind in KINDS if self.ask.networks or kind not in (FILL, PARTITION)]

    def next(self, figures: Figures) -> Turn | None:
        number = super().next(figures)
        return None if number is None else deal(self.ask.seed, number, self._kinds)

    def only(self, words: Sequence[str]) -> list[Turn]:
        return [Turn(number, BY_NAME[word]) for number, word in enumerate(words)]

    def again(self, what: Turn) -> str:
        return f"--only '{what.kind.name}'"

    def world(self, path: Path, figures: Figures) -> Stage:
        ask = self.ask
        is_mixed = ask.apache == "always" or (ask.apache == "half" and figures.counts["clusters"] % 2 == 1)
        return Stage(
            path,
            f"{ask.seed}/{figures.rounds}",
            self._kinds,
            apache=APACHES if is_mixed else 0,
            isolated=ask.networks,
            broken=ask.broken,
            secure=ask.secure,
        )
