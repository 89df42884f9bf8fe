# SPDX-License-Identifier: Apache-2.0
"""The group ``growth``: its parts, the fit of its model on given points, and what the model says of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import page
from benchmarks.__main__ import GROWTH, chosen, records_of
from benchmarks.figures import Figure
from benchmarks.groups.networks import MEASUREMENTS, POINTS
from benchmarks.networks import model
from benchmarks.networks.clients import Clients
from benchmarks.networks.model import CHECKED, CYCLE, FITTED, Model, Point, not_negative
from benchmarks.processes import BOOKIES, CLIENT
from benchmarks.results import Results
from benchmarks.tables import Conditions

CLIENT_COSTS = {
    "byte": 3e-10, "byte sent": 2e-10, "entry": 8e-8, "append": 3e-6, "frame of many": 4e-5, "frame sent": 2e-5,
    "request": 3e-5, "call": 1.5e-5, "byte read": 3e-10, "entry read": 1e-8,
}  # fmt: skip
BOOKIE_COSTS = {
    "byte": 4e-10, "entry": 5e-9, "frame": 1.3e-5, "request": 2.5e-5, "call": 1e-5, "group": 4e-4, "byte read": 5e-10,
    "entry read": 2e-9,
}  # fmt: skip
SAID = {CLIENT: CLIENT_COSTS, BOOKIES: BOOKIE_COSTS}


def counts_of(number: int, *, reads: bool) -> dict[str, float]:
    """Of a point; each thing goes its own way from point to point."""
    size, rows = (100, 1_000, 300)[number % 3], 10 ** (number % 5)
    counts: dict[str, float] = {"bytes": 1e9, "entries": 1e9 / size, "ledgers": 1e4, "clients": 100}
    counts |= {"client_memory": 2e8, "bookies_memory": 5e7}
    if reads:
        return counts
    quorum, made = 1 + number % 3, 1e9 / size / rows
    return counts | {
        "write_quorum": quorum, "frame_bytes": 1e9 * quorum * (1 + 20 / size), "disk_bytes": 1.1e9 * quorum,
        "appends": made * (1 + number % 2 * 7), "made": made, "frames": made * quorum * (1 + number % 4 / 8),
        "wide": made * (rows > 10), "adds": made / (1 + number % 4), "hints": made * (number % 2),
        "calls": made * (0.5 + number % 6), "groups": made / (1 + number % 7 * 20),
    }  # fmt: skip


def record_of(name: str, number: int, *, more: float = 1.0) -> dict[str, Any]:
    counts = counts_of(number, reads=name.startswith("read_"))
    point = Point(name, counts, {})
    seconds = {
        side: more * sum(SAID[side][thing] * count(counts) for thing, count in point.parts[side].items())
        for side in (CLIENT, BOOKIES)
    }
    return Figure(name, "MB/s", [1.0], cpu_s_per_gb=seconds, counts=counts).as_record()


def records(more: float = 1.0) -> list[dict[str, Any]]:
    """All points; those that are checked cost ``more`` than the constants say."""
    fitted = [record_of(name, number) for number, name in enumerate(FITTED)]
    return fitted + [record_of(name, number + 3, more=more) for number, name in enumerate(CHECKED)]


def test_the_parts_are_there_and_the_model_knows_its_points() -> None:
    parts = chosen([GROWTH], None, ["raw"])[GROWTH]
    assert {*FITTED, *CHECKED, CYCLE} == {*parts} - {
        f"{link}_{what}" for link in ("lan", "far", "lossy") for what in ("append", "single", "read")
    }
    assert {point.ledgers for point in POINTS} >= {1, 10, 1_000, 10_000}
    assert {point.clients for point in POINTS} >= {1, 10, 100}
    assert {point.bookies for point in POINTS} >= {3, 5, 9}
    networked = [one for one in MEASUREMENTS if one.peers]
    assert len(networked) == 9
    assert {peer.name for one in networked for peer in one.peers} == {"apache"}


def test_a_fit_finds_the_constants_and_says_nothing_below_zero() -> None:
    made = Model(Point.of(record) for record in records() if record["name"] in FITTED)
    for record in records():
        for side in (CLIENT, BOOKIES):
            assert abs(made.error(Point.of(record), side)) < 1, (record["name"], side)
    assert made.constants[CLIENT]["byte read"] == pytest.approx(3e-10)
    assert not_negative(np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.array([3.0, 2.0, 1.0])) == pytest.approx(
        [2.0, 0.0]
    )


def test_the_error_is_of_points_that_were_not_fitted_and_has_a_bound() -> None:
    *memory, typical, worst = model.figures(records(more=1.1))
    assert {figure.name: figure.median for figure in memory} == {
        "ledger_memory_client": 20.0,
        "ledger_memory_bookies": 5.0,
        "client_memory_client": 2_000.0,
        "client_memory_bookies": 500.0,
    }
    assert (typical.name, worst.name) == ("model_error", "model_error_worst")
    assert typical.median == pytest.approx(100 - 100 / 1.1, abs=1)
    assert worst.meets is True
    assert model.figures(records(more=2.0))[-1].meets is False, "the model says half of what was measured"


def test_without_a_point_that_it_needs_there_is_no_model(tmp_path: Path) -> None:
    lacking = [record for record in records() if record["name"] != "qw_1"]
    assert not [figure for figure in model.figures(lacking) if figure.name.startswith("model")]
    assert model.tables(lacking) == []
    results = Results(Conditions(), tmp_path / "figures")
    for record in records():
        measured = {name: record[name] for name in ("cpu_s_per_gb", "counts")}
        results.keep(GROWTH, record["name"], {"raw"}, [Figure(record["name"], "MB/s", [1.0], **measured)])
    told = records_of(GROWTH, [*FITTED, *CHECKED], Results(Conditions(), tmp_path / "figures"))
    assert [record["name"] for record in told[-2:]] == ["model_error", "model_error_worst"], "from the file of --resume"


def test_a_cluster_has_the_bookies_that_its_clients_keep_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "LOADS", {"read_1kb": "reads"})
    points = model.points_of(records())
    made = model.fitted(points)
    assert made is not None
    made.constants = {side: {"byte read": cost, "entry read": 0.0} for side, cost in ((CLIENT, 1e-9), (BOOKIES, 4e-9))}
    slow, _, fast = model.needs(made, points)
    assert slow[1:] == ("1", "118", "network", "118", "network", "3", "10", "100", "")
    assert fast[1:] == ("25", "1,000", "processor", "250", "processor", "4", "40", "400", "")
    lines = page.section(GROWTH, records())
    assert {"### The constants", "### The model beside the points", "### Bytes for a byte of payload"} <= {*lines}
    assert [line for line in lines if line.startswith("### What a cluster needs")]


def test_every_command_that_a_point_sends_is_one_of_the_clients() -> None:
    for command in ("connect", "open", "append", "single", "close", "read", "cycle", "counted"):
        assert callable(getattr(Clients, command))
