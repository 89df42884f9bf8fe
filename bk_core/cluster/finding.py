# SPDX-License-Identifier: Apache-2.0
"""Has the type of a finding of an examination, in words. The verdict on a cluster, ``bk doctor``, the ``explain``
commands and the examination of Spark checkpoints use this type, and print it in different forms."""

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
    """One finding. ``what`` is a sentence. ``remedy`` is a command, or instructions followed by a command.

    ``where`` names the examined object, such as a bookie, a check, or a position in a file. ``short`` is ``what`` in a
    form that can be a part of a longer sentence. ``error`` is the class of the error that the finding stands for, and
    decides a command's exit code."""

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
