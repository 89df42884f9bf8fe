# SPDX-License-Identifier: Apache-2.0
"""docs/protocol.md names every event, effect, request and state of the code, and its lists are made from the code.

The text between ``<!-- list: name -->`` and ``<!-- end -->`` is made here from docstrings, the machines' MOVES and the
tables of the sweeps. ``pytest --rewrite tests/repo/test_protocol_doc.py`` rewrites it.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bk_core.logs.machines
import bk_core.protocol
import bk_core.protocol.ends
from bk_core import quorum
from bk_core.logs.machines import ask, leadership, leadership_events
from bk_core.protocol import events
from bk_core.protocol.delivery import LaneState
from bk_core.protocol.ends.follower import FollowEffect, FollowEvent
from bk_core.protocol.ends.quorum_end import EndEffect, EndEvent, EndPhase
from bk_core.protocol.reader import ReadEffect, ReadEvent
from bk_core.protocol.recovery import Phase, RecoveryEffect, RecoveryEvent
from bk_core.protocol.writer import WriterEffect, WriterEvent, WriterState
from bookie_server.machine import events as machine_events
from tests.bookie_server.machine import test_transitions as bookie_sweep
from tests.kit.transitions import IMPOSSIBLE, members
from tests.logs import test_sequences as sequence_sweep
from tests.protocol import test_transitions_quorum_end as end_sweep
from tests.protocol import test_transitions_reader as reader_sweep
from tests.protocol import test_transitions_recovery as recovery_sweep
from tests.protocol import test_transitions_writer as writer_sweep

DOC = Path(__file__).parents[2] / "docs" / "protocol.md"
PROSE_CHARACTERS_MAX = 28_000
COLUMNS = 100
BLOCK = re.compile(r"(?<=<!-- list: )([a-z ]+)( -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
SHAPES = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 2, 2), (5, 3, 2), (5, 2, 2), (5, 3, 3), (6, 3, 2), (6, 3, 3), (7, 3, 3)]


def dataclasses_of(module: ModuleType) -> list[type]:
    """Return the dataclasses of a module in the order of the file, without imported ones."""
    own = [cls for cls in vars(module).values() if isinstance(cls, type) and cls.__module__ == module.__name__]
    return [cls for cls in own if is_dataclass(cls) or issubclass(cls, tuple)]


EVENTS = members(
    *members(WriterEvent, RecoveryEvent, ReadEvent, FollowEvent, EndEvent, machine_events.Event),
    *members(leadership_events.LeadershipEvent),
)
EFFECTS = members(
    *members(WriterEffect, RecoveryEffect, ReadEffect, FollowEffect, EndEffect, machine_events.Effect),
    *members(leadership_events.LeadershipEffect),
)
REQUESTS = members(*members(ask.Request), *members(ask.OfOneLog))


def kind_of(cls: type) -> str:
    """Return the kind of a class. A ``part`` is a part of an event, an effect, a request or an answer."""
    assert not (cls in EVENTS and cls in EFFECTS)
    if cls in REQUESTS:
        return "request"
    return "event" if cls in EVENTS else "effect" if cls in EFFECTS else "part"


def meaning_of(cls: type) -> str:
    """Return the first paragraph of a class's docstring, on one line."""
    text = inspect.cleandoc(cls.__doc__ or "")
    assert text, f"{cls.__name__} needs a docstring"
    assert not text.startswith(f"{cls.__name__}("), f"{cls.__name__} needs a docstring"
    first = re.sub(r"\s+", " ", text.split("\n\n")[0]).replace("``", "`")
    return re.sub(r":(?:func|class|meth):`\.*(.*?)`", lambda found: found[1].rpartition(".")[2], first)


