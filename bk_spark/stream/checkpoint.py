# SPDX-License-Identifier: Apache-2.0
"""Reads the checkpoint directory of a Structured Streaming query, and finds what is wrong with it. ``bk spark offsets``
prints both. A sink reads it to learn which logs its query reads and which input a batch has, because Spark passes a
sink nothing about the query's sources.

Layout (Spark 3 to 4.3): ``metadata`` is ``{"id": the query's id}``. ``offsets/N`` is written when batch N is planned: a
line ``v1``, a line of JSON about the batch, then for each source the position where the batch ends, or ``-`` for none;
in ``v2`` each of those lines begins with the source's name and a colon. ``commits/N`` is written once batch N is done.
Only these files are read, and nothing is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bk_core.cluster.finding import Finding, problem
from bk_core.errors import InvalidArgumentError
from bk_core.logs.machines.publication import PLAN_BYTES

VERSIONS = ("v1", "v2")
COMMIT_VERSIONS = ("v1", "v2", "v3")
NO_POSITION = "-"
FILE_BYTES_MAX = 64 << 20
"""The maximum size of a checkpoint file that is read, in bytes."""
_HEADING = 2  # the version, and Spark's line about the batch, whose times differ in each plan


@dataclass(frozen=True, slots=True)
class CheckpointBatch:
    """A planned batch. ``positions`` maps each source's name (its number in v1) to the text of its position, or to None
    if it has none."""

    number: int
    positions: dict[str, str | None]
    lines: dict[str, int]  # line numbers of the positions


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """The directory of one query. ``planned`` is the last planned batch. ``committed`` is the last committed batch, or
    None if none is committed or its plan cannot be read. ``committed_number`` is its number, or −1."""

    path: Path
    query_id: str | None
    planned: CheckpointBatch | None
    committed: CheckpointBatch | None
    committed_number: int
    problems: tuple[Finding, ...] = field(default=())


def problem_at(path: Path, line: int, what: str) -> Finding:
    """Return a finding about a file of the checkpoint. It names the place as ``offsets/7 line 3``, relative to the
    checkpoint's directory. ``line`` counts from 1; 0 means the whole file."""
    name = "/".join(path.parts[-2:])
    return problem(what, where=f"{name} line {line}" if line else name)


def local_folder(location: str) -> Path | None:
    """Return the folder at a path or ``file:`` URI, or None for a URI of another store. As in Hadoop, nothing is
    unquoted."""
    scheme, colon, rest = location.partition(":")
    if colon and scheme.lower() == "file":
        return Path("/" + rest.lstrip("/"))
    return None if colon and len(scheme) > 1 and rest.startswith("//") else Path(location)


def source_logs(location: str) -> set[str]:
    """Return the uuids of the logs that the newest planned batch reads, or an empty set if its plan cannot be read.
    Never raises."""
    try:
        folder = local_folder(location)
        numbers = [] if folder is None else _numbers(folder / "offsets")
        batch = _batch(folder / "offsets" / str(numbers[-1]), []) if folder is not None and numbers else None
    except (OSError, ValueError):
        return set()
    return {uuid for text in (batch.positions.values() if batch else ()) if text for uuid in _logs_in(text)}


def plan_of(location: str, batch_id: int) -> bytes:
    """Return a digest of where a planned batch ends in each of its sources. It is the same in each run of the batch.
    With the digests of the batches before, which say where the batch begins, it identifies the batch's input. Empty if
    the plan cannot be read."""
    folder = local_folder(location)
    text = None if folder is None else _read(folder / "offsets" / str(batch_id), [])
    ends = (text or "").splitlines()[_HEADING:]
    return hashlib.sha256("\n".join(ends).encode()).digest()[:PLAN_BYTES] if ends else b""


def is_batch_planned(location: str) -> bool:
    """Return whether a batch is planned and not committed, which is so while a micro-batch runs. A continuous trigger
    writes the plan of an epoch only after the epoch. True also if the checkpoint cannot be read."""
    try:
        folder = local_folder(location)
        if folder is None or not (folder / "metadata").is_file():
            return True
        return max(_numbers(folder / "offsets"), default=-1) > max(_numbers(folder / "commits"), default=-1)
    except (OSError, ValueError):
        return True


def find_checkpoints(text: str) -> list[Path]:
    """Return the checkpoint at a path or ``file:`` URI, or the checkpoints directly below it. Raises
    InvalidArgumentError."""
    path = local_folder(text)
    if path is None:
        raise InvalidArgumentError(
            "only local checkpoints can be read", value=text, remedy="copy the directory here first"
        )
    if not path.is_dir():
        raise InvalidArgumentError("there is no such directory", value=text, remedy="give a query's checkpointLocation")
    found = [each for each in (path, *sorted(path.iterdir())) if (each / "offsets").is_dir()]
    if not found and not (path / "metadata").is_file():
        raise InvalidArgumentError(
            "this is not a checkpoint of a streaming query: it has no directory offsets",
            value=text,
            remedy="give what the query has as checkpointLocation",
        )
    return found or [path]


