# SPDX-License-Identifier: Apache-2.0
"""A lower limit for the language of docstrings: no pattern may occur that makes a reader read a sentence twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.repo.test_tidy import PACKAGES, files_of, relative, statements

BEGINNINGS = re.compile(r"^(Of|So|Who|Whoever|Whose|Whom)\b")
"""Words with which no docstring begins. It begins with the thing that it describes, or with what a function does."""
CLAUSES = re.compile(
    r"^(?:(?:(?:Which|What|That|Such|And|But|By|It|They)\b|As \b(?!in\b))|How (?!long|many|much|often|far|to)\w)"
)
"""Beginnings of a docstring that is a clause without its main verb, or whose subject is not named: "Which lines of…",
"What is not…", "As before…". "How long…" and its like are allowed, because they read well above a constant."""
NO_ACTOR = re.compile(
    r"(?<![\w`])(?:[Ww]hoever|(?:(?:^|[.;:,] |\b(?:for|of|by|to|from|than) )[Ww]ho))\s+(?!(?:are|is) (?:who|whom)\b)\w"
)
"""``who`` or ``whoever`` without a noun that says which client, process or person it is: "Who is refused is logged",
"for who asks"."""
RIDDLES = re.compile(
    r"\b(?:is|are|was|were|be|been|being) told\b"
    r"|\b[Hh]ears? (?:of|on|about)\b|\bhears\b|\bheard of\b"
    r"|\b[Kk]nows? of\b|\b[Nn]obody knows\b|\bhas it of\b"
    r"|\b[Nn]obody (?:who|that)\b|\b[Ss]omebody\b|\b[Ss]omeone\b"
    r"|(?:^|[.;:] )So (?:many|much|long|often|large|old|soon)\b"
    r"|\bcomes? to (?:its|an|their) end\b|\bput back\b|\blooked at\b"
)
"""Words that hide which call passes what to whom, or a number: "is told", "hears of", "knows of", "So many…"."""
DOCUMENTED = (*PACKAGES, "benchmarks", "pyspark_bookkeeper.py")
"""The packages whose docstrings are checked."""
GENERATED = ("_pb2.py",)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, those of constants and fields included."""
    for node in statements(source):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, " ".join(node.value.value.split())


@cache
def documented() -> list[tuple[str, str, str]]:
    """Return the file, the line and the text of each docstring in DOCUMENTED."""
    paths = files_of(*(name if name.endswith(".py") else f"{name}/*.py" for name in DOCUMENTED))
    return [
        (relative(path), f"{relative(path)}:{line}", text)
        for path in paths
        if not path.name.endswith(GENERATED)
        for line, text in docstrings(path.read_text(encoding="utf-8"))
    ]


def matches(pattern: re.Pattern[str], packages: tuple[str, ...]) -> list[str]:
    """Return the places in these packages where a docstring has the pattern."""
    found = ((place, text, pattern.search(text)) for file, place, text in documented() if file.startswith(packages))
    return [f"{place}: {match[0]!r} in {text[:60]}" for place, text, match in found if match]


def test_docstrings_begin_with_their_subject() -> None:
    bad = [*matches(BEGINNINGS, DOCUMENTED), *matches(CLAUSES, DOCUMENTED)]
    assert bad == [], "name what it is: not 'Of each bookie' but 'The state of each bookie'"


def test_docstrings_name_the_actor() -> None:
    assert matches(NO_ACTOR, DOCUMENTED) == [], "give 'who' a noun: 'a client that', 'the process that'"


def test_docstrings_say_what_happens_in_plain_words() -> None:
    assert matches(RIDDLES, DOCUMENTED) == [], "say which call passes what to whom: not 'is told' but 'is called with'"


@pytest.mark.parametrize(
    ("pattern", "text", "is_bad"),
    [
        (NO_ACTOR, "Who is refused is logged here.", True),
        (NO_ACTOR, "It is kept for who asks.", True),
        (NO_ACTOR, "Whoever renews it tells nobody.", True),
        (NO_ACTOR, "Refused clients are logged: whoever asks hears why.", True),
        (NO_ACTOR, "A client who reads gets the end.", False),
        (NO_ACTOR, "Says which client it is, and who signed its token.", False),
        (NO_ACTOR, "The ``who`` of an event.", False),
        (CLAUSES, "Which lines about clients a log has had lately.", True),
        (CLAUSES, "How it ended, or None.", True),
        (CLAUSES, "As in the port.", False),
        (CLAUSES, "How long, in seconds, a call may take.", False),
        (CLAUSES, "However many there are.", False),
        (CLAUSES, "A copy as it was read.", False),
        (RIDDLES, "The loop is told of it.", True),
        (RIDDLES, "``failed`` hears of an error.", True),
        (RIDDLES, "A server that knows of the ledger.", True),
        (RIDDLES, "So many bytes may wait.", True),
        (RIDDLES, "A deleted ledger. So many of its frames stay.", True),
        (RIDDLES, "Not so many that a start takes long.", False),
        (RIDDLES, "LedgerAt tells them where the rows come from.", False),
        (RIDDLES, "It knows the password.", False),
    ],
)
def test_a_pattern_finds_what_is_hard_to_read_and_leaves_the_rest(
    pattern: re.Pattern[str], text: str, is_bad: bool
) -> None:
    assert bool(pattern.search(text)) is is_bad
