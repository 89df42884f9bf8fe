# SPDX-License-Identifier: Apache-2.0
"""What a long trial of one seed has seen so far, kept in a file, so that it goes on where it was ended."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self


@dataclass(slots=True)
class SeededFigures:
    """Fields of a trial's own are numbers, texts, lists and counters, each with a default. ``secure``: with
    certificates and roles."""

    seed: int
    secure: bool = False

    @classmethod
    def load(cls, path: Path | None, seed: int, *, secure: bool = False) -> Self:
        """Those of the file, or new ones. ValueError if the file is of another seed, or differs in ``secure``."""
        made = cls(seed, secure)
        if path is None or not path.exists():
            return made
        given = json.loads(path.read_text(encoding="utf-8"))
        if given["seed"] != seed:
            raise ValueError(f"{path} is of seed {given['seed']}: give --seed {given['seed']} or another file")
        if given.get("secure", False) is not secure:
            raise ValueError(f"{path} is of a run {'without' if secure else 'with'} --secure: give another file")
        for name, value in given.items():
            setattr(made, name, Counter(value) if isinstance(getattr(made, name), Counter) else value)
        return made

    def save(self, path: Path) -> None:
        new = path.with_name(path.name + ".new")
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        new.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(path)
