# SPDX-License-Identifier: Apache-2.0
"""What the metadata store knows of a bookie's directories: each start, each position, nothing of a full disk's boot."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from bk_core.errors import MetadataCorruptError
from bookie_server.identity.known_state import (
    KnownDirectory,
    KnownState,
    read_known_state,
    record_new,
    record_positions,
    record_start,
)
from tests.kit.memory_store import MemoryCluster, MemoryStore

pytestmark = pytest.mark.rule("S8")

A, B, C = (f"{letter * 8}-0000-4000-8000-000000000000" for letter in "abc")


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    made = MemoryStore(MemoryCluster())
    made.initialize_cluster()
    yield made
    made.close()


def start(incarnation: str, boot: int, recorded: bool = True) -> tuple[str, KnownDirectory | None]:
    return incarnation, KnownDirectory(boot, newest_sealed=10 * boot) if recorded else None


def known(store: MemoryStore) -> dict[str, tuple[int, tuple[int, int], int]]:
    directories = read_known_state(store, "b1").directories
    return {name: (each.boot_count, each.position, each.newest_sealed) for name, each in directories.items()}


def test_a_start_is_known_with_the_positions_from_before_it(store: MemoryStore) -> None:
    assert read_known_state(store, "b1") == KnownState()
    record_start(store, "b1", dict([start(A, 1), start(B, 1)]))
    record_positions(store, "b1", {A: (3, 4096), B: (7, 8192), C: (9, 9)})
    record_positions(store, "b1", {A: (2, 9000), B: (7, 9000)})
    record_start(store, "b1", dict([start(A, 2), start(B, 2)]))
    assert known(store) == {A: (2, (3, 4096), 20), B: (2, (7, 9000), 20)}
    record_start(store, "b1", dict([start(A, 3), start(B, 3)]), lost=[B])
    assert known(store) == {A: (3, (3, 4096), 30), B: (3, (0, 0), 30)}
    assert read_known_state(store, "b1").incarnation == A


def test_a_start_names_all_directories_there_are(store: MemoryStore) -> None:
    record_start(store, "b1", dict([start(A, 1), start(B, 1)]))
    record_start(store, "b1", dict([start(B, 2), start(C, 1)]))
    assert read_known_state(store, "b1") == KnownState(
        B, {B: KnownDirectory(2, (0, 0), 20), C: KnownDirectory(1, (0, 0), 10)}
    )


def test_a_new_directory_is_announced_without_a_boot(store: MemoryStore) -> None:
    record_start(store, "b1", dict([start(A, 4)]))
    record_new(store, "b1", [C])
    assert known(store) == {A: (4, (0, 0), 40), C: (0, (0, 0), 0)}


def test_a_boot_that_is_not_on_disk_is_not_told(store: MemoryStore) -> None:
    """The directory's disk is full: its next start has the same number."""
    record_start(store, "b1", dict([start(A, 1), start(B, 1)]))
    record_start(store, "b1", dict([start(A, 2, recorded=False), start(B, 2)]))
    assert {name: boot for name, (boot, _, _) in known(store).items()} == {A: 1, B: 2}
    record_start(store, "b1", dict([start(A, 2, recorded=False), start(B, 3, recorded=False)]))
    assert {name: boot for name, (boot, _, _) in known(store).items()} == {A: 1, B: 2}


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"incarnation":"x","boot_count":1,"others":[1]}'])
def test_a_record_that_cannot_be_read_is_an_error(store: MemoryStore, value: bytes) -> None:
    store.write_bookie_state("b1", value, None)
    with pytest.raises(MetadataCorruptError):
        read_known_state(store, "b1")


def test_a_record_of_one_directory_is_as_it_was(store: MemoryStore) -> None:
    store.write_bookie_state(
        "b1", json.dumps({"boot_count": 2, "incarnation": A, "newest_sealed": 1, "v": 1}).encode(), None
    )
    assert known(store) == {A: (2, (0, 0), 1)}
