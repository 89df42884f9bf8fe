# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does with the records that are written by compare-and-set: the table of roles, the worker's
record of the logs' upkeep, the cookie of a bookie, and our own record of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from bk_core.access.roles import Line, Role, RolesTable
from bk_core.errors import MetadataConflictError, MetadataCorruptError
from bk_core.metadata.port import MetadataStore
from bk_core.model import Versioned
from tests.kit.metadata_worlds import MetadataWorld, tree_of

ROLES = RolesTable((Line("CN=a", Role.ADMIN),))
VALUES = {"roles": (ROLES, ROLES.granted(Line("CN=b", Role.READER)))}
KINDS = {"roles": (), "upkeep_record": (), "cookie": ("b1:3181",), "bookie_state": ("b1:3181",)}


def calls_of(store: MetadataStore, kind: str) -> tuple[Callable[[], Any], Callable[..., Any]]:
    """Return the calls that read and write the record."""
    return tuple(partial(getattr(store, f"{name}_{kind}"), *KINDS[kind]) for name in ("read", "write"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rule("MUST8")
def test_record_is_written_by_compare_and_set(metadata_world: MetadataWorld, store: MetadataStore, kind: str) -> None:
    (read, write), other = calls_of(store, kind), metadata_world.open()
    read_other, write_other = calls_of(other, kind)
    one, two = VALUES.get(kind, (b"one", b"two"))
    assert read() is None
    with pytest.raises(MetadataConflictError):
        write(one, 0)
    write(one, None)
    with pytest.raises(MetadataConflictError):
        write_other(two, None)
    other.sync()
    assert read_other() == Versioned(one, 0)
    write_other(two, 0)
    with pytest.raises(MetadataConflictError):
        write(one, 0)
    store.sync()
    assert read() == Versioned(two, 1)


@pytest.mark.parametrize("version", [None, 0])
@pytest.mark.parametrize("kind", ["roles", "upkeep_record"])
@pytest.mark.rule("MUST8")
def test_record_whose_answer_was_lost_counts_once(
    metadata_world: MetadataWorld, store: MetadataStore, kind: str, version: int | None
) -> None:
    read, write = calls_of(store, kind)
    one, two = VALUES.get(kind, (b"one", b"two"))
    if version == 0:
        assert write(one, None) == Versioned(one, 0)
    metadata_world.lose_next_answer(store, applied=True)
    assert write(two, version) == read()


def test_table_of_roles_that_is_not_understood_is_no_empty_one(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    store.write_roles(ROLES, None)
    tree_of(store).set(f"{metadata_world.root}-security/roles", b'{"v":9}', -1)
    with pytest.raises(MetadataCorruptError, match="all access is denied"):
        store.read_roles()
