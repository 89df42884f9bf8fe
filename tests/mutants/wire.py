# SPDX-License-Identifier: Apache-2.0
"""Mutants of the codecs of Apache's wire, with which a burst would be read differently from its single frames."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FUZZ = ("tests/wire/bookie_rpc/test_fuzz.py::test_mutated_frames_are_read_as_they_would_be_by_themselves",)
READING = ("tests/wire/bookie_rpc/test_reading.py",)
BUILDING = ("tests/wire/bookie_rpc/test_building.py::test_each_ack_of_many_widths_names_its_own_add",)
FRAMES = ("tests/wire/bookie_rpc/test_frames.py",)
LONE = ("tests/wire/bookie_rpc/test_lone_add.py",)
LAYOUTS = "bk_core/wire/bookie_rpc/layouts.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "constants of a message are not compared",
        LAYOUTS,
        "        wrong &= self.mask_words\n",
        "        wrong &= 0\n",
        FUZZ,
        "a fencing read, or an add of another version, is taken for a plain one",
    ),
    Mutant(
        "the length of the inner message is not compared",
        LAYOUTS,
        "        odd = outer != (lengths - (self.outer.at + self.outer.width)).view(np.uint64)\n",
        "        odd = np.zeros(lengths.size, dtype=np.bool_)\n",
        FUZZ,
        "bytes behind the inner message are read as part of it",
    ),
    Mutant(
        "the length of the entry is not compared",
        LAYOUTS,
        "            odd |= (entry != (lengths - around).view(np.uint64)) | (lengths < around)\n",
        "            odd |= lengths < around\n",
        FUZZ,
        "an entry is stored with bytes that are none of it",
    ),
    Mutant(
        "what stands behind the entry is not compared",
        LAYOUTS,
        "            wrong = suffix.differs(tails)\n",
        "            wrong = None\n",
        (*READING, *FUZZ),
        "a normal add passes a fence as if it were recovery's",
    ),
    Mutant(
        "the header's length of a lone add is not compared",
        "bk_core/wire/bookie_rpc/v3.py",
        "        or head[0] != _HEADER_BYTES + len(txn)\n",
        "",
        LONE,
        "what protobuf refuses is stored",
    ),
    Mutant(
        "the length of a lone add's message is not compared",
        "bk_core/wire/bookie_rpc/v3.py",
        "        or _again(inner) != size - found.end(4)\n",
        "",
        LONE,
        "what protobuf refuses is stored",
    ),
    Mutant(
        "the length of a lone add's entry is not compared",
        "bk_core/wire/bookie_rpc/v3.py",
        "        or _again(of_body) != len(body)\n",
        "",
        LONE,
        "a recovery add is a normal one, and its flag a part of the entry",
    ),
    Mutant(
        "the flags of a lone add of version 2 are not compared",
        "bk_core/wire/bookie_rpc/v2.py",
        "    if word != _LONE_ADD_WORD or length != ",
        "    if length != ",
        LONE,
        "recovery's adds do not pass a fence, and reads are stored",
    ),
    Mutant(
        "a lone add may be only the first frame of what came",
        "bk_core/wire/bookie_rpc/v2.py",
        "    if word != _LONE_ADD_WORD or length != size - LENGTH_BYTES:\n",
        "    if word != _LONE_ADD_WORD:\n",
        LONE,
        "the frames behind it become a part of the entry",
    ),
    Mutant(
        "a frame may have any length",
        "bk_core/wire/bookie_rpc/frames.py",
        "            if begin + length > size or length + LENGTH_BYTES > limit:\n",
        "            if begin + length > size:\n",
        FRAMES,
        "a peer makes a bookie keep four gigabytes",
    ),
    Mutant(
        "equal frames may have any length",
        "bk_core/wire/bookie_rpc/frames.py",
        "    if most < _EQUAL_MIN or stride > limit or ",
        "    if most < _EQUAL_MIN or ",
        FRAMES,
        "frames over the limit are taken if there are enough of them",
    ),
    Mutant(
        "the header's status does not count",
        "bk_core/wire/bookie_rpc/v3.py",
        "    column[STATUS] = told.status or body.status\n",
        "    column[STATUS] = body.status\n",
        READING,
        "an add that a bookie refused is counted as acked",
    ),
    Mutant(
        "an answer that says nothing is an ack",
        "bk_core/wire/bookie_rpc/v3.py",
        "    if not there and not told.status:\n",
        "    if False:\n",
        READING,
        "an add is counted as acked that the bookie never named",
    ),
    Mutant(
        "the rows of a group are written in the order of groups",
        "bk_core/wire/bookie_rpc/columns.py",
        "            windows(out, matrix.shape[1])[begins[at]] = ",
        "            windows(out, matrix.shape[1])[np.sort(begins[at])[::-1]] = ",
        BUILDING,
        "an ack names the transaction of another add",
    ),
)
