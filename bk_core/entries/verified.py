# SPDX-License-Identifier: Apache-2.0
"""Turns the frames of a bookie's answer into verified entry batches. Pure."""

from __future__ import annotations

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import FrameKind, decode_frame, split_frames
from bk_core.errors import IntegrityError


def verified_batches(frames: memoryview, digester: Digester, *, always: bool) -> list[EntryBatch]:
    """Return the batches in the frames of a bookie's answer. Raises IntegrityError for the first frame that fails a
    check.

    Both CRCs of each frame are checked. The digests of entries are verified in a frame that the bookie cut, or in all
    frames with ``always`` (recovery, MAC ledgers). A stored frame has its placement stamp as tag; a frame that was cut
    has the tag 0 (docs/formats.md §1.4).
    """
    batches = []
    for header, frame in split_frames(frames):
        if header.kind != FrameKind.ENTRIES:
            raise IntegrityError("a bookie answered with a record", value=f"kind {header.kind}")
        verify = always or header.tag == 0
        batches.append(decode_frame(frame, digester=digester, verify_digests=verify, parsed=header))
    return batches
