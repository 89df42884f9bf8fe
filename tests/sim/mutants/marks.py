# SPDX-License-Identifier: Apache-2.0
"""Known defects of ``.unsealed``, the mark beside a segment that has no index yet, put back while a context lasts."""

from __future__ import annotations

from bookie_server.storage.log.segment_pool import SegmentPool
from bookie_server.storage.start import listing
from bookie_server.storage.start.replay import Opening
from tests.sim.mutants.storage import Planted, _nothing, _planted, _with_files

MARK_MUTANTS: list[tuple[str, str, Planted]] = [
    ("segments are made without a mark", "S3", _planted((SegmentPool, "_mark_unsealed", _nothing))),
    ("marks that stand alone are ignored", "S3", _planted((Opening, "_note_lost", _nothing))),
    ("marks beside a spare tell of a loss", "S3", _planted((listing, "_unmark", _nothing))),
    (
        "a mark stands before its segment",
        "S3",
        _planted((SegmentPool, "_create", _with_files(SegmentPool._create, sync_directory=lambda _: _nothing))),
    ),
]
"""Name, rule, context."""
