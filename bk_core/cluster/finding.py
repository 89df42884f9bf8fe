# SPDX-License-Identifier: Apache-2.0
"""A finding of an examination, in words. The verdict on a cluster, ``bk doctor``, the ``explain`` commands and the
examination of Spark checkpoints all use this type. Each of them prints findings in its own way."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from bk_core.errors import BookKeeperError


class Weight(enum.Enum):
    FINE = "fine"
    NOTE = "note"  # worth knowing; nothing is blocked
    PROBLEM = "problem"  # something is broken, or entries or service are at risk


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. ``what`` is a sentence. ``remedy`` is a command, or words that say what to do first, followed by a
    command.
    ``where`` names what was examined: a bookie, a check, a place in a file. ``short`` is ``what`` as a part of a longer
    sentence. ``error`` is the class of the error that it stands for, which decides a command's exit code."""

    weight: Weight
    what: str
    remedy: str = ""
    where: str = ""
    short: str = ""
    error: type[BookKeeperError] | None = None


def fine(what: str, where: str = "") -> Finding:
    return Finding(Weight.FINE, what, where=where)


def note(what: str, remedy: str = "", where: str = "") -> Finding:
    return Finding(Weight.NOTE, what, remedy, where)


def problem(what: str, remedy: str = "", where: str = "") -> Finding:
    return Finding(Weight.PROBLEM, what, remedy, where)
