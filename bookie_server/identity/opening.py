# SPDX-License-Identifier: Apache-2.0
"""Opens a bookie's directories in the only safe order. After that its storage may answer.

It checks that the directories are the bookie's own (cookies, state record), replays each, and then records this start
in the store. It is synchronous (RULES S10: storage starts no threads); the simulator opens its bookies with the same
function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from bk_core.errors import BookieIdentityError
from bk_core.metadata.port import MetadataStore
from bookie_server.config import BookieConfig
from bookie_server.identity.directories import open_directories
from bookie_server.identity.known_state import KnownDirectory, record_start
from bookie_server.identity.loss import distrust, mark_lacking
from bookie_server.storage.disk.cookie import LOSS_NAME, DataDirectory
from bookie_server.storage.disk.files import Files
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.log.segment_log import SegmentLog
from bookie_server.storage.log.segment_reader import SegmentReader
from bookie_server.storage.start.replay import OpenReport, open_segments


@dataclass(frozen=True, slots=True)
class OpenStorage:
    """An open data directory. Its owner closes ``log``, then ``reader``, then ``directory``."""

    directory: DataDirectory
    index: LedgerIndex
    log: SegmentLog
    reader: SegmentReader
    report: OpenReport


def open_storage(
    config: BookieConfig,
    store: MetadataStore,
    address: str,
    port: int,
    *,
    files: Files | None = None,
    segment_size_bytes: int | None = None,
    incarnation: str | None = None,
    now_ms: Callable[[], int] | None = None,
    accept_loss: bool = False,
) -> tuple[OpenStorage, ...]:
    """Open the bookie's data directories; at the first start, make them. Everything that their indexes name is durable.
    The first directory's identity is the bookie's.

    With ``accept_loss`` this opens wiped, missing or older directories of a known id, too, and puts their ledgers in
    limbo (``loss.py``) before it returns; it raises InvalidArgumentError if nothing is lost. The other keywords are for
    tests: another file system, a segment size that the configuration does not allow, a fixed incarnation for a new
    directory, a clock. Raises BookieIdentityError, DataDirectoryError, StorageFailedError, MetadataConflictError if
    another process starts as the same bookie, and errors of the store; then nothing is left open.
    """
    directories, suspects = open_directories(
        config, store, address, port, files=files, incarnation=incarnation, accept_loss=accept_loss
    )
    opened: list[OpenStorage] = []
    try:
        for directory in directories:
            index, log, report = open_segments(
                directory,
                segment_size_bytes=segment_size_bytes or config.segment_size_bytes,
                segments_kept_free=config.segments_kept_free,
                index_cache_bytes=config.index_cache_bytes,
                now_ms=now_ms,
            )
            reader = SegmentReader(directory.segments_path, directory.identity, files=directory.files)
            opened.append(OpenStorage(directory, index, log, reader, report))
        check_apart(opened)
        if accept_loss:
            parts = [(each.index, each.log) for each in opened]
            distrust(store, directories[0].identity.bookie_id, parts, suspects)
        for each in opened:
            if each.report.ledgers_in_limbo:
                mark_lacking(store, each.directory.identity.bookie_id, each.report.ledgers_in_limbo)
        _record(store, opened, suspects if accept_loss else frozenset())
        if accept_loss:
            for directory in directories:
                directory.clear_mark(LOSS_NAME)
    except BaseException:
        for each in opened:
            each.log.close(record=False)
        for directory in directories:
            directory.close()
        raise
    return tuple(opened)


def _record(store: MetadataStore, opened: Sequence[OpenStorage], lost: Collection[int]) -> None:
    starts: dict[str, KnownDirectory | None] = {}
    for each in opened:
        identity = each.directory.identity
        now = KnownDirectory(identity.boot_count, newest_sealed=each.report.newest_sealed)
        starts[identity.incarnation] = now if each.directory.boot_recorded else None
    incarnations = {opened[number].directory.identity.incarnation for number in lost}
    record_start(store, opened[0].directory.identity.bookie_id, starts, lost=incarnations)


def check_apart(opened: Sequence[OpenStorage]) -> None:
    """Check that no ledger is in two directories. Raises BookieIdentityError if one is, because then files of the two
    were mixed."""
    known = [np.array(each.index.ledger_ids(), np.int64) for each in opened]
    for number, each in enumerate(opened):
        for other, ledgers in enumerate(known):
            if other == number:
                continue
            twice = ledgers[each.index.are_deleted(ledgers)]
            twice = twice if twice.size else np.intersect1d(ledgers, known[number], assume_unique=True)
            if twice.size:
                raise BookieIdentityError(
                    "a ledger is in two data directories, and each may lack what the other has acknowledged",
                    value=f"ledger {twice[0]} and {twice.size - 1} more: "
                    f"{each.directory.path} and {opened[other].directory.path}",
                    remedy="find out which files were put into the wrong directory (bk bookie inspect DIR shows the "
                    "ledgers of each) and put them back",
                )
