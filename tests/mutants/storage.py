# SPDX-License-Identifier: Apache-2.0
"""Mutants of a bookie's storage and of the threads that drive it: commits, copies, starts, failures."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ENGINE = "tests/bookie_server/engine/test_engine.py"
_ORDERS = "tests/sim/threads/test_committer_orders.py"
_STORAGE = "tests/bookie_server/storage"

_MACHINE = "tests/bookie_server/machine/test_machine.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "limbo refuses what a recovery writes back",
        "bookie_server/machine/adds.py",
        """        if session.recover:
            return None
        if ledger.trouble""",
        """        if session.recover and not ledger.trouble:
            return None
        if ledger.trouble""",
        (f"{_MACHINE}::test_limbo_is_unknown_where_nothing_is_found_and_takes_no_normal_adds",),
        "a bookie that lost data is never repaired by the recoveries that pass it",
    ),
    Mutant(
        "limbo refuses a writer as fenced",
        "bookie_server/machine/adds.py",
        '            return ledger.trouble, f"this bookie may',
        '            return Reason.FENCED, f"this bookie may',
        (f"{_MACHINE}::test_limbo_is_unknown_where_nothing_is_found_and_takes_no_normal_adds",),
        "a writer that nobody fenced ends, because one of its bookies lost data",
    ),
    Mutant(
        "a writer is told of the fence that limbo set",
        "bookie_server/machine/adds.py",
        "        if ledger.trouble not in _TAKES_ADDS:  #",
        "        if ledger.trouble not in _TAKES_ADDS and not ledger.fenced:  #",
        (f"{_MACHINE}::test_limbo_refuses_a_writer_as_limbo_although_its_ledger_is_fenced_too",),
        "the same, after a start with --accept-loss",
    ),
    Mutant(
        "a bookie that lost its data knows no fence of ledgers that were moved away",
        "bookie_server/identity/loss.py",
        "record.value.state is not LedgerState.OPEN",
        "False",
        ("tests/bookie_server/identity/test_loss.py::test_accepted_loss_fences_every_other_ledger_that_ended",),
        "a writer that hung adds to a bookie that forgot the fence, and is told that its entry counts",
    ),
    Mutant(
        "a dropped copy takes no adds",
        "bookie_server/machine/adds.py",
        "_TAKES_ADDS = (Reason.REASON_NONE, Reason.COPY_DROPPED)",
        "_TAKES_ADDS = (Reason.REASON_NONE,)",
        (f"{_MACHINE}::test_a_dropped_copy_serves_what_is_found_and_takes_all_adds",),
        "a ledger that comes back to a bookie which gave up its copy once cannot be written there",
    ),
    Mutant(
        "a drop forgets what stands in newer segments",
        "bookie_server/storage/index/segment_directory.py",
        '                gone &= chunk.rows["generation"] <= through\n',
        "                pass\n",
        (f"{_STORAGE}/index/test_ledger_table.py::test_a_directory_agrees_with_a_list",),
        "entries that were added after the drop, and acked, are gone",
    ),
    Mutant(
        "a deletion leaves the bits of its ledger",
        "bookie_server/storage/index/ledger_states.py",
        "        self.table.forget(ledger_id)\n        self.drops.pop",
        "        self.drops.pop",
        (f"{_STORAGE}/index/test_index.py::test_deleted_is_sticky_wherever_the_record_stands",),
        "a bookie goes on to list a ledger that is deleted, and to keep a row of it, for ever",
    ),
    Mutant(
        "groups behind a failed one are written",
        "bookie_server/engine/commits/committer.py",
        """        except BookKeeperError as error:
            self.queue.halt()
            self._post(self._failed, error)
""",
        """        except BookKeeperError as error:
            self._post(self._failed, error)
""",
        (f"{_ORDERS}::test_what_stands_behind_a_refused_group_is_not_written",),
        "frames that the machine gave up are written, and acks count them for others",
    ),
    Mutant(
        "frames behind a failed group stay queued",
        "bookie_server/engine/commits/queue.py",
        """            self.frames.clear()
            self._is_halted = not resume
