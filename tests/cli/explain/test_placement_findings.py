# SPDX-License-Identifier: Apache-2.0
"""``bk placement explain``: who is chosen, who is not, and why. Tables of a pure function."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import pytest

from bk_cli import main
from bk_cli.explain.placement_findings import PlacementSeen, explain_placement
from bk_core.cluster.finding import Finding, Weight
from bk_core.metadata import open_store
from bk_core.model import BookieServiceInfo, DigestType, Endpoint, Fragment, LedgerMetadata
from bk_core.placement import FLAT, Landscape

RACKS = {"a": "/r1", "b": "/r1", "c": "/r1", "d": "/r2"}


def explained(states: dict[str, str], landscape: Landscape = FLAT, **more: Any) -> list[Finding]:
    sizes = (3, 3, more.pop("ack_quorum_size", 2))
    return explain_placement(PlacementSeen(states, landscape, *sizes, **more), random.Random(1))


def writable(names: str) -> dict[str, str]:
    return dict.fromkeys(names, "writable")


@pytest.mark.parametrize(
    ("found", "weight", "words"),
    [
        (explained(writable("ab")), Weight.PROBLEM, "cannot be made: 3 writable bookies are needed and 2 can be used"),
        (explained(writable("abc")), Weight.NOTE, "there is no spare: 3 bookies are writable"),
        (explained(writable("abcd") | {"e": "read-only"}), Weight.NOTE, "left out: e take no new entries"),
        (explained(writable("abcd") | {"e": "away"}), Weight.NOTE, "left out: e have a cookie and are not registered"),
        (explained(writable("abcd"), quarantined=("b",)), Weight.NOTE, "chosen last: b failed lately"),
        (
            explained(writable("abc"), quarantined=("b",)),
            Weight.NOTE,
            "b failed lately and would be taken all the same",
        ),
        (explained(writable("abcd")), Weight.FINE, "free space does not count"),
        (
            explained(writable("abc"), Landscape(dict.fromkeys("abc", "/r1"), enforced=True)),
            Weight.PROBLEM,
            "write sets of 3 bookies in 2 racks are needed and cannot be formed",
        ),
        (
            explained(writable("abcd"), Landscape(weights={"a": 100, "b": 10, "c": 10})),
            Weight.FINE,
            "a is chosen 3.00 times as often as a bookie of median free space, no more than 3 times count",
        ),
        (
            explained(writable("abcd"), Landscape(weights={"a": 100, "b": 10, "c": 10})),
            Weight.NOTE,
            "d did not say how much space they have",
        ),
        (explained(writable("abcd")), Weight.FINE, "a confirmed entry outlives the loss of 1 bookie"),
        (explained(writable("abcd")), Weight.FINE, "go on at once without 1 bookie of a write set"),
        (explained(writable("abcd"), ack_quorum_size=3), Weight.FINE, "outlives the loss of any 2 bookies"),
        (explained(writable("abcd"), ack_quorum_size=3), Weight.NOTE, "there is no slack: each bookie that is silent"),
        (explained(writable("abcd"), ack_quorum_size=1), Weight.NOTE, "may be on one bookie only, and is lost with it"),
    ],
)
def test_who_is_chosen_and_who_is_left_out(found: list[Finding], weight: Weight, words: str) -> None:
    [about] = [each for each in found if words in each.what]
    assert about.weight is weight
    assert found == sorted(found, key=lambda each: ["problem", "note", "fine"].index(each.weight.value))
    assert all(each.remedy for each in found if each.weight is Weight.PROBLEM)


def test_a_bookie_that_is_left_out_comes_with_what_to_do() -> None:
    [away] = [each for each in explained(writable("abcd") | {"e": "away"}) if each.what.startswith("left out: e ")]
    assert away.remedy == "start them, or remove their cookies if they are gone for good"


def a_ledger(*fragments: tuple[int, str]) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
        fragments=tuple(Fragment(first, tuple(names)) for first, names in fragments),
        digest_type=DigestType.CRC32C,
    )


def test_ensembles_of_a_ledger_are_told_with_racks_and_what_became_of_their_bookies() -> None:
    states = writable("bcd") | {"a": "away"}
    found = explained(states, Landscape(RACKS), ledger_id=7, record=a_ledger((0, "abc"), (10, "dbc")))
    texts = {each.what: each for each in found}
    [bad] = [each for each in found if each.what.startswith("ledger 7 has from entry 0: a (away, /r1)")]
    assert (bad.weight, bad.remedy) == (Weight.NOTE, "")
    assert "a write set is in 1 racks, wanted 2" in bad.what
    assert texts["ledger 7 has from entry 10: d (writable, /r2), b (writable, /r1), c (writable, /r1)"].weight is (
        Weight.FINE
    )
    assert any("a fragment begins where a bookie was replaced" in each for each in texts)
    alone = explained(writable("abc"), Landscape(RACKS), ledger_id=7, record=a_ledger((0, "abc")))
    assert any("all that are writable are in /r1" in each.remedy for each in alone)


def test_command_takes_sizes_or_a_ledger(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    store = open_store(uri)
    store.initialize_cluster()
    for name in "abcd":
        endpoint = Endpoint("direct", name, 1, "direct")
        store.register_bookie(BookieServiceInfo(name, (endpoint,), {}), read_only=name == "d")
    store.create_ledger(a_ledger((0, "abd")), 7)
    racks = tmp_path / "racks"
    racks.write_text("a /r1\nb /r2\nc /r2\n")
    command = ["placement", "explain", "--json", "--metadata-service-uri", uri]
    assert main.run([*command, "--ledger", "7", "--rack-file", str(racks)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ensembleSize"], found["bookies"]["d"], found["racks"]["b"]) == (3, "read-only", "/r2")
    assert any("ledger 7 has from entry 0" in each["what"] for each in found["findings"])
    assert main.run([*command, "--ensemble-size", "4", "--write-quorum-size", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["weight"] == "problem"
    assert main.run([*command, "--ledger", "8"]) == 3
    store.close()
