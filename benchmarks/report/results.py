# SPDX-License-Identifier: Apache-2.0
"""The file of ``--resume``: a line of JSON for each part that was measured, so that a run can go on where one ended."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

from benchmarks.report.figures import Figure, Record
from benchmarks.report.tables import Conditions
from bk_core.errors import InvalidArgumentError


class Results:
    """The records of each part, in memory and, if there is one, in the file."""

    def __init__(self, conditions: Conditions, path: Path | None = None) -> None:
        """Read the file, if there is one. Raises InvalidArgumentError for a file with figures of other options, or of
        another kind."""
        self.conditions, self._path = conditions, path
        self.failed: list[str] = []
        self._parts: dict[tuple[str, str], tuple[set[str], list[Record]]] = {}
        if path is not None and path.exists():
            self._read(path)
        elif path is not None:
            self._write({"conditions": asdict(conditions)})

    def _read(self, path: Path) -> None:
        try:
            first, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            kept = Conditions(**first["conditions"])
            for line in lines:
                self._parts[line["group"], line["part"]] = set(line["peers"]), line["figures"]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError("this is no file of --resume", value=f"{path}: {error}") from error
        if kept != self.conditions:
            raise InvalidArgumentError(
                "the figures of this file were measured otherwise",
                value=f"{path}: {kept.title}",
                remedy="give the same options, or name another file",
            )

    def has(self, group: str, part: str, peers: Collection[str]) -> bool:
        """Return whether the kept figures of this part of ``group`` were measured beside all these peers."""
        measured = self._parts.get((group, part))
        return measured is not None and set(peers) <= measured[0]

    def keep(self, group: str, part: str, peers: Collection[str], figures: Collection[Figure]) -> list[Record]:
        """Keep these figures in place of older ones."""
        records = [figure.as_record() for figure in figures]
        self._parts[group, part] = set(peers), records
        self._write({"group": group, "part": part, "peers": sorted(peers), "figures": records})
        return records

    def of(self, group: str, parts: Collection[str]) -> list[Record]:
        """Return the records of these parts."""
        return [record for part in parts for record in self._parts.get((group, part), (set(), []))[1]]

    def _write(self, line: object) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
