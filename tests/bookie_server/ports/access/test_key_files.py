# SPDX-License-Identifier: Apache-2.0
"""Files of keys: whoever may write one can be anybody, so a bookie looks at who may, when it starts and at changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import InvalidArgumentError
from bookie_server.ports.access.authority import GrantKeys
from bookie_server.ports.access.key_files import KEYS_BYTES_MAX, read_key_file
from bookie_server.ports.access.tokens import TokenKeys
from tests.kit.signed_tokens import Signer, keys_file


def _grant_keys(path: Path, number: int) -> Path:
    new = path.with_suffix(".new")
    new.write_text(f"{number:02x}" * 32 + "\n")
    return new.replace(path)


def _token_keys(path: Path, number: int) -> Path:
    return keys_file(path, Signer(f"k{number}"))


Write = Callable[[Path, int], Path]
on_both = pytest.mark.parametrize(("keys_of", "write"), [(GrantKeys, _grant_keys), (TokenKeys, _token_keys)])


def test_a_file_is_read_up_to_its_bound_and_refused_above(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"k" * KEYS_BYTES_MAX)
    path.chmod(0o600)
    assert read_key_file(path) == b"k" * KEYS_BYTES_MAX
    path.write_bytes(b"k" * (KEYS_BYTES_MAX + 1))
    with pytest.raises(ValueError, match=f"more than {KEYS_BYTES_MAX} bytes"):
        read_key_file(path)


@on_both
def test_a_file_that_every_user_may_write_stops_the_start_and_later_is_not_taken(
    keys_of: Any, write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "keys", 1)
    for mode in (0o602, 0o666):
        path.chmod(mode)
        with pytest.raises(InvalidArgumentError, match="may write to it") as raised:
            keys_of(path)
        assert str(path) in raised.value.value
    path.chmod(0o600)
    keys = keys_of(path)
    before = keys.now()
    write(path, 2).chmod(0o602)
    with caplog.at_level(logging.WARNING):
        assert [keys.now() is before for _ in range(3)] == [True] * 3
    assert caplog.text.count("may write to it") == 1
    path.chmod(0o600)
    assert keys.now() is not before


@on_both
@pytest.mark.parametrize(
    ("mode", "of_grants", "of_tokens"),
    [(0o600, "", ""), (0o440, "", ""), (0o660, "the group of", "the group of"), (0o644, "may read", "")],
)
def test_others_that_may_more_than_they_should_are_warned_of(
    keys_of: Any, write: Write, mode: int, of_grants: str, of_tokens: str, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    path = write(tmp_path / "keys", 1)
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        keys_of(path).now()
    told = of_grants if keys_of is GrantKeys else of_tokens
    assert len(caplog.records) == bool(told)
    assert told in caplog.text


@pytest.mark.parametrize(
    "text", [b"\xff" * 64, b"0" * (KEYS_BYTES_MAX + 1), b"5a5a-not-hex"], ids=["no text", "long", "no key"]
)
def test_no_message_about_a_file_of_grant_keys_has_what_it_holds(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(text)
    with pytest.raises(InvalidArgumentError) as raised:
        GrantKeys(path)
    assert str(path) in str(raised.value)
    assert not any(part in str(raised.value) for part in ("ff", "000", "5a5a"))
