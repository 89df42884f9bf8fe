# SPDX-License-Identifier: Apache-2.0
"""Entries of offloaded ledgers, read through pyarrow's file systems: ranges, requests, failures, deadlines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from bk_core.errors import (
    ClientClosedError,
    CorruptOffloadError,
    InvalidArgumentError,
    OffloadMissingError,
    OffloadUnavailableError,
)
from bk_core.pulsar.model.offload import OffloadedCopy
from bk_core.pulsar.offloaded import source, storage
from bk_core.pulsar.offloaded.access import OffloadStorage
from bk_core.pulsar.offloaded.source import OffloadedReads
from tests.kit.offloaded import offload, put

ENTRIES = [bytes([65 + n]) * (n * 7) for n in range(20)]
TOPIC = "persistent://public/default/orders"


COPY = OffloadedCopy("aws-s3", ("a-ledger-7",), 19, "cold")


@dataclass(frozen=True)
class Wanted:
    """A range of a ledger that has a copy."""

    first: int
    last: int
    copy: OffloadedCopy | None = COPY
    ledger_id: int = 7
    topic: str = TOPIC


class Failing:
    """As much of a file system as is used. It opens local files; ``fail`` is called before each."""

    def __init__(self, fail: Callable[[str], object]) -> None:
        self._fail, self._local = fail, fs.LocalFileSystem()

    def open_input_file(self, path: str) -> Any:
        self._fail(path)
        return self._local.open_input_file(path)


def failing(fail: Callable[[str], object], folder: Path, **how: Any) -> OffloadedReads:
    return OffloadedReads(OffloadStorage(filesystem=Failing(fail), root=str(folder), **how))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path, "a-ledger-7", offload({7: ENTRIES}, 500))
    return tmp_path


@pytest.fixture
def reads(folder: Path) -> Iterator[OffloadedReads]:
    made = OffloadedReads(OffloadStorage(uri=folder.as_uri()))
    yield made
    made.close()


def read(reads: OffloadedReads, wanted: Wanted) -> list[bytes]:
    found, at = list[bytes](), wanted.first
    for batch in reads.batches(wanted):
        assert (batch.ledger_id, batch.first_entry_id) == (wanted.ledger_id, at)
        at = batch.last_entry_id + 1
        found += batch.to_list()
    return found


@pytest.mark.parametrize("request_bytes", [100, 8 << 20])
async def test_any_range_is_read_with_and_without_a_loop(
    reads: OffloadedReads, monkeypatch: pytest.MonkeyPatch, request_bytes: int
) -> None:
    monkeypatch.setattr(source, "REQUEST_BYTES", request_bytes)
    for first in range(20):
        for last in range(first, 20):
            wanted = Wanted(first, last)
            assert read(reads, wanted) == ENTRIES[first : last + 1]
    found = [entry async for batch in reads.read(Wanted(3, 17)) for entry in batch.to_list()]
    assert found == ENTRIES[3:18]


def test_segments_of_a_streaming_offloader_are_joined(tmp_path: Path) -> None:
    whole, _ = offload({7: ENTRIES[:12], 8: ENTRIES}, 500, streaming=True)
    for name, ledgers in (("a", {6: ENTRIES, 7: ENTRIES[:12]}), ("b", {8: ENTRIES})):
        put(tmp_path, name, offload(ledgers, 500, streaming=True))
    copy = OffloadedCopy("S3", ("a",), 11, "cold")
    reads = OffloadedReads(OffloadStorage(filesystem=fs.LocalFileSystem(), root=str(tmp_path)))
    assert read(reads, Wanted(2, 11, copy)) == ENTRIES[2:12]
    with pytest.raises(CorruptOffloadError, match="names ledger 7 0 times"):
        read(reads, Wanted(2, 11, replace(copy, objects=("b",))))
    with pytest.raises(CorruptOffloadError, match="entries 0 to 15"):
        read(reads, Wanted(2, 15, replace(copy, objects=("a", "a"), last_entry=15)))
    assert whole


def test_index_and_data_of_a_ledger_are_opened_once(folder: Path) -> None:
    opened = list[str]()
    reads = failing(opened.append, folder)
    for first in range(5):
        assert read(reads, Wanted(first, 19)) == ENTRIES[first:]
    assert sorted(Path(each).name for each in opened) == ["a-ledger-7", "a-ledger-7-index"]


@pytest.mark.parametrize("name", ["a-ledger-7", "a-ledger-7-index"])
def test_missing_object_is_named(reads: OffloadedReads, folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(OffloadMissingError, match=rf"ledger 7 of {TOPIC}.*{folder}/{name};"):
        read(reads, Wanted(0, 19))


def test_folder_that_is_not_mounted_is_not_taken_for_missing_objects(folder: Path) -> None:
    reads = OffloadedReads(OffloadStorage(uri=(folder / "away").as_uri()))
    with pytest.raises(OffloadUnavailableError, match="no bucket or folder"):
        read(reads, Wanted(0, 19))


@pytest.mark.parametrize("name", ["a-ledger-7", "a-ledger-7-index"])
@pytest.mark.parametrize("size", [0, 20, -1])
def test_object_that_is_cut_off_is_named(reads: OffloadedReads, folder: Path, name: str, size: int) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:size])
    with pytest.raises(CorruptOffloadError, match=rf"ledger 7 of {TOPIC}.*{folder}/{name}: "):
        read(reads, Wanted(0, 19))


def test_damage_is_an_error_after_the_entries_before_it(reads: OffloadedReads, folder: Path) -> None:
    data = (folder / "a-ledger-7").read_bytes()
    block = source.parse_index((folder / "a-ledger-7-index").read_bytes(), 7)
    begin = int(block.offsets[2])
    (folder / "a-ledger-7").write_bytes(data[: begin + 132] + b"\xff" + data[begin + 133 :])
    batches = reads.batches(Wanted(0, 19))
    found = [entry_id for _ in range(2) for entry_id in next(batches).entry_ids().tolist()]
    assert found == list(range(int(block.firsts[2])))
    with pytest.raises(CorruptOffloadError, match=rf"ledger 7 of {TOPIC}.*a-ledger-7: entry {len(found)} has"):
        next(batches)


def test_object_that_shrinks_under_a_read_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "REQUEST_BYTES", 100)
    reads = OffloadedReads(OffloadStorage(uri=folder.as_uri()))
    batches = reads.batches(Wanted(0, 19))
    next(batches)
    data = (folder / "a-ledger-7").read_bytes()
    with open(folder / "a-ledger-7", "r+b") as file:
        file.truncate(len(data) // 2)
    with pytest.raises(CorruptOffloadError, match="cut off"):
        list(batches)


def test_failures_that_pass_are_tried_again_and_others_are_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "BACKOFF_S", 0.001)

    def failing_with(errors: list[OSError], calls: list[str]) -> OffloadedReads:
        def fail(path: str) -> None:
            calls.append(path)
            if errors:
                raise errors.pop()

        return failing(fail, folder)

    calls = list[str]()
    errors = [OSError("AWS Error NETWORK_CONNECTION"), OSError("AWS Error SLOW_DOWN")] * 2
    assert read(failing_with(errors, calls), Wanted(0, 19)) == ENTRIES
    assert len(calls) == 6
    with pytest.raises(OffloadUnavailableError, match="SLOW_DOWN"):
        read(failing_with([OSError("AWS Error SLOW_DOWN")] * 100, []), Wanted(0, 19))
    calls = []
    refusing = failing_with([OSError("AWS Error ACCESS_DENIED during HeadObject operation")] * 2, calls)
    with pytest.raises(OffloadUnavailableError, match="refused to read ledger 7"):
        read(refusing, Wanted(0, 19))
    assert len(calls) <= 2


async def test_storage_that_does_not_answer_ends_the_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MARGIN_S", 0.1)
    free = threading.Event()

    def fail(_: str) -> None:
        free.wait(20)

    reads = failing(fail, folder, timeout_s=0.05)
    try:
        batches, awaited = reads.batches(Wanted(0, 19)), reads.read(Wanted(0, 19))
        with pytest.raises(OffloadUnavailableError, match="a-ledger-7: no answer within"):
            next(batches)
        with pytest.raises(OffloadUnavailableError, match="no answer within"):
            await anext(awaited)
    finally:
        free.set()
        reads.close()


async def test_storage_that_is_slow_to_load_does_not_stop_the_loop(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of storages ask the network for regions and credentials while they are made."""
    free = threading.Event()
    made = storage._place

    def slow(copy: OffloadedCopy, how: OffloadStorage) -> tuple[fs.FileSystem, str]:
        free.wait(20)
        return made(copy, how)

    monkeypatch.setattr(storage, "_place", slow)
    monkeypatch.setattr(source, "MARGIN_S", 0.1)
    reads = OffloadedReads(OffloadStorage(uri=folder.as_uri(), timeout_s=0.05))
    try:
        with pytest.raises(OffloadUnavailableError, match="no answer within"):
            await anext(reads.read(Wanted(0, 19)))
    finally:
        free.set()
        reads.close()


