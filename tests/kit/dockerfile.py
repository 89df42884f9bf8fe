# SPDX-License-Identifier: Apache-2.0
"""Reads the stages of our Dockerfile and their instructions. It knows only the syntax that this Dockerfile uses."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FILE = Path(__file__).parents[2] / "Dockerfile"


@dataclass
class Stage:
    """One ``FROM`` and the instructions after it. ``base`` is another stage, or an image."""

    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, instruction: str) -> str | None:
        found = [text for name, text in self.steps if name == instruction]
        return found[-1] if found else None


def read() -> tuple[dict[str, str], dict[str, Stage]]:
    """Return the arguments that stand before the first stage, and the stages by name."""
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for name, text in _instructions(FILE.read_text(encoding="utf-8")):
        if name == "FROM":
            base, _, label = text.partition(" AS ")
            stage = stages[label] = Stage(base)
        elif stage is None:
            assert name == "ARG"
            key, _, value = text.partition("=")
            arguments[key] = value
        else:
            stage.steps.append((name, text))
    return arguments, stages


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.partition(" ")
        assert re.fullmatch("[A-Z]+", name), line
        yield name, " ".join(rest.split()) if name != "HEALTHCHECK" else rest.strip()


class Image:
    """A stage together with the stages that it is based on."""

    def __init__(self, target: str) -> None:
        self.stages = read()[1]
        self.chain = [self.stages[target]]
        while self.chain[0].base in self.stages:
            self.chain.insert(0, self.stages[self.chain[0].base])

    def steps(self, *instructions: str) -> list[tuple[str, str]]:
        return [step for stage in self.chain for step in stage.steps if not instructions or step[0] in instructions]

    def last(self, instruction: str) -> str | None:
        return next((text for stage in reversed(self.chain) if (text := stage.last(instruction)) is not None), None)

    def environment(self) -> dict[str, str]:
        return dict(word.split("=", 1) for _, text in self.steps("ENV") for word in shlex.split(text))

    def words(self, instruction: str) -> list[str]:
        """Return the words of an instruction in exec form."""
        return [str(word) for word in json.loads(self.last(instruction) or "[]")]

    def probe(self) -> list[str]:
        """Return the command of the health check."""
        said = self.last("HEALTHCHECK")
        assert said is not None
        return [str(word) for word in json.loads(said.partition("CMD ")[2])]