""",
        """            self._is_halted = not resume
""",
        (f"{_ENGINE}::test_what_is_given_to_the_log_while_others_hear_of_the_full_disk_fails_with_it",),
        "the same, a moment later",
    ),
    Mutant(
        "a group is acked after another writer has failed",
        "bookie_server/storage/log/segment_log.py",
        """        self._health.check()  # no ack after another writer of this directory has failed
""",
        "",
        (
            f"{_STORAGE}/log/test_segment_log.py::test_a_group_is_not_acked_when_another_writer_of_the_directory_fails_during_its_sync",
        ),
        "an ack on the word of a disk that has just failed a sync",
    ),
    Mutant(
        "what is written behind a small group is what was written before it",
        "bookie_server/storage/log/segment_log.py",
        "        self._arena[total:size] = _ZEROS[: size - total]\n",
        "",
        (
            f"{_STORAGE}/log/test_segment_log.py::"
            "test_a_small_group_in_blocks_never_written_writes_zeros_for_those_behind_it",
        ),
        "old frames stand behind the end of the log, where a scan looks for lost ones",
    ),
    Mutant(
        "what a frame has behind its last whole block is not written",
        "bookie_server/storage/log/segment_log.py",
        "                arena[at + whole : end] = frame[whole:]\n",
        "",
        (f"{_STORAGE}/log/test_segment_log.py::test_large_frames_at_a_page_are_written_from_where_they_are",),
        "the end of a frame is that of an older one: a read finds it, and the entry has one copy less",
    ),
    Mutant(
        "a frame is stamped where it was received",
        "bookie_server/storage/log/segment_log.py",
        "                buffers += arena[begin : at + BLOCK], frame[BLOCK:whole]\n",
        '                frame[STAMP_OFFSET:64] = b"abcd"\n'
        "                buffers += arena[begin : at + BLOCK], frame[BLOCK:whole]\n",
        (f"{_STORAGE}/log/test_segment_log.py::test_large_frames_at_a_page_are_written_from_where_they_are",),
        "who holds the frame too, as a comparison does, sees another one",
    ),
    Mutant(
        "a large frame is written from wherever it lies",
        "bookie_server/storage/log/segment_log.py",
        " and isinstance(frame, memoryview) and is_aligned(frame):",
        " and isinstance(frame, memoryview):",
        (f"{_STORAGE}/log/test_segment_log.py::test_large_frames_at_a_page_are_written_from_where_they_are",),
        "the disk refuses it, and the segment goes through the page cache from then on",
    ),
    Mutant(
        "what a short write left is written at its place once more",
        "bookie_server/storage/disk/files.py",
        "            offset += done\n            while",
        "            while",
        (f"{_STORAGE}/disk/test_files.py::test_a_short_write_is_continued",),
        "a group is overwritten by its own end",
    ),
    Mutant(
        "what a short write left of a buffer is skipped",
        "bookie_server/storage/disk/files.py",
        "                buffers = [buffers[0][done:], *buffers[1:]]\n",
        "                buffers = buffers[1:]\n",
        (
            f"{_STORAGE}/disk/test_files.py::"
            "test_buffers_are_written_one_behind_the_other_wherever_a_write_is_cut_short",
        ),
        "a group lacks a part of itself",
    ),
    Mutant(
        "a group has no greatest size",
        "bookie_server/storage/log/layout.py",
        " + size > GROUP_BYTES_MAX or position + at + size > last_block:",
        " + position + size > last_block:",
        (f"{_STORAGE}/bytes/test_segment.py::test_no_group_is_larger_than_the_largest",),
        "a group that does not fit into the memory it is put together in, nor into what a scan reads of a torn one",
    ),
    Mutant(
        "a group takes the block of the last idle group",
        "bookie_server/storage/log/layout.py",
        "False, segment_bytes - BLOCK\n",
        "False, segment_bytes\n",
        (f"{_STORAGE}/bytes/test_segment.py::test_the_last_block_of_a_segment_is_left_to_its_last_idle_group",),
        "a full segment whose end is never on record: a flipped bit in its last group is taken for a tail",
    ),
    Mutant(
        "a start after a loss of all segments begins at generation 1",
        "bookie_server/storage/start/replay.py",
        "newest_generation=max(listing.newest, self.start.checkpoint.through),",
        "newest_generation=listing.newest,",
        (
            f"{_STORAGE}/start/test_lost_segments.py::"
            "test_what_is_written_after_all_segments_were_lost_is_not_taken_for_recycled_by_the_next_start",
        ),
        "what is written after the loss is recycled by the next start",
    ),
    Mutant(
        "copies wait until no frame is queued",
        "bookie_server/engine/commits/queue.py",
        "            self._copies_turn = True\n",
        "",
        (f"{_ORDERS}::test_copies_take_turns_with_groups_of_which_there_is_always_one",),
        "compaction starves under load, and the disk fills up",
    ),
    Mutant(
        "an offline check removes what a start would",
        "bookie_server/storage/disk/overlay.py",
        "        self._file(path)\n        self._names[path] = None\n",
        "        self._base.remove(path)\n",
        (
            f"{_STORAGE}/disk/test_overlay.py::test_what_is_written_is_read_back_and_nothing_below_changes",
            "tests/sim/test_offline_check.py",
        ),
        "a look at a directory changes it",
    ),
    Mutant(
        "an offline check starts as if for the first time",
        "bookie_server/storage/check/check.py",
        "        return replace(found.identity, boot_count=found.identity.boot_count + 1)\n",
        "        return replace(found.identity, boot_count=1)\n",
        (
            f"{_STORAGE}/check/test_check.py::test_segment_that_is_gone_without_a_trace_is_announced_as_limbo",
            "tests/sim/test_offline_check.py",
        ),
        "a lost segment is not announced",
    ),
    Mutant(
        "an offline check calls limbo now what a start will put there",
        "bookie_server/storage/check/check.py",
        "            trouble = in_trouble.get(ledger_id, of_every_ledger)\n",
        "            _, trouble = index.folded(ledger_id)\n",
        (f"{_STORAGE}/check/test_check.py::test_lost_checkpoint_is_announced_as_limbo",),
        "the operator is told to repair ledgers that are well, before a start that may be avoided",
    ),
    Mutant(
        "a damaged segment gets a new index",
        "bookie_server/storage/check/check.py",
        "        if found.damage or scan.above or is_newest or not scan.groups:\n",
        "        if scan.above or is_newest or not scan.groups:\n",
        (f"{_STORAGE}/check/test_check.py::test_index_of_a_damaged_segment_is_never_repaired",),
        "--repair hides lost entries: they are denied from then on",
    ),
    Mutant(
        "an index beside a drained segment of another size tells of a loss",
        "bookie_server/storage/start/listing.py",
        "    stale = {generation for _, generation in unused} & (found.indexes - found.segments)\n",
        "    stale = set[int]()\n",
        (f"{_STORAGE}/start/test_lost_segments.py::test_an_index_beside_a_drained_segment_goes_and_tells_of_no_loss",),
        "a healthy directory reports damage after the operator changed the size of segments",
    ),
    Mutant(
        "blocks that the disk refused at the start are given back",
        "bookie_server/storage/start/replay.py",
        "        is_sound = not (self.report.damage or segment.refused)\n",
        "        is_sound = not self.report.damage\n",
        (
            "tests/sim/test_refused_reads.py::test_a_refused_block_behind_the_end_of_the_log_says_nothing_and_is_left_alone",
        ),
        "zeros where a disk that reads again would have shown what was there",
    ),
    Mutant(
        "a refused block of the last group is torn",
        "bookie_server/storage/bytes/scan.py",
        "        if not self._end_is_known:\n",
        "        if self._end_is_known:\n",
        ("tests/sim/test_refused_reads.py",),
        "an acknowledged group is taken for never written",
    ),
)
