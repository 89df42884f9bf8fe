# SPDX-License-Identifier: Apache-2.0
"""The functions that the bookies' processes run: a bookie of ours with shorter waits and a clock that can be set wrong,
or a Java.

``BREAKS`` has defects for these processes. The trial must find each of them (``--break NAME``).
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
"""The waits of auto-recovery in seconds. The product's defaults are 5, 30, 5 and 600."""
OFFSET = struct.Struct("<d")


def bookie(arguments: list[str], clock: str, broken: str = "") -> int:
    """Run ``bk ARGUMENTS``. The file ``clock`` has the number of seconds by which this process's wall clock is
    wrong."""
    _read_clock_from(Path(clock))
    _wait_less()
    if broken:
        BREAKS[broken]()
    return main.run(arguments)


def command(arguments: list[str], broken: str = "") -> int:
    """Run ``bk ARGUMENTS`` as an operator does."""
    if broken:
        BREAKS[broken]()
    return main.run(arguments)


def java(arguments: list[str]) -> int:
    """Replace this process by a Java."""
    os.execv(arguments[0], arguments)


def _read_clock_from(path: Path) -> None:
    """Let ``time.time`` return a wrong time to every caller in this process. The monotonic clock stays right, as it
    does when an operator sets the clock of a machine."""
    with path.open("rb") as file:
        offset = mmap.mmap(file.fileno(), OFFSET.size, access=mmap.ACCESS_READ)
    right, right_ns = time.time, time.time_ns

    def wrong() -> float:
        return right() + float(OFFSET.unpack(offset)[0])

    def wrong_ns() -> int:
        return right_ns() + int(OFFSET.unpack(offset)[0] * 1e9)

    vars(time).update(time=wrong, time_ns=wrong_ns)


def _wait_less() -> None:
    """Shorten the waits of auto-recovery, so that the trial takes minutes."""
    own_copies.POLL_S = 1.0
    suspects.LOOK_AGAIN_S, suspects.LOOK_AGAIN_MAX_S = 4.0, 20.0
    defaults: dict[str, Any] = AutoRecoveryConfig.__init__.__kwdefaults__ or {}
    defaults.update(WAITS)


# --- defects ---


def _copies_are_not_durable() -> None:
    """Let a repair count each copy as durable at once, and never send it."""
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
    """Let a bookie forget the damage that the scrubber and readers find."""

    async def only_limbo(self: own_copies.SuspectsOfIndexes) -> list[LedgerId]:
        for index in self._indexes:
            index.take_suspects()
        in_limbo = [] if self._begun else await self._in_limbo()
        self._begun = True
        return in_limbo

    _replace(own_copies.SuspectsOfIndexes, "__call__", only_limbo)


def _drain_ends_early() -> None:
    """Let the first look say that the bookie is drained."""
    _replace(bookie_leaving.DrainWatch, "look", lambda self: True)


def _no_limbo() -> None:
    """Let a bookie without its data start as if it had never had any."""

    def trusting(store: object, bookie_id: BookieId, parts: Sequence[object], lost: Collection[int] = (0,)) -> int:
        return 0

    _replace(opening, "distrust", trusting)


def _cookie_is_ignored() -> None:
    """Let a bookie on an empty directory take the id and the cookie of its predecessor without an operator's
    consent."""
    opens = vars(opening)["open_directories"]

    def opening_all(*arguments: Any, **named: Any) -> Any:
        try:
            return opens(*arguments, **named)
        except BookieIdentityError:
            return opens(*arguments, **{**named, "accept_loss": True})

    _replace(opening, "open_directories", opening_all)


def _nobody_is_lost() -> None:
    """Let the auditor wait for every bookie forever."""
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
