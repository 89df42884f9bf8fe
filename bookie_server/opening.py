# SPDX-License-Identifier: Apache-2.0
"""From a directory and a metadata store to storage that may answer: the one order in which a bookie opens.

Whose directory it is (cookies, state record), then replay, then the note of this start in the store. Synchronous; the
simulator opens its bookies with the same function (RULES S10).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bk_core.metadata.port import MetadataStore
from bookie_server.config import BookieConfig
from bookie_server.loss import distrust
from bookie_server.registration import open_directory, record_state
from bookie_server.storage.commit import SegmentLog
from bookie_server.storage.cookie import DataDirectory
from bookie_server.storage.files import Files
from bookie_server.storage.index import LedgerIndex
from bookie_server.storage.reader import SegmentReader
from bookie_server.storage.replay import OpenReport, open_segments


@dataclass(frozen=True, slots=True)
class OpenStorage:
    """An open data directory. Whoever holds it closes ``log``, then ``reader``, then ``directory``."""

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
) -> OpenStorage:
    """Open the bookie's data directory, made at the first start; everything that its index says is durable.

    ``accept_loss``: take a wiped or older directory under a known id, and distrust it (``loss.py``) before this
    returns; InvalidArgumentError if nothing is lost. The other keywords are for tests: another file system, segments of
    another size than the configuration allows, a fixed incarnation for a new directory, a clock. Raises
    BookieIdentityError, DataDirectoryError, StorageFailedError, MetadataConflictError when another process starts as
    the same bookie, and errors of the store; then nothing is left open.
    """
    directory = open_directory(
        config, store, address, port, files=files, incarnation=incarnation, accept_loss=accept_loss
    )
    try:
        index, log, report = open_segments(
            directory,
            segment_size_bytes=segment_size_bytes or config.segment_size_bytes,
            segments_kept_free=config.segments_kept_free,
            index_cache_bytes=config.index_cache_bytes,
            now_ms=now_ms,
        )
        try:
            if accept_loss:
                distrust(store, directory.identity.bookie_id, index, log)
            if directory.boot_recorded:
                record_state(store, directory.identity, report.newest_sealed, lost=accept_loss)
            if accept_loss:
                directory.end_loss()
        except BaseException:
            log.close(record=False)
            raise
    except BaseException:
        directory.close()
        raise
    reader = SegmentReader(directory.segments_path, directory.identity, files=directory.files)
    return OpenStorage(directory, index, log, reader, report)
