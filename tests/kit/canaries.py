# SPDX-License-Identifier: Apache-2.0
"""Canaries: secrets that tests use and that no output may have. Whoever starts processes looks through what they wrote
(:func:`check`), and ``tests/conftest.py`` looks through what each test printed and logged.

Where a secret belongs it is not looked for: records in ZooKeeper's own files, keys of ledgers in segments and
checkpoints, and files of keys.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from bk_core.entries.digest import ledger_key, mac_key

PASSWORD = b"canary-password-5d7c"
"""Of ledgers and logs in tests that start real processes."""
OTHER = (b"canary-token-1f62", b"canary-digest-e08b", b"canary-variable-77aa")
"""Further words that tests plant: a token, ZooKeeper's digest, a variable of the environment."""

_DATA = frozenset({"segments", "version-2", "current", "checkpoints", "__pycache__"})
_KEYS = frozenset({".key", ".pem", ".secret"})
_LARGEST_BYTES = 64 << 20


def _base64(secret: bytes) -> Iterator[bytes]:
    """What of it stands in the base64 of a longer text, wherever it begins there."""
    for before in range(3):
        whole = base64.b64encode(bytes(before) + secret)
        yield whole[4 if before else 0 : len(whole) - 4]


def forms(secret: bytes) -> set[bytes]:
    """How a secret may be written: as it is, in hexadecimal digits, in base64, as Python or JSON writes bytes."""
    shown = {secret, repr(secret)[2:-1].encode(), secret.hex().encode(), secret.hex().upper().encode()}
    return shown | set(_base64(secret))


@cache
def canaries() -> tuple[bytes, ...]:
    """All forms of all planted secrets, and of the keys that are made of passwords."""
    found: set[bytes] = set()
    for secret in (PASSWORD, *OTHER, ledger_key(PASSWORD), mac_key(PASSWORD)):
        found |= forms(secret)
    return tuple(sorted(found))


def key_lines(pem: Path) -> set[bytes]:
    """The lines of a file with a key, each of which is a secret."""
    return {line for line in pem.read_bytes().splitlines() if line and not line.startswith(b"-----")}


def heard_in(text: bytes, words: Iterable[bytes] = ()) -> list[bytes]:
    """The canaries in this text."""
    return [word for word in (*canaries(), *words) if word in text]


def outputs(root: Path) -> Iterator[Path]:
    """Every file below ``root`` that is no place for secrets."""
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in _DATA]
        for name in files:
            path = Path(folder, name)
            if path.suffix not in _KEYS and not name.startswith("checkpoint") and path.is_file():
                yield path


def check(root: Path, words: Iterable[bytes] = ()) -> int:
    """Fails if a file below ``root`` has a canary, or one of ``words``. Returns how many files it looked through."""
    wanted, looked = tuple(words), 0
    for path in outputs(root):
        if path.stat().st_size > _LARGEST_BYTES:
            continue
        looked += 1
        heard = heard_in(path.read_bytes(), wanted)
        assert not heard, f"a secret stands in {path}: {heard[0]!r}"
    return looked
