# SPDX-License-Identifier: Apache-2.0
"""Signs and checks grants. A grant is a bookie's signed statement that an identity has certain rights on a ledger
(docs/security.md §6). Pure.

A grant consists of ``BKG1``, the key's id (8 bytes), the cluster's instance id and the identity, each behind its length
(2), the ledger id (8, −1 for no ledger), the rights (2), from and until (8 each, in ms since 1970), and HMAC-SHA256
over all of these bytes (32). All numbers are big-endian.

The cluster's bookies share a file of keys. Each line has one key of at least 32 bytes, in hex. Bookies sign with the
first key and accept grants that were signed with any of them.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Mapping
from typing import NamedTuple

from bk_core.access.roles import TEXT_MAX, Right
from bk_core.errors import InvalidArgumentError
from bk_core.model import LedgerId

NO_LEDGER: LedgerId = -1
"""The ledger id in a grant whose rights are not about one ledger."""

GRANT_BYTES_MAX = 4 + 8 + 2 * (2 + 4 * TEXT_MAX) + 8 + 2 + 16 + 32
"""The size of the longest grant in bytes, with an instance id and an identity of TEXT_MAX characters of 4 bytes."""
KEY_BYTES_MIN = 32
"""The minimum size of a key in bytes. It is the size of the grants' MAC, HMAC-SHA256."""

_MAGIC = b"BKG1"
_KEY_ID = struct.Struct(">4s8s")
_LENGTH = struct.Struct(">H")
_END = struct.Struct(">qHQQ")
_MAC_BYTES = 32


class Grant(NamedTuple):
    """A permission for ``identity`` to use ``rights`` on a ledger, from ``from_ms`` to before ``until_ms`` (ms since
    1970)."""

    instance_id: str
    identity: str
    ledger_id: LedgerId
    rights: Right
    from_ms: int
    until_ms: int


class GrantRefused(Exception):
    """The error for a grant that is not accepted. Its text gives the reason and has no secret, so a client may see
    it."""


class Keys:
    """The grant keys of a cluster, by key id. The first of them signs."""

    def __init__(self, keys: list[bytes]) -> None:
        assert keys
        self._by_id: Mapping[bytes, bytes] = {_id_of(key): key for key in keys}
        self._signing = keys[0]

    def sign(self, grant: Grant) -> bytes:
        key = self._signing
        instance, identity = grant.instance_id.encode(), grant.identity.encode()
        said = b"".join(
            (
                _KEY_ID.pack(_MAGIC, _id_of(key)),
                _LENGTH.pack(len(instance)) + instance,
                _LENGTH.pack(len(identity)) + identity,
                _END.pack(grant.ledger_id, int(grant.rights), grant.from_ms, grant.until_ms),
            )
        )
        return said + hmac.digest(key, said, "sha256")

    def verify(self, grant: bytes, *, instance_id: str, identity: str, now_ms: int) -> Grant:
        """Check a grant that ``identity`` shows to a bookie of this cluster, and return it. Raises GrantRefused."""
        if not _KEY_ID.size + _MAC_BYTES < len(grant) <= GRANT_BYTES_MAX or not grant.startswith(_MAGIC):
            raise GrantRefused("it is not a grant")
        key = self._by_id.get(grant[4:12])
        if key is None:
            raise GrantRefused("it is signed with a key that this bookie does not have")
        said, mac = grant[:-_MAC_BYTES], grant[-_MAC_BYTES:]
        if not hmac.compare_digest(hmac.digest(key, said, "sha256"), mac):
            raise GrantRefused("its signature is false")
        found = _parsed(said)  # a bookie of this cluster wrote it, since its signature holds
        if found.instance_id != instance_id:
            raise GrantRefused("it belongs to another cluster")
        if found.identity != identity:
            raise GrantRefused("it belongs to another identity")
        if now_ms < found.from_ms:
            raise GrantRefused("it is not valid yet: compare the clocks of the bookies")
        if now_ms >= found.until_ms:
            raise GrantRefused("it has ended")
        return found


def _parsed(said: bytes) -> Grant:
    """Parse the signed part of a grant. Raises GrantRefused."""
    try:
        instance, at = _text(said, _KEY_ID.size)
        identity, at = _text(said, at)
        ledger_id, rights, from_ms, until_ms = _END.unpack(said[at:])
    except (struct.error, UnicodeDecodeError) as error:
        raise GrantRefused("its version is unknown") from error
    return Grant(instance, identity, ledger_id, Right(rights), from_ms, until_ms)


def _text(said: bytes, at: int) -> tuple[str, int]:
    begin = at + _LENGTH.size
    end = begin + _LENGTH.unpack_from(said, at)[0]
    return said[begin:end].decode("utf-8"), end


def _id_of(key: bytes) -> bytes:
    """Return the id of a key. The key cannot be computed from it."""
    return hashlib.sha256(b"the id of a key of grants\0" + key).digest()[:8]


def parse_keys(text: str) -> Keys:
    """Parse the text of a file of keys. Each line has one key in hex; empty lines and lines that begin with ``#`` are
    skipped. Raises InvalidArgumentError, whose text has no key."""
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        if not (line := line.strip()) or line.startswith("#"):
            continue
        try:
            key = bytes.fromhex(line)
        except ValueError:
            raise _no_key(f"line {number} is not hex") from None
        if len(key) < KEY_BYTES_MIN:
            raise _no_key(f"line {number} has {len(key)} bytes, at least {KEY_BYTES_MIN} are wanted")
        keys.append(key)
    if not keys:
        raise _no_key("it holds no key")
    return Keys(keys)


def _no_key(why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the file of grant keys cannot be used", value=why, remedy="write a key on each line: openssl rand -hex 32"
    )