async def test_read_that_is_under_way_when_its_client_is_closed_ends_with_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "REQUEST_BYTES", 100)
    reads = OffloadedReads(OffloadStorage(uri=folder.as_uri()))
    for _ in range(2):  # it may be used again
        blocking, awaited = reads.batches(Wanted(0, 19)), reads.read(Wanted(0, 19))
        next(blocking)
        await anext(awaited)
        reads.close()
        with pytest.raises(ClientClosedError, match="ledger 7"):
            list(blocking)
        with pytest.raises(ClientClosedError, match="ledger 7"):
            _ = [batch async for batch in awaited]
        assert read(reads, Wanted(0, 19)) == ENTRIES
    reads.close()


def test_settings_that_cannot_be_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"read_priority": "both"},
        {"timeout_s": 0},
        {"access_key": "a"},
        {"session_token": "a"},
        {"uri": "file:///x", "endpoint": "http://h"},
        {"uri": "file:///x", "access_key": "a", "secret_key": "b"},
        {"uri": "file:///x", "filesystem": fs.LocalFileSystem()},
        {"uri": "s3://key:secret@bucket"},
        {"endpoint": "host:9000"},
    ]
    for each in wrong:
        with pytest.raises(InvalidArgumentError) as caught:
            OffloadStorage(**each)
        assert "secret@" not in str(caught.value)
    with pytest.raises(InvalidArgumentError, match="cannot be used"):
        read(OffloadedReads(OffloadStorage(uri="gopher://x")), Wanted(0, 19))
    assert "hush" not in repr(OffloadStorage(access_key="a", secret_key="hush", session_token="hush"))


