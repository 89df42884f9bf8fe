# SPDX-License-Identifier: Apache-2.0
"""Prints the findings of the ``explain`` commands."""

from __future__ import annotations

from collections.abc import Sequence

from bk_cli import output
from bk_core.cluster.finding import Finding, Weight
from bk_core.model import ENTRY_ID_MAX


def print_findings(findings: Sequence[Finding]) -> None:
    signs = {Weight.FINE: "ok", Weight.NOTE: "note", Weight.PROBLEM: "PROBLEM"}
    for each in findings:
        output.print_line(f"{signs[each.weight]}: {each.what}")
        if each.remedy:
            output.print_line(f"    → {each.remedy}")


def as_objects(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [{"weight": each.weight.value, "what": each.what, "remedy": each.remedy} for each in findings]


SPANS_MAX = 8
"""The maximum number of ranges in a sentence."""


def spans(ranges: Sequence[tuple[int, int]]) -> str:
    """Return ascending ranges in words, with adjacent ranges joined: ``5, 7 to 9``."""
    joined: list[tuple[int, int]] = []
    for low, high in ranges:
        if joined and joined[-1][1] + 1 >= low:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    ends = ["" if low == high else " on" if high >= ENTRY_ID_MAX else f" to {high}" for low, high in joined]
    shown = [f"{low}{end}" for (low, _), end in zip(joined[:SPANS_MAX], ends, strict=False)]
    return ", ".join(shown) + (" …" if len(joined) > SPANS_MAX else "")
