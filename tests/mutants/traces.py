# SPDX-License-Identifier: Apache-2.0
"""Mutants of the traces: whose span a frame, a message and a commit are below."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TEST = "tests/client/test_traces.py::"
_ONE = f"{_TEST}test_one_trace_goes_through_client_bookies_and_their_commits"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "frames are sent without their trace",
        "bk_core/transport/lane_streams.py",
        "                self._traceparent = self._traceparent or traceparent\n",
        "",
        (_ONE,),
        "a trace of an append ends at the client",
    ),
    Mutant(
        "a commit is in no trace",
        "bookie_server/engine/committer.py",
        "            if self._traced:\n",
        "            if False:\n",
        (_ONE,),
        "a slow disk is not to be seen in the trace that waits for it",
    ),
    Mutant(
        "only the first frame of a batch is somebody's",
        "bk_core/client/append_spans.py",
        "            self._parent, self._was_sent = self._spans.here(), False\n",
        "            self._parent, self._was_sent = self._spans.here() if self._parent is None else None, False\n",
        (f"{_TEST}test_all_frames_of_a_batch_belong_to_who_appended_it_and_no_entry_has_a_span",),
        "most frames of a batch are roots of traces that nobody looks for",
    ),
    Mutant(
        "an error has no code in its span",
        "bk_core/traces.py",
        "            self.failed(span, error.code, error.what, error.outcome)\n",
        "            self.failed(span, type(error).__name__, error.what)\n",
        (f"{_TEST}test_an_error_is_in_the_trace_with_its_code_and_its_outcome",),
        "whether an append may be in the ledger is not said",
    ),
)
