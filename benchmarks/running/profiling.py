# SPDX-License-Identifier: Apache-2.0
"""Finds which functions of our client's process take the time of a measurement, on the caller's thread and on the
loop's."""

from __future__ import annotations

import contextlib
import cProfile
import pstats
import sys
from collections.abc import Callable

from bk_core.blocking import BookKeeper

LINES = 25


def profile(name: str, run: Callable[[], object], bookkeeper: BookKeeper) -> None:
    """Run once more, and print the functions that took most time. A profile makes Python's calls look more expensive
    than they are."""
    profiles = {"loop": cProfile.Profile(), "caller": cProfile.Profile()}

    async def switch(on: bool) -> None:
        profiles["loop"].enable() if on else profiles["loop"].disable()

    bookkeeper.begin(lambda _: switch(True)).result()
    with contextlib.suppress(ValueError):  # from Python 3.12 on one profile sees all threads, and is alone
        profiles["caller"].enable()
    try:
        run()
    finally:
        profiles["caller"].disable()
        bookkeeper.begin(lambda _: switch(False)).result()
    for who, taken in profiles.items():
        if taken.getstats():
            print(f"\n{name}: the {who}'s thread", file=sys.stderr)
            pstats.Stats(taken, stream=sys.stderr).strip_dirs().sort_stats("tottime").print_stats(LINES)
