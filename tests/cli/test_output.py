# SPDX-License-Identifier: Apache-2.0
"""What commands print: nothing is lost for programs, nothing breaks a terminal for people."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_cli import output
from bk_core.cluster.payloads import payload_json, payload_text


@given(st.binary(max_size=200))
def test_json_of_a_payload_gives_back_its_bytes(payload: bytes) -> None:
    value = json.loads(json.dumps(payload_json(payload)))
    back = value["text"].encode() if "text" in value else base64.b64decode(value["base64"])
    assert back == payload


@given(st.binary(max_size=200))
def test_a_payload_is_printed_on_one_line_without_control_characters(payload: bytes) -> None:
    assert payload_text(payload).isprintable()


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_in_words(size: int, words: str) -> None:
    assert output.in_words(size) == words


def test_a_piped_table_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    ensemble = ", ".join(f"host-{i}.example:3181" for i in range(20))
    output.print_table(("from entry ", "bookies"), [(0, ensemble)])
    assert ensemble in capsys.readouterr().out


def test_brackets_in_values_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("log",), [("[bold]x[/bold]",)])
    assert "[bold]x[/bold]" in capsys.readouterr().out


def test_raw_entries_are_their_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output.print_entries([0, 1], [b"\xff\x00", b"b"], raw=True, as_json=False)
    assert capfdbinary.readouterr().out == b"\xff\x00\nb\n"


def test_entries_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_entries([7], [b"a\nb"], raw=False, as_json=False)
    output.print_entries([7], [b"a\nb"], raw=False, as_json=True, name="offset")
    assert capsys.readouterr().out == '7\ta\\nb\n{"offset":7,"text":"a\\nb"}\n'