def item(text: str) -> str:
    """Return an item of a list, in lines that fit the page."""
    return textwrap.fill(f"- {text}", COLUMNS, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def words_list(module: ModuleType) -> list[str]:
    rows = sorted(dataclasses_of(module), key=lambda cls: ("event", "effect", "request", "part").index(kind_of(cls)))
    return [item(f"{kind_of(cls)} `{cls.__name__}`: {meaning_of(cls)}") for cls in rows]


def sweep_list(table: Mapping[tuple[str, str], str], order: Iterable[str]) -> list[str]:
    """Return one item for each state: which event may lead where, and which cannot happen. Events that lead nowhere are
    left out."""
    out = []
    for state in order:
        leads: dict[str, list[str]] = {}
        never: list[str] = []
        for (before, event), after in table.items():
            names = [name for name in after.split() if name not in (state, IMPOSSIBLE)]
            if before == state and names:
                leads.setdefault(", ".join(names), []).append(f"`{event}`")
            if before == state and IMPOSSIBLE in after.split():
                never.append(f"`{event}`" + (" unasked" if after != IMPOSSIBLE else ""))
        where = "; ".join(f"{', '.join(names)} → {after}" for after, names in leads.items())
        cannot = f". Cannot happen: {', '.join(never)}" if never else ""
        out.append(item(f"in `{state}`: {where or 'nothing leads out'}{cannot}."))
    return out


def moves_list(moves: Mapping[Any, Iterable[Any]]) -> list[str]:
    return [
        item(f"`{state.name}` → {', '.join(target.name for target in targets) or 'nowhere'}")
        for state, targets in moves.items()
    ]


def follows_list(table: Mapping[str, str]) -> list[str]:
    """Return for each request what the sequence asks next, or how it ends."""
    out = []
    for name, following in table.items():
        comes = (each if each in ("done", "fails") else f"`{each}`" for each in following.split())
        out.append(item(f"`{name}` → {', '.join(comes)}"))
    return out


def quorum_table() -> list[str]:
    out = ["| E/Qw/Qa | negatives | fewest answers that may cover | most that may not |", "|---|---|---|---|"]
    for e, qw, qa in SHAPES:
        sizes: dict[bool, list[int]] = {True: [], False: []}
        for bits in range(1 << e):
            known = [index for index in range(e) if bits >> index & 1]
            sizes[quorum.covers(known, e, qw, qa)].append(len(known))
        out.append(f"| {e}/{qw}/{qa} | {quorum.negatives_needed(qw, qa)} | {min(sizes[True])} | {max(sizes[False])} |")
    return out


LISTS: dict[str, Callable[[], list[str]]] = {
    "quorums": quorum_table,
    "client words": lambda: words_list(events),
    "bookie words": lambda: words_list(machine_events),
    "leadership words": lambda: words_list(leadership_events),
    "sequence words": lambda: words_list(ask),
    "writer moves": lambda: sweep_list(writer_sweep.TABLE, WriterState.__members__),
    "recovery moves": lambda: sweep_list(recovery_sweep.TABLE, Phase.__members__),
    "reader moves": lambda: sweep_list(reader_sweep.READ_TABLE, reader_sweep.READ_STATES),
    "follower moves": lambda: sweep_list(reader_sweep.TABLE, reader_sweep.FOLLOW_STATES),
    "quorum end moves": lambda: sweep_list(end_sweep.TABLE, EndPhase.__members__),
    "bookie moves": lambda: sweep_list(bookie_sweep.TABLE, bookie_sweep.STATES),
    "leadership moves": lambda: moves_list(leadership.MOVES),
    "change steps": lambda: follows_list(sequence_sweep.CHANGE),
    "vacuum steps": lambda: follows_list(sequence_sweep.VACUUM),
    "deletion steps": lambda: follows_list(sequence_sweep.DELETION),
    "compaction steps": lambda: follows_list(sequence_sweep.COMPACTION),
}


def test_lists_of_the_protocol_page_are_the_codes_own(request: pytest.FixtureRequest) -> None:
    text = DOC.read_text(encoding="utf-8")
    assert {found[1] for found in BLOCK.finditer(text)} == set(LISTS)
    wanted = BLOCK.sub(lambda found: found[1] + found[2] + "\n".join(["", *LISTS[found[1]](), "", ""]), text)
    if request.config.getoption("--rewrite"):
        DOC.write_text(wanted, encoding="utf-8")
        return
    assert text == wanted, "pytest --rewrite tests/repo/test_protocol_doc.py writes the lists anew; read the diff"


def enums_of(package: ModuleType) -> list[type[enum.Enum]]:
    found: dict[str, type[enum.Enum]] = {}
    for each in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        module = importlib.import_module(each.name)
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, enum.Enum) and cls.__module__ == module.__name__:
                found[f"{cls.__module__}.{cls.__name__}"] = cls
    return list(found.values())


STATES = [*enums_of(bk_core.protocol), *enums_of(bk_core.protocol.ends), *enums_of(bk_core.logs.machines)]
SECTIONS = {
    WriterState: "Writer",
    LaneState: "Lane",
    Phase: "Recovery",
    EndPhase: "Quorum end",
    leadership.State: "Leadership",
}


def section(title: str) -> str:
    found = re.search(
        rf"^### \d+\.\d+ {title}\n(.*?)(?=^##)", DOC.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert found, f"no section {title}"
    return found[1]


def states_of(text: str) -> list[str]:
    """Return the names in the lists of states."""
    lists = re.findall(r"^States:\n\n((?:[- ] .*\n)+)", text, re.MULTILINE)
    return [name for each in lists for name in re.findall(r"^- `(\w+)`:", each, re.MULTILINE)]


def test_every_enum_of_states_has_its_section() -> None:
    assert set(STATES) == set(SECTIONS)


@pytest.mark.parametrize("states", SECTIONS, ids=SECTIONS.values())
def test_a_section_explains_its_machines_states_and_no_others(states: type[enum.Enum]) -> None:
    assert states_of(section(SECTIONS[states])) == list(states.__members__)


def test_states_that_are_not_in_an_enum_are_those_of_the_sweeps() -> None:
    assert states_of(section("Range read")) == list(reader_sweep.READ_STATES)
    assert states_of(section("Follower")) == list(reader_sweep.FOLLOW_STATES)
    assert states_of(section("Bookie")) == list(bookie_sweep.STATES)


def test_the_tables_of_sequences_name_requests_and_every_request_is_in_one() -> None:
    tables = (sequence_sweep.CHANGE, sequence_sweep.VACUUM, sequence_sweep.DELETION, sequence_sweep.COMPACTION)
    named = {name for table in tables for name in table}
    assert named == {cls.__name__ for cls in REQUESTS} - {"ForLogs"}


def test_names_of_classes_in_the_page_exist() -> None:
    known = {cls.__name__ for module in MODULES for cls in dataclasses_of(module)}
    known |= {cls.__name__ for cls in STATES} | ELSEWHERE
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", DOC.read_text(encoding="utf-8")))
    assert named - known == set()


MODULES = (events, machine_events, ask, leadership_events)
ELSEWHERE = {"LedgerMetadata", "LedgerState", "NewExtent"}


def test_the_prose_of_the_page_stays_short() -> None:
    prose = BLOCK.sub("", DOC.read_text(encoding="utf-8"))

    assert len(prose) <= PROSE_CHARACTERS_MAX, "shorten the text outside the generated lists"