def test_credentials_come_from_lines_as_in_the_file_of_aws() -> None:
    text = "[default]\n# mine\naws_access_key_id = a\nAWS_SECRET_ACCESS_KEY=b=c\n\naws_session_token=t\n"
    found = OffloadStorage(endpoint="http://h").with_credentials(text, "file x")
    assert (found.access_key, found.secret_key, found.session_token, found.endpoint) == ("a", "b=c", "t", "http://h")
    azure = OffloadStorage().with_credentials("azure_account=acc\nazure_key=k", "file x")
    assert (azure.azure_account, azure.azure_key) == ("acc", "k")
    for wrong in ("hush", "access_key=hush\naccess_key=hush", "region=hush"):
        with pytest.raises(InvalidArgumentError, match="file x") as caught:
            OffloadStorage().with_credentials(wrong, "file x")
        assert "hush" not in str(caught.value)


def test_storages_are_made_for_each_driver_that_pyarrow_has() -> None:
    """Making one asks nobody, so that a wrong endpoint is found at the first request."""
    how = OffloadStorage(access_key="a", secret_key="b", azure_account="acc", azure_key="a2V5")
    for driver, kind in (
        ("aws-s3", "S3FileSystem"),
        ("S3", "S3FileSystem"),
        ("aliyun-oss", "S3FileSystem"),
        ("google-cloud-storage", "GcsFileSystem"),
        ("azureblob", "AzureFileSystem"),
    ):
        copy = OffloadedCopy(driver, ("a",), 0, "cold", "eu-1", "http://127.0.0.1:9")
        found, root = storage._place(copy, how)
        assert (type(found).__name__, root) == (kind, "cold")
