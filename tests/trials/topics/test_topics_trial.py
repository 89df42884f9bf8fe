# SPDX-License-Identifier: Apache-2.0
"""A few rounds of the trial of topics; ``scripts/trial topics`` runs ten minutes and more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trials.topics.place import Place
from tests.trials.topics.rounds import Round

ROUND_S = 5.0
ROUNDS = {"partition added": "partitions added", "broker killed": "brokers killed", "query killed": "queries killed"}
"""Maps what happens in each round to the count that it increases."""


@pytest.mark.interop
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_every_message_is_seen_once_whatever_happens_to_its_topic(tmp_path: Path) -> None:
    with Place(tmp_path) as place:
        for number, (what, counted) in enumerate(ROUNDS.items()):
            figures = Round(place, 1, number, ROUND_S).run(what)
            assert figures.problems == []
            assert figures.counts[counted] == 1, "without this count the round proves nothing"
            assert figures.counts["messages"] > 0
        assert place.finish() == []
