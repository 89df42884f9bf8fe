# SPDX-License-Identifier: Apache-2.0
"""What Spark or this format refuses: with which words, and nothing happens. Mostly without a job."""

from __future__ import annotations

import pytest

from tests.spark.modes.kit import Source, refusal

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


ERRORS = {
    "an unknown option names the nearest": ({"minPartition": "3"}, "did you mean minPartitions?"),
    "two selections": ({"ledgerId": "3"}, "more than one thing is selected"),
    "a bad number": ({"minPartitions": "many"}, "minPartitions='many'"),
    "a bad choice": ({"readMode": "hard"}, "readMode='hard'"),
    "malformed offsets": ({"startingOffsets": "{"}, "startingOffsets"),
    "a protected setting": ({"bookkeeper.password": "x"}, "use option ledgerPassword"),
    "quorums": ({"writeQuorumSize": "1"}, "ensembleSize ≥ writeQuorumSize ≥ ackQuorumSize"),
}


@pytest.mark.also_on("connect")
@pytest.mark.rule("E1")
@pytest.mark.parametrize("case", ERRORS)
def test_a_wrong_option_is_one_line_with_a_code_and_a_remedy(source: Source, case: str) -> None:
    options, remedy = ERRORS[case]
    told = refusal(lambda: source.load(**options).schema)  # Connect does not ask the server before
    (line,) = {line.strip() for line in told.splitlines() if "[BK_INVALID_ARGUMENT]" in line}
    assert remedy in line
    assert "(not applied)" in line


@pytest.mark.also_on("connect", always=True)
@pytest.mark.also_on("standalone")
@pytest.mark.rule("N4")
def test_a_bad_row_fails_its_task_and_publishes_nothing(source: Source) -> None:
    source.fill(2)
    null = source.rows(10).selectExpr("IF(value = 'row 7', NULL, value) AS value")
    assert "[BK_" in refusal(lambda: source.append(null))
    large = source.spark.range(1).selectExpr("repeat('x', 6000000) AS value")
    assert "BK_ENTRY_TOO_LARGE" in refusal(lambda: source.append(large))
    assert len(source.values()) == 2
