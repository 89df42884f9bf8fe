# SPDX-License-Identifier: Apache-2.0
"""What the command makes of what was measured: ratios, turns, costs, tables, the page, the file of --resume, parts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import arguments, chosen
from benchmarks.groups.of_measurements import MeasurementGroup
from benchmarks.measurement import Measurement, Peer, measure
from benchmarks.report import page, tables
from benchmarks.report.figures import Figure, Run, side_by_side
from benchmarks.report.results import Results
from benchmarks.report.tables import Conditions
from benchmarks.running.processes import Processes, cost
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


def test_a_figure_can_want_both_a_value_and_a_ratio() -> None:
    both = Figure("x", "u", [10.0], wanted=9.0, wanted_ratio=2.0, peer="p", peer_values=[6.0])
    assert both.meets is False
    assert both.wish == "≥ 9 u, ≥ 2 ×"
    assert Figure("x", "u", [10.0], wanted_ratio=1.0).meets is False, "a peer that is missing is not met"


def test_the_memory_of_a_kind_is_that_of_its_processes() -> None:
    processes = Processes()
    with processes.born("sleepers"):
        sleeper = subprocess.Popen(["sleep", "60"])
    try:
        assert 0 < processes.resident_bytes("sleepers") < 1 << 30
        assert processes.resident_bytes("others") == 0
    finally:
        sleeper.kill()
        sleeper.wait()
    assert processes.resident_bytes("sleepers") == 0


def test_both_sides_warm_up_and_take_turns() -> None:
    order: list[str] = []

    def run(who: str) -> float:
        order.append(who)
        return float(len(order))

    assert side_by_side(2, lambda: run("ours"), lambda: run("peer")) == ([3.0, 5.0], [4.0, 6.0])
    assert order == ["ours", "peer"] * 3


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


def test_a_measurement_without_peers_is_one_figure_and_may_run_but_once() -> None:
    world = Turns()
    one = Measurement(("x",), "MB", world.side("ours", 3), (), (4,), less_is_better=True, once=True)
    (figure,) = measure(one, world, {"raw"}, 3)  # type: ignore[arg-type]  # a world of the test's own
    assert (world.order, figure.values, figure.meets, figure.peer) == (["ours"], [3.0], True, "")


def test_a_part_that_leaves_little_on_the_disk_needs_less_room_than_its_group() -> None:
    append = MeasurementGroup("append")
    assert append.needed_bytes(("append_many_ledgers",), 1.0) < append.needed_bytes(append.parts(()), 1.0) / 2


def test_what_a_gigabyte_costs_is_of_the_kinds_that_work_for_it() -> None:
    before, after = {"client": 1.0, "bookies": 5.0}, {"client": 2.0, "bookies": 8.0, "broker": 90.0}
    assert cost(before, after, ("client", "bookies", "ZooKeeper"), 2_000_000_000) == {"client": 0.5, "bookies": 1.5}
    assert cost(before, after, ("client",), 0) == {}


def test_a_process_is_counted_with_its_children() -> None:
    import subprocess

    processes = Processes()
    spin = "import time; end = time.monotonic() + 20; exec('while time.monotonic() < end: pass')"  # ends by itself
    busy = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"
    with processes.born("busy"):
        child = subprocess.Popen([sys.executable, "-m", "bk_cli.local.lifeline", sys.executable, "-c", busy], stdin=-1)
    try:
        before = processes.spent_s()["busy"]
        while processes.spent_s()["busy"] < before + 0.2:
            assert child.poll() is None
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait()


def record(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "values": [3.0],
        "peer": "kafka",
        "peer_values": [1.5],
        "wanted_ratio": 2.5,
        "note": "ours syncs",
    }
    return Figure("append", "MB/s", **(given | changes)).as_record()


def test_a_table_says_ours_once_and_each_peer_with_what_is_wanted() -> None:
    both = [record(peer_note="no sync", cpu_s_per_gb={"client": 1.0, "bookies": 2.0}), record(peer="raw")]
    assert list(tables.rows(both)) == [
        ("append", "MB/s", "3.000", "3.000", "kafka", "1.500", "2.00", "2.00", "≥ 2.5 ×", "✗"),
        ("", "", "", "", "raw", "1.500", "2.00", "2.00", "≥ 2.5 ×", "✗"),
    ]
    assert [row[0] for row in tables.rows([*both, record(values=[4.0])])] == ["append", "", "append"]
    assert next(tables.cost_rows(both)) == ("append", "client 1.000 + bookies 2.000 = 3.000", "kafka", "")
    assert tables.notes(both) == ["append: ours syncs", "append beside kafka: no sync"]
    lines = tables.markdown_table(tables.COLUMNS, tables.rows(both))
    assert {line.count("|") for line in lines} == {len(tables.COLUMNS) + 1}


def test_the_object_of_a_line_has_the_names_of_every_group() -> None:
    told = record(values=[4.0, 2.0, 3.0], cpu_s_per_gb={"client": 1.0})
    assert {"name", "lane", "value", "unit", "runs", "peer", "peer_value", "ratio", "cpu_s_per_gb"} <= told.keys()
    assert (told["value"], told["worst"], told["ratio"], told["meets"]) == (3.0, 2.0, 2.0, False)


def test_only_what_is_between_the_markers_of_the_page_is_replaced() -> None:
    text = page.replaced("# Performance\n\nBy hand.\n", "append", ["first"])
    text = page.replaced(text + "\nBy hand, too.\n", "read", ["of reads"])
    again = page.replaced(text, "append", [r"second \1"])
    assert again == text.replace("first", r"second \1")
    assert "By hand.\n" in again
    assert again.index("By hand, too.") < again.index("<!-- bench: read -->\n\nof reads\n\n<!-- /bench: read -->")


def test_a_section_is_of_a_group_a_lane_and_a_disk(tmp_path: Path) -> None:
    assert page.section_name("append", Conditions()) == "append"
    assert page.section_name("append", Conditions(lane="grpc", slow_sync_ms=5)) == "append-grpc-slow-sync"


def test_the_page_gets_a_section_of_each_group_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "append", "--resume", "somewhere", "--page"])
    path = tmp_path / "performance.md"
    page.write({"append": [record(cpu_s_per_gb={"client": 1.0})], "read": []}, Conditions(), tmp_path, path)
    text = path.read_text(encoding="utf-8")
    assert "`scripts/bench append --page`" in text
    assert "| append | MB/s |" in text
    assert "bench: read" not in text


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


def test_parts_are_of_the_groups_and_peers_that_are_asked_for() -> None:
    assert chosen(["append", "read"], "read_1kb, append_single", ["raw"]) == {
        "append": ["append_single"],
        "read": ["read_1kb"],
    }
    assert chosen(["append"], "append_1*,hmac*", ["raw"]) == {"append": ["append_100b", "append_1kb", "hmac_100b"]}
    everything = chosen([], None, ["raw", "apache", "kafka"])
    assert not {"interop", "heal"} & everything.keys(), "they are named"
    assert {"append", "read", "recovery", "spark", "storage"} <= everything.keys()
    assert chosen(["heal"], None, ["raw"]) == {"heal": ["lost", "drained"]}
    with pytest.raises(InvalidArgumentError, match=r"nonsense.*append_100b"):
        chosen(["append"], "nonsense", ["raw"])
    with pytest.raises(InvalidArgumentError, match="needs Apache's bookies"):
        chosen(["interop"], None, ["raw"])


def test_peers_are_named_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "append", "--peer", "apache", "--peer", "raw"])
    assert arguments().peers == {"apache", "raw"}
    monkeypatch.setattr(sys, "argv", ["bench"])
    assert arguments().peers == {"raw"}
