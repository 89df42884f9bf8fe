# SPDX-License-Identifier: Apache-2.0
"""Defects of logs as tables: reading them as columns, and appending tables."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ROWS, _TESTS = "tests/columns/test_arrow_rows.py::", "tests/logs/test_columns.py::"

MUTANTS = (
    Mutant(
        name="columns are used wherever they were received",
        path="bk_core/columns/arrow_rows.py",
        old="return body if pa.py_buffer(body).address % arrow_directory.UNIT == 0 else bytes(body)",
        new="return body",
        tests=(_ROWS + "test_numbers_never_lie_across_words_of_memory",),
        breaks="libraries that read numbers in place crash or refuse them",
    ),
    Mutant(
        name="entries are joined before they are decoded",
        path="bk_core/columns/arrow_rows.py",
        old="body = _usable_in_place(body) if head.compression is None else body",
        new="body = bytes(body)",
        tests=(_ROWS + "test_columns_that_are_not_compressed_stay_in_the_receive_buffer",),
        breaks="each byte is copied once more on its way to a table",
    ),
    Mutant(
        name="a failed append leaves its ledger",
        path="bk_core/logs/arrow_writing.py",
        old="            await drop_ledger(bookkeeper, writer.ledger_id, writer)\n",
        new="            await writer.abandon()\n",
        tests=(_TESTS + "test_an_append_that_fails_leaves_no_rows_and_no_ledger",),
        breaks="ledgers that nobody reads fill the bookies for a week",
    ),
    Mutant(
        name="an append does not look for a leader before it writes",
        path="bk_core/logs/named_log.py",
        old="        commit.check_unpublished(head, ())\n",
        new="",
        tests=(_TESTS + "test_an_append_is_refused_before_it_writes_where_it_cannot_be_published",),
        breaks="a table is written to the bookies that can never be listed",
    ),
    Mutant(
        name="rows are read with the newest schema alone",
        path="bk_core/logs/arrow_reading.py",
        old="schema=schemas[extent.schema_number] if codec == ARROW else None,",
        new="schema=schemas[max(schemas)] if codec == ARROW else None,",
        tests=(_TESTS + "test_a_log_keeps_its_columns_and_takes_new_ones_only_when_asked",),
        breaks="rows from before a new column cannot be read any more (K8)",
    ),
)
