# SPDX-License-Identifier: Apache-2.0
"""Whose data directory it is (RULES S8)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bk_core.errors import BookieIdentityError, DataDirectoryError
from bk_core.metadata.records import decode_cookie
from bookie_server.storage.disk.cookie import DataDirectory, Identity, decode_identity, encode_identity
from bookie_server.storage.start.replay import open_segments
from tests.sim.disk import SimDisk


def test_a_new_directory_gets_cookie_identity_and_a_new_incarnation(tmp_path: Path) -> None:
    one = DataDirectory.create(str(tmp_path / "a" / "b"), "b1:3181", "cluster-1")
    other = DataDirectory.create(str(tmp_path / "c"), "b1:3181", "cluster-1")
    assert one.identity.incarnation != other.identity.incarnation
    cookie = decode_cookie(one.cookie)
    assert (cookie.bookie_host, cookie.instance_id) == ("b1:3181", "cluster-1")
    assert cookie.ledger_dirs == (str(tmp_path / "a" / "b"),)
    assert (tmp_path / "a" / "b" / "VERSION").read_bytes() == one.cookie
    assert (tmp_path / "a" / "b" / "VERSION").read_bytes().startswith(b'5\nbookieHost: "b1:3181"\n')
    one.close()
    other.close()


@pytest.mark.rule("S8")
def test_the_incarnation_stays_and_the_boot_count_grows(tmp_path: Path) -> None:
    directory = DataDirectory.create(str(tmp_path), "b1:3181", "cluster-1")
    incarnation = directory.identity.incarnation
    for boot in range(1, 4):
        assert (directory.identity.incarnation, directory.identity.boot_count) == (incarnation, boot)
        assert directory.used_before == (boot > 1)
        open_segments(directory, segment_size_bytes=64 << 10)[1].close()
        directory.close()
        directory = DataDirectory.open(str(tmp_path), "b1:3181", "cluster-1")
    directory.close()


@pytest.mark.rule("S8")
def test_a_directory_of_another_bookie_or_cluster_is_refused(tmp_path: Path) -> None:
    DataDirectory.create(str(tmp_path), "b1:3181", "cluster-1").close()
    with pytest.raises(BookieIdentityError, match=r"another bookie.*b1:3181's.*start it with the bookie id b1:3181"):
        DataDirectory.open(str(tmp_path), "b2:3181", "cluster-1")
    with pytest.raises(BookieIdentityError, match=r"another cluster.*cluster-1.*metadata service URI"):
        DataDirectory.open(str(tmp_path), "b1:3181", "cluster-2")
    DataDirectory.open(str(tmp_path), "b1:3181", "cluster-1").close()


@pytest.mark.rule("S8")
def test_a_cookie_of_another_bookie_is_refused_beside_a_right_identity(tmp_path: Path) -> None:
    DataDirectory.create(str(tmp_path / "a"), "b1:3181", "cluster-1").close()
    DataDirectory.create(str(tmp_path / "b"), "b2:3181", "cluster-1").close()
    (tmp_path / "a" / "VERSION").write_bytes((tmp_path / "b" / "VERSION").read_bytes())
    with pytest.raises(BookieIdentityError):
        DataDirectory.open(str(tmp_path / "a"), "b1:3181", "cluster-1")
    (tmp_path / "a" / "VERSION").write_bytes(b"nonsense")
    with pytest.raises(DataDirectoryError):
        DataDirectory.open(str(tmp_path / "a"), "b1:3181", "cluster-1")


def test_a_directory_in_use_is_refused_until_it_is_closed(tmp_path: Path) -> None:
    directory = DataDirectory.create(str(tmp_path), "b1:3181", "cluster-1")
    with pytest.raises(DataDirectoryError, match="in use"):
        DataDirectory.open(str(tmp_path), "b1:3181", "cluster-1")
    directory.close()
    directory.close()
    DataDirectory.open(str(tmp_path), "b1:3181", "cluster-1").close()


@pytest.mark.rule("S8")
def test_a_directory_with_something_in_it_and_no_identity_is_never_taken_for_empty(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(DataDirectoryError, match="'photos'"):
        DataDirectory.create(str(tmp_path), "b1:3181", "cluster-1")
    with pytest.raises(DataDirectoryError, match="no identity"):
        DataDirectory.open(str(tmp_path), "b1:3181", "cluster-1")
    assert not DataDirectory.exists(str(tmp_path))


@pytest.mark.rule("S8")
def test_a_lost_identity_beside_segments_is_refused(tmp_path: Path) -> None:
    directory = DataDirectory.create(str(tmp_path), "b1:3181", "cluster-1")
    open_segments(directory, segment_size_bytes=64 << 10)[1].close()
    directory.close()
    (tmp_path / "IDENTITY").unlink()
    with pytest.raises(DataDirectoryError, match="not empty"):
        DataDirectory.create(str(tmp_path), "b1:3181", "cluster-1")


def test_a_directory_that_exists_is_not_created_again(tmp_path: Path) -> None:
    DataDirectory.create(str(tmp_path), "b1:3181", "cluster-1").close()
    with pytest.raises(DataDirectoryError, match="not empty"):
        DataDirectory.create(str(tmp_path), "b1:3181", "cluster-1")


def test_a_creation_cut_short_can_be_done_again(tmp_path: Path) -> None:
    DataDirectory.create(str(tmp_path), "b1:3181", "cluster-1").close()
    (tmp_path / "IDENTITY").rename(tmp_path / "IDENTITY.tmp")
    DataDirectory.create(str(tmp_path), "b1:3181", "cluster-1").close()
    DataDirectory.open(str(tmp_path), "b1:3181", "cluster-1").close()


def test_any_changed_byte_of_an_identity_is_noticed() -> None:
    identity = Identity("bookie-ö:3181", "cluster", "0f0e0d0c-0b0a-4908-8706-050403020100", 3)
    data = encode_identity(identity)
    assert decode_identity(data) == identity
    for at in range(len(data) - 1):
        bad = bytearray(data)
        bad[at] ^= 1
        with pytest.raises(DataDirectoryError):
            decode_identity(bytes(bad))
    for cut in range(len(data) - 1):
        with pytest.raises(DataDirectoryError):
            decode_identity(data[:cut])
    with pytest.raises(DataDirectoryError):
        decode_identity(json.dumps(["not", "an", "object"]).encode())


@pytest.mark.parametrize("damage", ["flipped", "cut", "refused", "cookie"])
def test_a_damaged_identity_or_cookie_is_named_with_what_to_do(damage: str) -> None:
    disk = SimDisk()
    first = DataDirectory.create("/data", "b1", "c1", files=disk)
    first.record_boot()
    first.close()
    path = "/data/VERSION" if damage == "cookie" else "/data/IDENTITY"
    if damage == "flipped":
        disk.flip_bit(path, 20)
    elif damage == "refused":
        disk.break_sector(path, 0)
    else:
        disk.truncate(path, 7)
    with pytest.raises(DataDirectoryError) as failure:
        DataDirectory.open("/data", "b1", "c1", files=disk)
    text = str(failure.value)
    assert path in text
    assert "bk bookie check /data" in text
    assert "--accept-loss" in text
    assert "not applied" in text


def test_a_path_that_is_a_file_is_an_error_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataDirectoryError):
        DataDirectory.create(str(tmp_path / "file"), "b1:3181", "cluster-1")


@pytest.mark.rule("S8")
def test_used_directory_opens_on_a_full_disk_and_its_boot_is_counted_later() -> None:
    disk = SimDisk()
    first = DataDirectory.create("/data", "b1", "c1", files=disk)
    first.record_boot()
    assert first.boot_recorded
    first.close()
    disk.faults.no_byte = True
    second = DataDirectory.open("/data", "b1", "c1", files=disk)
    second.record_boot()
    assert (second.identity.boot_count, second.boot_recorded) == (2, False)
    second.close()
    disk.faults.no_byte = False
    third = DataDirectory.open("/data", "b1", "c1", files=disk)
    third.record_boot()
    assert (third.identity.boot_count, third.boot_recorded) == (2, True)
    third.close()


def test_first_boot_needs_room() -> None:
    disk = SimDisk()
    directory = DataDirectory.create("/data", "b1", "c1", files=disk)
    disk.faults.no_byte = True
    with pytest.raises(DataDirectoryError):
        directory.record_boot()
