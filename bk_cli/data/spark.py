# SPDX-License-Identifier: Apache-2.0
"""``bk spark offsets CHECKPOINT``: shows the positions of streaming queries over ledgers and logs, and whether they fit
the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from bk_cli import exit_codes, options, output
from bk_cli.access import Access, access
from bk_core.cluster.finding import Finding
from bk_core.errors import BookKeeperError, InvalidArgumentError, WrongPasswordError
from bk_core.logs.model.position import LogPosition, StreamOffset, check_position, decode_offset
from bk_spark.stream.checkpoint import (
    CheckpointBatch,
    QueryCheckpoint,
    find_checkpoints,
    problem_at,
    read_checkpoint,
)

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper

Key = tuple[str, str]
"""The log or ledger of a position: ``("log", name)`` or ``("ledger", id)``."""


@click.group()
def spark() -> None:
    """Checkpoints of Spark's queries over ledgers and logs."""


@dataclass(frozen=True, slots=True)
class At:
    """A position in a checkpoint: the next offset or entry id, its cluster and, for a log, the log's position."""

    cluster: str
    next: int
    log: LogPosition | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The result of comparing a position with the cluster. ``state`` is ``fits`` or one word for why it does not fit;
    ``text`` says the same in words. ``end`` is the next position that cannot be read yet. If ``is_exact`` is False,
    there may be more beyond it."""

    state: str
    text: str
    end: int | None = None
    is_exact: bool = True


@spark.command("offsets")
@click.argument("checkpoint")
@access(password=True, optional="Also ask this cluster for the lag, and whether the positions still fit")
@options.as_json
@click.pass_context
def offsets(context: click.Context, checkpoint: str, access: Access | None, as_json: bool) -> None:
    """Show the positions in a query's checkpoint: its last planned and its last committed batch, source by source.

    CHECKPOINT is a query's checkpointLocation, or a directory of several; it is only read. The exit code is 6 if
    something in it is damaged, and 4 if a position does not fit the cluster.
    """
    code = 0
    with nullcontext() if access is None else access.client() as bookkeeper:
        cluster = _Cluster(bookkeeper, b"" if access is None else access.password)
        for path in find_checkpoints(checkpoint):
            found = read_checkpoint(path)
            code = max(code, _show(found, cluster, as_json))
    context.exit(code)


def _show(checkpoint: QueryCheckpoint, cluster: _Cluster, as_json: bool) -> int:
    problems, rows = list(checkpoint.problems), list[tuple[object, ...]]()
    if not as_json:
        output.print_facts(_facts(checkpoint))
    is_misfit = False
    planned, committed = _positions(checkpoint.planned, problems), _positions(checkpoint.committed, problems)
    for source, key in sorted({*planned, *committed}):
        at, done = planned.get((source, key)), committed.get((source, key))
        last = done or at
        assert last is not None
        found = cluster.look(key, last)
        is_misfit = is_misfit or (found is not None and found.state != "fits")
        if as_json:
            output.print_json(_as_object(checkpoint, source, key, at, done, found))
        rows.append(_row(source, key, at, done, found))
    if as_json:
        for each in dict.fromkeys(problems):
            output.print_json({"checkpoint": str(checkpoint.path), "problem": each.what, "at": each.where})
    else:
        _print(rows, problems, checkpoint.planned is None)
    return exit_codes.INTEGRITY if problems else exit_codes.CONFLICT if is_misfit else 0


def _print(rows: list[tuple[object, ...]], problems: list[Finding], is_empty: bool) -> None:
    output.print_line()
    if rows:
        columns = ("source", "log or ledger", "committed to ", "planned to ", "lag ", "")
        output.print_table(columns, rows)
    elif not is_empty:
        output.print_line("none of its sources is a ledger or log of this connector")
    for each in dict.fromkeys(problems):
        output.print_line(f"damaged: {each.where}: {each.what}")
    output.print_line()


def _facts(checkpoint: QueryCheckpoint) -> dict[str, object]:
    planned, committed = checkpoint.planned, checkpoint.committed_number
    if planned is not None and planned.number > committed:
        state = f"batch {planned.number} was planned and not committed: a restart runs it again, with the same ends"
    elif planned is not None:
        state = "every planned batch is committed: a restart plans the next"
    elif not checkpoint.problems:
        state = "no batch was planned yet: a restart begins at startingOffsets"
    else:
        state = "unknown: no planned batch can be read"
    return {
        "checkpoint": checkpoint.path,
        "query": checkpoint.query_id or "unknown",
        "planned batch": planned.number if planned else "-",
        "committed batch": committed if committed >= 0 else "none",
        "state": state,
    }


# --- positions --------------------------------------------------------------------------------------------------------


def _positions(batch: CheckpointBatch | None, problems: list[Finding]) -> dict[tuple[str, Key], At]:
    """Return where a batch ends, by source and by log or ledger. Sources of other connectors are left out."""
    found: dict[tuple[str, Key], At] = {}
    for source, text in (batch.positions if batch is not None else {}).items():
        if text is None or not _is_ours(text):
            continue
        try:
            offset = decode_offset(text)
        except InvalidArgumentError as error:
            assert batch is not None
            problems.append(_problem(batch, source, error))
        else:
            found.update({(source, key): at for key, at in _keys(offset)})
    return found


def _is_ours(text: str) -> bool:
    """Return whether the text may be a position of this connector. This includes truncated texts, but not positions of
    another source."""
    try:
        found = json.loads(text)
    except ValueError:
        return text.startswith("{")
    return isinstance(found, dict) and "cluster" in found and "topics" not in found  # topics of Pulsar are not listed


def _problem(batch: CheckpointBatch, source: str, error: InvalidArgumentError) -> Finding:
    from pathlib import Path

    return problem_at(Path("offsets", str(batch.number)), batch.lines[source], " ".join(str(error).split()))


def _keys(offset: StreamOffset) -> Iterator[tuple[Key, At]]:
    for name, at in offset.logs.items():
        yield ("log", name), At(offset.cluster, at.next, at)
    for ledger_id, entry_id in offset.ledgers.items():
        yield ("ledger", str(ledger_id)), At(offset.cluster, entry_id)


def _row(source: str, key: Key, at: At | None, done: At | None, found: Found | None) -> tuple[object, ...]:
    lag = _lag(done or at, found)
    return (
        source,
        " ".join(key),
        "-" if done is None else done.next,
        "-" if at is None else at.next,
        "-" if lag is None else f"{lag:,}" if found is None or found.is_exact else f"{lag:,} or more",
        "" if found is None else found.text,
    )


def _as_object(
    checkpoint: QueryCheckpoint, source: str, key: Key, at: At | None, done: At | None, found: Found | None
) -> dict[str, object]:
    position = done or at
    assert position is not None
    log: Mapping[str, object] = {}
    if position.log is not None:
        log = {"uuid": position.log.uuid, "epoch": position.log.epoch}
    asked: Mapping[str, object] = {}
    if found is not None:
        lag = _lag(position, found)
        asked = {"state": found.state, "text": found.text, "end": found.end, "lag": lag, "isExact": found.is_exact}
    return {
        "checkpoint": str(checkpoint.path),
        "queryId": checkpoint.query_id,
        "source": source,
        key[0]: key[1] if key[0] == "log" else int(key[1]),
        "cluster": position.cluster,
        **log,
        "plannedBatch": None if checkpoint.planned is None else checkpoint.planned.number,
        "plannedNext": None if at is None else at.next,
        "committedBatch": None if checkpoint.committed_number < 0 else checkpoint.committed_number,
        "committedNext": None if done is None else done.next,
        **asked,
    }


def _lag(at: At | None, found: Found | None) -> int | None:
    return None if at is None or found is None or found.end is None else max(0, found.end - at.next)


# --- the cluster ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The cluster that positions are compared with, or none if no cluster was named."""

    _bookkeeper: BookKeeper | None
    _password: bytes = field(repr=False)

    def look(self, key: Key, at: At) -> Found | None:
        """Return how the position fits, or None if there is no cluster to ask. Raises if the cluster cannot be
        reached."""
        bookkeeper = self._bookkeeper
        if bookkeeper is None:
            return None
        if at.cluster != bookkeeper.instance_id:
            return Found("otherCluster", f"of another cluster: {at.cluster}, this one is {bookkeeper.instance_id}")
        try:
            if at.log is not None:
                return self._log(bookkeeper, key[1], at.log)
            return self._ledger(bookkeeper, int(key[1]), at.next)
        except BookKeeperError as error:
            if exit_codes.exit_code_of(type(error)) == exit_codes.NOT_FOUND:
                return Found("missing", "does not exist any more")
            if isinstance(error, InvalidArgumentError):
                return Found("impossible", str(error))
            raise

    def _log(self, bookkeeper: BookKeeper, name: str, at: LogPosition) -> Found:
        from bk_core.errors import LogOverwrittenError, LogRecreatedError

        log = bookkeeper.log(name, password=self._password)
        head = log.head(check_password=False).value
        try:
            check_position(at, head, name=name)
        except LogRecreatedError:
            return Found("recreated", f"deleted and made again: its uuid is {head.uuid} now")
        except LogOverwrittenError:
            text = f"overwritten since: epoch {head.epoch} now, begin again at offset {head.start_offset}"
            return Found("overwritten", text, head.next_offset)
        end, is_exact = head.next_offset, True
        if head.open_extents:
            try:
                end = log.end_offset()
            except WrongPasswordError:
                is_exact = False
        if at.next < head.start_offset:
            text = f"{head.start_offset - at.next:,} entries were trimmed before they were read"
            return Found("trimmed", text, end, is_exact)
        return _at_end(at.next, end, is_exact)

    def _ledger(self, bookkeeper: BookKeeper, ledger_id: int, position: int) -> Found:
        metadata = bookkeeper.read_metadata(ledger_id).value
        if metadata.is_closed:
            return _at_end(position, metadata.last_entry_id + 1, True)
        try:
            with bookkeeper.open_ledger(ledger_id, recover=False, password=self._password) as reader:
                return _at_end(position, reader.last_add_confirmed + 1, True)
        except WrongPasswordError:
            return Found("fits", "being written; finding its end needs the password", None, False)


def _at_end(position: int, end: int, is_exact: bool) -> Found:
    if position > end and is_exact:
        return Found("beyond", f"beyond the end, which is {end}: entries were lost, or it is another cluster", end)
    return Found("fits", "fits", end, is_exact)
