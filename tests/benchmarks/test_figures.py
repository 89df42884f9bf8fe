# SPDX-License-Identifier: Apache-2.0
"""What the command makes of what was measured: ratios, turns, costs, tables, the page, the file of --resume, parts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measurement import Measurement, Peer, measure
from benchmarks.report import page
from benchmarks.report.figures import Figure, Run
from benchmarks.report.results import Results
from benchmarks.report.tables import Conditions
from bk_core.errors import InvalidArgumentError


def beside(ours: list[float], theirs: list[float], wanted: float = 2.0, *, less: bool = False) -> Figure:
    return Figure("x", "u", ours, wanted_ratio=wanted, less_is_better=less, peer="kafka", peer_values=theirs)


def test_a_ratio_is_of_the_medians_and_the_worst_of_the_runs_that_took_turns() -> None:
    figure = beside([300.0, 500.0, 400.0], [100.0, 250.0, 200.0])
    assert (figure.ratio, figure.worst_ratio, figure.meets) == (2.0, 2.0, True)
    assert beside([300.0, 500.0, 400.0], [160.0, 250.0, 200.0]).worst_ratio == 300 / 160
    assert figure.wish == "≥ 2 ×"
    slower = beside([3.1], [1.0], 1 / 3, less=True)
    assert (slower.meets, slower.wish) == (False, "≥ 0.333 ×")
    assert beside([2.9], [1.0], 1 / 3, less=True).meets is True


class Turns:
    """A world where each run is noted, and every process spends a second in it."""

    lane, profile = "direct", None

    def __init__(self) -> None:
        self.order: list[str] = []
        self.processes = self
        self.measuring = nullcontext

    def spent_s(self) -> dict[str, float]:
        return dict.fromkeys(("client", "bookies", "broker"), float(len(self.order)))

    def side(self, who: str, *values: float) -> Callable[[Any], Callable[[], Run]]:
        def run() -> Run:
            self.order.append(who)
            return Run(values, 500_000_000)

        return lambda world: run


def test_all_sides_take_turns_and_each_name_has_a_figure_beside_each_peer() -> None:
    world = Turns()
    peers = (
        Peer("kafka", world.side("kafka", 8, 40), (2, None), note="no sync"),
        Peer("raw", world.side("raw", 1, 2), (None, None), "with digests"),
        Peer("apache", world.side("apache", 1, 2), (1, 1)),
    )
    one = Measurement(("x_p50", "x_p99"), "ms", world.side("ours", 2, 10), peers, per=2, less_is_better=True)
    found = measure(one, world, {"kafka", "raw"}, 2)  # type: ignore[arg-type]  # a world of the test's own
    assert world.order == ["ours", "kafka", "raw"] * 3, (
        "one round to warm up, and the peer that was not asked for rests"
    )
    assert [(figure.name, figure.peer, figure.ratio, figure.meets) for figure in found] == [
        ("x_p50", "kafka", 4.0, True),
        ("x_p50", "raw with digests", 0.5, None),
        ("x_p99", "kafka", 4.0, None),
        ("x_p99", "raw with digests", 0.2, None),
    ]
    assert found[0].values == [1.0, 1.0]
    assert found[0].cpu_s_per_gb == {"client": 2.0, "bookies": 2.0}, "a run of half a gigabyte; the broker is not ours"
    assert found[0].peer_cpu_s_per_gb == {"client": 2.0, "broker": 2.0}


def test_only_what_is_between_the_markers_of_the_page_is_replaced() -> None:
    text = page.replaced("# Performance\n\nBy hand.\n", "append", ["first"])
    text = page.replaced(text + "\nBy hand, too.\n", "read", ["of reads"])
    again = page.replaced(text, "append", [r"second \1"])
    assert again == text.replace("first", r"second \1")
    assert "By hand.\n" in again
    assert again.index("By hand, too.") < again.index("<!-- bench: read -->\n\nof reads\n\n<!-- /bench: read -->")


def test_what_a_file_has_is_not_measured_again(tmp_path: Path) -> None:
    path, figure = tmp_path / "figures", Figure("x", "u", [1.0])
    results = Results(Conditions(), path)
    results.keep("append", "x", {"raw"}, [figure])
    results.keep("append", "x", {"raw", "kafka"}, [figure, figure])
    results = Results(Conditions(), path)
    assert results.has("append", "x", {"kafka"})
    assert not results.has("append", "x", {"apache"})
    assert not results.has("read", "x", {"raw"})
    assert results.of("append", ["x"]) == [figure.as_record()] * 2, "the later run's"
    with pytest.raises(InvalidArgumentError, match="measured otherwise"):
        Results(Conditions(slow_sync_ms=5), path)
    path.write_text("# Something else\n", encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match="no file of --resume"):
        Results(Conditions(), path)
