# SPDX-License-Identifier: Apache-2.0
"""What the processes of bookies run: a bookie of ours with a clock that can be put wrong and shorter waits, or a Java.

``BREAKS`` has defects that are put into these processes on purpose: the trial must notice each (``--break NAME``).
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from bk_cli import main
from bk_cli.bookies import bookie_leaving
from bk_core.client.repairing.repair import RepairDriver
from bk_core.errors import BookieIdentityError
from bk_core.model import BookieId, LedgerId
from bk_core.protocol.events import FramesAcked, SendFrame
from bk_core.protocol.replication.absence import Absences
from bookie_server.autorecovery import own_copies, suspects
from bookie_server.autorecovery.settings import AutoRecoveryConfig
from bookie_server.identity import opening

WAITS = {"poll_s": 1.0, "open_ledger_grace_s": 4.0, "retry_s": 1.0, "retry_max_s": 8.0}
"""Of auto-recovery, where an operator has 5, 30, 5 and 600 seconds."""
OFFSET = struct.Struct("<d")


def bookie(arguments: list[str], clock: str, broken: str = "") -> int:
    """``bk ARGUMENTS``. The file ``clock`` says how many seconds this process's wall clock is wrong."""
    _read_clock_from(Path(clock))
    _wait_less()
    if broken:
        BREAKS[broken]()
    return main.run(arguments)


def command(arguments: list[str], broken: str = "") -> int:
    """``bk ARGUMENTS``, of an operator."""
    if broken:
        BREAKS[broken]()
    return main.run(arguments)


def java(arguments: list[str]) -> int:
    """Become a Java."""
    os.execv(arguments[0], arguments)


def _read_clock_from(path: Path) -> None:
    """Every caller of ``time.time`` in this process is told a wrong time. The monotonic clock is right, as it is after
    somebody has set the clock of a machine."""
    with path.open("rb") as file:
        offset = mmap.mmap(file.fileno(), OFFSET.size, access=mmap.ACCESS_READ)
    right, right_ns = time.time, time.time_ns

    def wrong() -> float:
        return right() + float(OFFSET.unpack(offset)[0])

    def wrong_ns() -> int:
        return right_ns() + int(OFFSET.unpack(offset)[0] * 1e9)

    vars(time).update(time=wrong, time_ns=wrong_ns)


def _wait_less() -> None:
    """The trial is as long as an operator's coffee."""
    own_copies.POLL_S = 1.0
    suspects.LOOK_AGAIN_S, suspects.LOOK_AGAIN_MAX_S = 4.0, 20.0
    defaults: dict[str, Any] = AutoRecoveryConfig.__init__.__kwdefaults__ or {}
    defaults.update(WAITS)


# --- defects ---


def _copies_are_not_durable() -> None:
    """A repair takes each copy for durable as soon as it has sent it, and it never arrives."""
    init = RepairDriver.__init__

    def repairing(self: RepairDriver, *arguments: Any, **named: Any) -> None:
        sent: dict[int, int] = {}

        def send(effect: Any) -> None:
            sent[effect.session] = sent.get(effect.session, 0) + 1
            event = FramesAcked(effect.index, effect.session, sent[effect.session])
            self._driver.loop.call_soon(self._driver.feed, event)

        init(self, *arguments, **named)
        self._driver.handle({SendFrame: send})

    _replace(RepairDriver, "__init__", repairing)


def _damage_is_forgotten() -> None:
    """What the scrubber and readers find damaged is told to nobody."""

    async def only_limbo(self: own_copies.SuspectsOfIndexes) -> list[LedgerId]:
        for index in self._indexes:
            index.take_suspects()
        in_limbo = [] if self._begun else await self._in_limbo()
        self._begun = True
        return in_limbo

    _replace(own_copies.SuspectsOfIndexes, "__call__", only_limbo)


def _drain_ends_early() -> None:
    """The first look says that the bookie is drained."""
    _replace(bookie_leaving.DrainWatch, "look", lambda self: True)


def _no_limbo() -> None:
    """A bookie whose data is gone starts as if it had never had any."""

    def trusting(store: object, bookie_id: BookieId, parts: Sequence[object], lost: Collection[int] = (0,)) -> int:
        return 0

    _replace(opening, "distrust", trusting)


def _cookie_is_ignored() -> None:
    """A bookie on an empty directory takes the id and the cookie of the one before, and asks nobody."""
    opens = vars(opening)["open_directories"]

    def opening_all(*arguments: Any, **named: Any) -> Any:
        try:
            return opens(*arguments, **named)
        except BookieIdentityError:
            return opens(*arguments, **{**named, "accept_loss": True})

    _replace(opening, "open_directories", opening_all)


def _nobody_is_lost() -> None:
    """The auditor waits for every bookie for ever."""
    _replace(Absences, "lost", lambda self, *_: ())


def _replace(owner: Any, name: str, value: object) -> None:
    setattr(owner, name, value)


BREAKS: dict[str, Callable[[], None]] = {
    "copies-not-durable": _copies_are_not_durable,
    "damage-forgotten": _damage_is_forgotten,
    "drain-early": _drain_ends_early,
    "no-limbo": _no_limbo,
    "cookie-ignored": _cookie_is_ignored,
    "nobody-lost": _nobody_is_lost,
}
