# SPDX-License-Identifier: Apache-2.0
"""Canaries: secrets that tests use and that no output may contain. A test that starts processes searches their files
(:func:`check`), and ``tests/conftest.py`` searches what each test printed and logged.

Files in which a secret belongs are not searched: ZooKeeper's own files with records, segments and checkpoints with the
keys of ledgers, and files of keys.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from bk_core.entries.digest import ledger_key, mac_key

PASSWORD = b"canary-password-5d7c"
"""The password of ledgers and logs in tests that start real processes."""
OTHER = (b"canary-token-1f62", b"canary-digest-e08b", b"canary-variable-77aa")
"""Further words that tests plant: a token, ZooKeeper's digest, a variable of the environment."""

_DATA = frozenset({"segments", "version-2", "current", "checkpoints", "__pycache__"})
_KEYS = frozenset({".key", ".pem", ".secret"})
_LARGEST_BYTES = 64 << 20


def _base64(secret: bytes) -> Iterator[bytes]:
    """Yield the part of base64 that shows the secret inside a longer text, for each offset at which the secret may
    begin."""
    for before in range(3):
        whole = base64.b64encode(bytes(before) + secret)
        yield whole[4 if before else 0 : len(whole) - 4]


def forms(secret: bytes) -> set[bytes]:
    """Return the forms in which a secret may be written: as it is, hexadecimal, base64, as Python or JSON writes
    bytes."""
    shown = {secret, repr(secret)[2:-1].encode(), secret.hex().encode(), secret.hex().upper().encode()}
    return shown | set(_base64(secret))


@cache
def canaries() -> tuple[bytes, ...]:
    """Return all forms of all planted secrets, and of the keys derived from passwords."""
    found: set[bytes] = set()
    for secret in (PASSWORD, *OTHER, ledger_key(PASSWORD), mac_key(PASSWORD)):
        found |= forms(secret)
    return tuple(sorted(found))


def key_lines(pem: Path) -> set[bytes]:
    """Return the lines of a file with a key; each of them is a secret."""
    return {line for line in pem.read_bytes().splitlines() if line and not line.startswith(b"-----")}


def heard_in(text: bytes, words: Iterable[bytes] = ()) -> list[bytes]:
    """Return the canaries in this text, and those of ``words`` that it contains."""
    return [word for word in (*canaries(), *words) if word in text]


def outputs(root: Path) -> Iterator[Path]:
    """Yield every file below ``root`` in which no secret belongs."""
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in _DATA]
        for name in files:
            path = Path(folder, name)
            if path.suffix not in _KEYS and not name.startswith("checkpoint") and path.is_file():
                yield path


def check(root: Path, words: Iterable[bytes] = ()) -> int:
    """Fail if a file below ``root`` contains a canary or one of ``words``. Return how many files were searched."""
    wanted, looked = tuple(words), 0
    for path in outputs(root):
        if path.stat().st_size > _LARGEST_BYTES:
            continue
        looked += 1
        heard = heard_in(path.read_bytes(), wanted)
        assert not heard, f"{path} contains a secret: {heard[0]!r}"
    return looked
