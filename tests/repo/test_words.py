# SPDX-License-Identifier: Apache-2.0
"""A floor under the language of the product: patterns at which a reader stops and reads a sentence twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.repo.test_tidy import PACKAGES, files_of, relative

BEGINNINGS = re.compile(r"(Of|So|Who|Whoever|Whose|Whom)\b")
"""A docstring begins with the thing that it describes, or with what a function does."""
NO_ACTOR = re.compile(
    r"(?<![\w`])(?:[Ww]hoever|(?:(?:^|[.;:,] |\b(?:for|of|by|to|from|than) )[Ww]ho))\s+(?!(?:are|is) (?:who|whom)\b)\w"
)
"""``who`` as a subject without a noun: "Who is refused is logged", "for who asks"."""
GENERATED = ("_pb2.py",)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each docstring, those of constants and fields among them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def sources() -> Iterator[tuple[str, str]]:
    for path in files_of(*(f"{package}/*.py" for package in PACKAGES)):
        if not path.name.endswith(GENERATED):
            yield relative(path), path.read_text(encoding="utf-8")


def test_docstrings_begin_with_their_subject() -> None:
    bad = [
        f"{name}:{line}: {text.strip()[:60]}"
        for name, source in sources()
        for line, text in docstrings(source)
        if BEGINNINGS.match(text.strip())
    ]
    assert bad == [], "name what it is: not 'Of each bookie' but 'The state of each bookie'"


def test_docstrings_name_the_actor() -> None:
    bad = [
        f"{name}:{line}: {found[0]!r} in {' '.join(text.split())[:60]}"
        for name, source in sources()
        for line, text in docstrings(source)
        if (found := NO_ACTOR.search(" ".join(text.split())))
    ]
    assert bad == [], "give 'who' a noun: 'a client that', 'the process that'"


@pytest.mark.parametrize(
    ("text", "is_bad"),
    [
        ("Who is refused is logged here.", True),
        ("It is kept for who asks.", True),
        ("Whoever renews it tells nobody.", True),
        ("Refused clients are logged: whoever asks hears why.", True),
        ("A client who reads gets the end.", False),
        ("Says which client it is, and who signed its token.", False),
        ("The ``who`` of an event.", False),
    ],
)
def test_the_pattern_finds_a_bare_who_and_leaves_one_with_a_noun(text: str, is_bad: bool) -> None:
    assert bool(NO_ACTOR.search(text)) is is_bad
