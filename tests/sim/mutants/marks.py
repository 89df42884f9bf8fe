# SPDX-License-Identifier: Apache-2.0
"""Known defects of ``.unsealed``, the mark beside a segment that has no index yet, put back while a context lasts."""

from __future__ import annotations

import os
from typing import Any

from bookie_server.storage import listing
from bookie_server.storage.replay import _Opening
from bookie_server.storage.segment import unsealed_name
from bookie_server.storage.segment_pool import SegmentPool
from tests.sim.mutants.storage import Planted, _nothing, _planted

_make = SegmentPool._make


def _marked_first(self: Any) -> Any:
    name = unsealed_name(self._generation + 1)
    self._files.close(self._files.create(os.path.join(self._path, name)))
    return _make(self)


MARK_MUTANTS: list[tuple[str, str, Planted]] = [
    ("segments are made without a mark", "S3", _planted((SegmentPool, "_mark_unsealed", _nothing))),
    ("marks that stand alone are ignored", "S3", _planted((_Opening, "_note_lost", _nothing))),
    ("marks beside a spare tell of a loss", "S3", _planted((listing, "_unmark", _nothing))),
    ("a mark stands before its segment", "S3", _planted((SegmentPool, "_make", _marked_first))),
]
"""Name, rule, context."""
