# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does with the table of roles."""

from __future__ import annotations

import pytest

from bk_core.access.roles import Line, Role, RolesTable
from bk_core.errors import MetadataConflictError, MetadataCorruptError
from bk_core.metadata.port import MetadataStore
from bk_core.model import Versioned
from tests.kit.metadata_worlds import MetadataWorld, tree_of

ONE = RolesTable((Line("CN=a", Role.ADMIN),))
TWO = ONE.granted(Line("CN=b", Role.READER))


def test_table_of_roles_is_written_by_compare_and_set(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    other = metadata_world.open()
    assert store.read_roles() is None
    assert store.write_roles(ONE, None) == Versioned(ONE, 0)
    with pytest.raises(MetadataConflictError):
        other.write_roles(TWO, None)
    other.sync()
    assert other.read_roles() == Versioned(ONE, 0)
    assert other.write_roles(TWO, 0) == Versioned(TWO, 1)
    with pytest.raises(MetadataConflictError):
        store.write_roles(ONE, 0)
    store.sync()
    assert store.read_roles() == Versioned(TWO, 1)


@pytest.mark.parametrize("version", [None, 0])
@pytest.mark.rule("MUST8")
def test_table_whose_answer_was_lost_counts_once(
    metadata_world: MetadataWorld, store: MetadataStore, version: int | None
) -> None:
    if version == 0:
        store.write_roles(ONE, None)
    metadata_world.lose_next_answer(store, applied=True)
    written = store.write_roles(TWO, version)
    assert store.read_roles() == written


def test_table_that_is_not_understood_is_no_empty_one(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    store.write_roles(ONE, None)
    tree_of(store).set(f"{metadata_world.root}-security/roles", b'{"v":9}', -1)
    with pytest.raises(MetadataCorruptError, match="all access is denied"):
        store.read_roles()
