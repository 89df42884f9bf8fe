# SPDX-License-Identifier: Apache-2.0
"""Plots of a page: ratios to each peer, and what a gigabyte costs each process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

ROW_INCHES, WIDTH_INCHES, MARGIN_INCHES = 0.28, 9.0, 1.1
SETTINGS: dict[RcKeyType, str | int] = {"svg.fonttype": "none", "svg.hashsalt": "bench", "font.size": 9,
                                        "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip
"""Text stays text, and the same figures give the same file."""


def ratios(records: Sequence[Record], path: Path) -> bool:
    """A line for each figure and peer; a tick where it is wanted to be. Returns whether there was anything to draw."""
    beside = [record for record in records if record["ratio"] is not None]
    if not beside:
        return False
    figure, axes = _axes(len(beside))
    peers = list(dict.fromkeys(record["peer"].partition(" ")[0] for record in beside))
    for row, record in enumerate(beside):
        colour = f"C{peers.index(record['peer'].partition(' ')[0])}"
        axes.plot([1, record["ratio"]], [row, row], color=colour, linewidth=4, solid_capstyle="butt", alpha=0.7)
        if record.get("wanted_ratio") is not None:
            axes.plot([record["wanted_ratio"]], [row], marker="|", markersize=11, color="black")
    axes.set_yticks(range(len(beside)), [f"{record['name']} / {record['peer']}" for record in beside])
    axes.set_xscale("log")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xlabel("how many times the peer's (above 1: ours is better); ticks: wanted")
    _save(figure, path)
    return True


def costs(records: Sequence[Record], path: Path) -> bool:
    """A bar for each side of each figure, of its processes. Returns whether there was anything to draw."""
    bars: dict[str, dict[str, float]] = {}
    for record in records:
        bars[f"{record['name']} / ours"] = record.get("cpu_s_per_gb", {})
        bars[f"{record['name']} / {record['peer']}"] = record.get("peer_cpu_s_per_gb", {})
    bars = {name: cost for name, cost in bars.items() if cost}
    if not bars:
        return False
    figure, axes = _axes(len(bars))
    kinds = list(dict.fromkeys(kind for cost in bars.values() for kind in cost))
    left = [0.0] * len(bars)
    for number, kind in enumerate(kinds):
        widths = [cost.get(kind, 0.0) for cost in bars.values()]
        axes.barh(range(len(bars)), widths, left=left, height=0.7, color=f"C{number}", label=kind)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(bars)), list(bars))
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xlabel("seconds of all processors for a gigabyte; linear up to 10, logarithmic beyond")
    axes.legend(frameon=False, loc="best")
    _save(figure, path)
    return True


def _axes(rows: int) -> tuple[Figure, Axes]:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams.update(SETTINGS)
    figure, axes = pyplot.subplots(figsize=(WIDTH_INCHES, MARGIN_INCHES + ROW_INCHES * rows), layout="constrained")
    axes.invert_yaxis()
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
