# SPDX-License-Identifier: Apache-2.0
"""The stories as a whole: every rule and every action of the specification has one, the README knows each word, and a
story that does not hold is noticed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scenarios import verbs
from tests.scenarios.story import parse, written
from tests.scenarios.world import StoryError

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.scenario"))
HEADS = {path.name: "\n".join(parse(path.read_text(encoding="utf-8")).head) for path in FILES}

ACTIONS = re.findall(
    r"\w+",
    """
ClientCreatesLedger ClientSendsAddEntryRequests BookieSendsAddConfirmedResponse BookieSendsAddFencedResponse
ClientReceivesAddConfirmedResponse ClientReceivesAddFencedResponse ClientChangesEnsemble RecoveryClientChangesEnsemble
ClientResendsPendingAddOp ClientClosesLedgerSuccess ClientClosesLedgerFail ClientStartsRecovery
BookieSendsFencingReadLacResponse ClientReceivesFencingReadLacResponse ClientSendsRecoveryReadRequests
BookieSendsReadResponse ClientReceivesRecoveryReadResponse ClientWritesBackEntry RecoveryClientClosesLedger
BookieRestartsWithDataLoss
""",
)
"""Of BookKeeperProtocol.tla, and of its limbo variant the one that it adds."""

STORY = """# rule: P2
# One entry.

ledger bookies=b1,b2,b3 write=3 ack=2
append x
deliver b1 b2
----
w confirms 0
w pending: nothing   lac=0
"""


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_of_the_specification_is_told(action: str) -> None:
    assert any(re.search(rf"\b{action}\b", head) for head in HEADS.values())


@pytest.mark.parametrize("rule", [*(f"MUST{n}" for n in range(1, 16)), *(f"P{n}" for n in range(1, 12))])
def test_every_rule_of_the_protocol_is_told(rule: str) -> None:
    assert any(re.search(rf"\b{rule}\b", head.splitlines()[0]) for head in HEADS.values())


def test_the_readme_explains_each_word_and_no_other() -> None:
    words = {name.removeprefix("do_") for name in vars(verbs) if name.startswith("do_")}
    table = (HERE / "README.md").read_text(encoding="utf-8").partition("\n## Words\n")[2]
    explained = re.findall(r"^\| `(\w+)", table, re.MULTILINE)
    assert sorted(explained) == sorted(words)
    assert len(words) <= 30, "a small language"


def test_a_story_that_holds_is_left_as_it_is() -> None:
    assert written(parse(STORY)) == STORY


def test_a_trace_that_differs_is_noticed() -> None:
    assert written(parse(STORY.replace("confirms 0", "confirms 1"))) == STORY


def test_stories_are_short() -> None:
    with pytest.raises(StoryError, match="at most 60"):
        written(parse(STORY + "\nshow b1\n----\n\n" * 20))
