# SPDX-License-Identifier: Apache-2.0
"""A scenario file: comment lines on top, then blocks of commands, a line of dashes, and the trace they must leave.

The first line names the rules it proves (``# rule: P2 MUST1``), the next ones say why it exists. A blank line ends a
block.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.scenarios.verbs import perform
from tests.scenarios.world import StoryError, World

DASHES = "----"
NOTHING = "(nothing)"
LINES_MAX = 60
RULES = re.compile(r"# rule: ((?:[A-Z]+\d+ ?)+)")


@dataclass
class Block:
    """Commands (with their comments) and the trace that is expected of them; ``line`` is where they begin."""

    commands: list[str]
    expected: list[str]
    line: int


@dataclass
class Story:
    """One file, taken apart."""

    rules: list[str]
    head: list[str]
    blocks: list[Block]


def parse(text: str) -> Story:
    """Raises StoryError where the file is not a story."""
    lines = text.splitlines()
    found = RULES.fullmatch(lines[0]) if lines else None
    if found is None:
        raise StoryError("the first line names the rules it proves: # rule: P2 MUST1")
    head = _until(lines, 0, lambda line: not line.startswith("#"))
    if len(head) < 2:
        raise StoryError("the lines below the first say why the story exists")
    blocks, at = [], len(head)
    while at < len(lines):
        if not lines[at].strip():
            at += 1
            continue
        commands = _until(lines, at, lambda line: line == DASHES)
        start, at = at, at + len(commands) + 1
        if any(not line.strip() for line in commands):
            raise StoryError(f"line {start + 1}: commands without {DASHES} and a trace")
        expected = _until(lines, at, lambda line: not line.strip())
        at += len(expected)
        blocks.append(Block(commands, expected, start + 1))
    return Story(found[1].split(), head, blocks)


def _until(lines: list[str], start: int, stop: object) -> list[str]:
    assert callable(stop)
    end = start
    while end < len(lines) and not stop(lines[end]):
        end += 1
    return lines[start:end]


class Play:
    """One run of a story: a world, and the last status that each client had."""

    def __init__(self) -> None:
        self.world = World()
        self._status: dict[str, str] = {}

    def run(self, block: Block) -> list[str]:
        """The trace of one block."""
        world = self.world
        world.lines.clear()
        for line in block.commands:
            if line.startswith("#"):
                continue
            try:
                perform(world, line)
            except StoryError as error:
                raise StoryError(f"line {block.line}: {line!r}: {error}") from error
        for name, client in world.clients.items():
            status = client.status()
            if status and status != self._status.get(name):
                world.say(status)
            self._status[name] = status
        return [line.rstrip() for line in world.lines] or [NOTHING]


def traces(story: Story) -> list[list[str]]:
    play = Play()
    return [play.run(block) for block in story.blocks]


def written(story: Story) -> str:
    """The file with the traces that the production machines leave today."""
    parts = ["\n".join(story.head)]
    for block, trace in zip(story.blocks, traces(story), strict=True):
        parts.append("\n".join([*block.commands, DASHES, *trace]))
    text = "\n\n".join(parts) + "\n"
    if text.count("\n") > LINES_MAX:
        raise StoryError(f"{text.count(chr(10))} lines: a story has at most {LINES_MAX}")
    return text


def rewrite(path: Path) -> None:
    path.write_text(written(parse(path.read_text(encoding="utf-8"))), encoding="utf-8")