def read_checkpoint(path: Path) -> QueryCheckpoint:
    """Read one checkpoint. Everything that is wrong in it becomes a problem instead of an error."""
    problems: list[Finding] = []
    query_id = _query_id(path / "metadata", problems)
    offsets, commits = _numbers(path / "offsets"), _numbers(path / "commits")
    _check_numbers(path, offsets, commits, problems)
    committed_number = commits[-1] if commits else -1
    for number in commits[-1:]:
        _check_commit(path / "commits" / str(number), problems)
    last = offsets[-1] if offsets else -1
    planned = committed = _batch(path / "offsets" / str(last), problems) if offsets else None
    if committed_number != last:
        is_there = committed_number in offsets
        committed = _batch(path / "offsets" / str(committed_number), problems) if is_there else None
    return QueryCheckpoint(path, query_id, planned, committed, committed_number, tuple(problems))


def _query_id(path: Path, problems: list[Finding]) -> str | None:
    text = _read(path, problems)
    if text is None:
        return None
    try:
        found = json.loads(text)["id"]
    except (ValueError, TypeError, KeyError):
        problems.append(problem_at(path, 1, f"no query id in it: {text[:100]!r}"))
        return None
    return str(found)


def _numbers(directory: Path) -> list[int]:
    """Return the numbers of batches with a file, in order. Temporary files and checksums have other names."""
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isascii() and path.name.isdigit())


def _check_numbers(path: Path, offsets: list[int], commits: list[int], problems: list[Finding]) -> None:
    for name, numbers in (("offsets", offsets), ("commits", commits)):
        missing = sorted(set(range(numbers[0], numbers[-1])) - set(numbers)) if numbers else []
        for number in missing[:10]:
            why = "the file is missing, and Spark needs every batch between the first and the last"
            problems.append(problem_at(path / name / str(number), 0, why))
    if commits and (not offsets or commits[-1] > offsets[-1]):
        why = "the batch was done, and its plan is missing: the query cannot go on"
        problems.append(problem_at(path / "offsets" / str(commits[-1]), 0, why))
    if offsets and offsets[-1] > (commits[-1] if commits else offsets[0] - 1) + 1:
        last = f"batch {commits[-1]}" if commits else "none"
        why = f"planned, and the last batch that is done is {last}: commits are missing between"
        problems.append(problem_at(path / "offsets" / str(offsets[-1]), 0, why))


def _check_commit(path: Path, problems: list[Finding]) -> None:
    text = _read(path, problems)
    if text is None:
        return
    version, _, body = text.partition("\n")
    if version not in COMMIT_VERSIONS:
        problems.append(problem_at(path, 1, f"unknown version {version[:20]!r}"))
    elif body.strip() and _as_json(body) is None:
        problems.append(problem_at(path, 2, f"not JSON: {body[:100]!r}"))


def _batch(path: Path, problems: list[Finding]) -> CheckpointBatch | None:
    text = _read(path, problems)
    if text is None:
        return None
    lines = text.split("\n")
    if lines[0] not in VERSIONS:
        problems.append(problem_at(path, 1, f"unknown version {lines[0][:20]!r}"))
        return None
    if len(lines) < 2 or not isinstance(_as_json(lines[1]), dict):
        what = "Spark's line about the batch is missing or not JSON: the file was cut"
        problems.append(problem_at(path, 2, what))
        return None
    positions: dict[str, str | None] = {}
    places: dict[str, int] = {}
    for place, name, position in _positions(lines, path, problems):
        positions[name] = None if position == NO_POSITION else position
        places[name] = place
    if not positions:
        problems.append(problem_at(path, 3, "no source has a position: the file was cut"))
        return None
    return CheckpointBatch(int(path.name), positions, places)


def _positions(lines: list[str], path: Path, problems: list[Finding]) -> Iterator[tuple[int, str, str]]:
    """Yield (line, source, position). Sources have no names in v1, only numbers."""
    for place, line in enumerate(lines[2:], 3):
        if lines[0] == "v1":
            if line or place < len(lines):  # no line follows the last line feed
                yield place, str(place - 3), line
            continue
        name, colon, position = line.partition(":")
        if colon:
            yield place, name, position
        elif line:
            problems.append(problem_at(path, place, f"no source's name and position: {line[:100]!r}"))


def _read(path: Path, problems: list[Finding]) -> str | None:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError(f"{path.stat().st_size} bytes, which none of Spark's files has")
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        problems.append(problem_at(path, 0, "the file is missing"))
    except (OSError, ValueError) as error:
        problems.append(problem_at(path, 0, f"cannot be read: {error}"))
    else:
        if text.strip():
            return text
        problems.append(problem_at(path, 0, "the file is empty"))
    return None


def _as_json(text: str) -> object | None:
    try:
        found: object = json.loads(text)
    except ValueError:
        return None
    return found


def _logs_in(line: str) -> list[str]:
    """Return the uuids of the logs in a source's offset. Only an offset of this source has ``cluster`` and ``logs``
    (RULES N7)."""
    try:
        offset = json.loads(line)
        logs = offset["logs"] if "cluster" in offset else {}
        return [str(log["uuid"]) for log in logs.values()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
