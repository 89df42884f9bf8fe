# SPDX-License-Identifier: Apache-2.0
"""A broker that offloads ledgers. Its own offloader writes the objects, its clients read them through the broker, and
our rows come from the objects.

The driver is ``S3``, because ``aws-s3`` asks Amazon for the regions of its buckets. It takes its credentials from the
broker's environment.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bk_core.pulsar.offloaded.access import OffloadStorage
from tests.interop.jars import offloader
from tests.interop.steps import Steps
from tests.kit.pulsar_rows import base64_of
from tests.kit.s3_endpoint import S3Endpoint

if TYPE_CHECKING:
    from tests.interop.pulsar_topics import World

NAME = "persistent://public/default/offloaded"
REST = "persistent/public/default/offloaded"
BUCKET, KEY, SECRET = "cold", "ours", "hush"
ENVIRONMENT = {"ACCESS_KEY_ID": KEY, "ACCESS_KEY_SECRET": SECRET}
STORAGE = OffloadStorage(access_key=KEY, secret_key=SECRET)
BLOCK_BYTES = 5 << 20
"""The smallest size of a block that Pulsar accepts."""
WITHIN_S = 120.0


def settings(s3: S3Endpoint, path: Path) -> dict[str, str]:
    """Return the settings of a broker that offloads to this server."""
    return {
        "offloadersDirectory": str(offloader().parent),
        "narExtractionDirectory": str(path / "nar"),
        "managedLedgerOffloadDriver": "S3",
        "managedLedgerOffloadBucket": BUCKET,
        "managedLedgerOffloadRegion": "us-east-1",
        "managedLedgerOffloadServiceEndpoint": s3.url,
        "managedLedgerOffloadMaxBlockSizeInBytes": str(BLOCK_BYTES),
        "managedLedgerOffloadDeletionLagMs": "0",
    }


def offloaded(steps: Steps, world: World) -> None:
    """Read ledgers from object storage, first while bookies have them too, then when only the objects are left."""
    from tests.interop.pulsar_topics import compare

    with steps.step("offloaded by the broker, and read from object storage", go_on=True) as step:
        for kind, count in (("plain", 70), ("lz4", 300), ("chunked", 3), ("none", 300)):
            world.produce(NAME, kind, count)
        world.java.call(
            "transact", within_s=WITHIN_S, topic=NAME, count=60, batched=False, outcomes=["abort", "commit"]
        )
        before = world.ours(NAME)
        ledgers = _offload(world)
        blocks = sum(-(-len(each) // BLOCK_BYTES) for each in world.s3.objects.values() if len(each) > BLOCK_BYTES)
        assert blocks >= 2, "an object has only one block"
        read = [each for each in world.s3.requests if each.startswith("GET")]
        ours = world.ours(NAME, offload=STORAGE)
        assert len([each for each in world.s3.requests if each.startswith("GET")]) > len(read), (
            "our read read no object"
        )
        assert ours == before, "the rows differ from those that the bookies gave"
        step.found = compare(world.java_reads(NAME), ours) + f"; {len(ledgers)} ledgers"
        _keep(world, ledgers)
    with steps.step("offloaded, and deleted from the bookies", go_on=True) as step:
        _wait(lambda: not _are_there(world, ledgers), lambda: world.broker.admin("POST", f"{REST}/trim"))
        ours = world.ours(NAME, offload=STORAGE)
        assert ours == before
        assert ours == world.ours(
            NAME, offload=OffloadStorage(access_key=KEY, secret_key=SECRET, read_priority="bookkeeper-first")
        )
        step.found = compare(world.java_reads(NAME), ours)


def _offload(world: World) -> list[int]:
    """Offload all ledgers but the open one. Return their ids."""
    admin = world.broker.admin
    stats = json.loads(admin("GET", f"{REST}/internalStats"))
    ledger, entry = map(int, stats["lastConfirmedEntry"].split(":"))
    body = {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}
    admin("PUT", f"{REST}/offload", json.dumps(body).encode())

    def is_done() -> bool:
        said: Mapping[str, Any] = json.loads(admin("GET", f"{REST}/offload"))
        assert said["status"] != "ERROR", said
        return bool(said["status"] == "SUCCESS")

    _wait(is_done)
    stats = json.loads(admin("GET", f"{REST}/internalStats"))
    found = [int(each["ledgerId"]) for each in stats["ledgers"] if each["offloaded"]]
    assert len(found) == len(stats["ledgers"]) - 1, stats["ledgers"]
    return found


def _are_there(world: World, ledgers: list[int]) -> bool:
    return bool(set(ledgers) & set(world.bookkeeper.list_ledgers()))


def _keep(world: World, ledgers: list[int]) -> None:
    """Keep the objects of the first ledger, with the entries that the bookies have."""
    (data,) = (name for name in world.s3.objects if name.endswith(f"-ledger-{ledgers[0]}"))
    with world.bookkeeper.open_ledger(ledgers[0], recover=False) as reader:
        entries = [each for batch in reader.read(0, reader.last_add_confirmed) for each in batch.to_list()]
    objects = [base64_of(world.s3.objects[name]) for name in (data, f"{data}-index")]
    world.objects = {
        "ledgerId": ledgers[0],
        "data": objects[0],
        "index": objects[1],
        "entries": [base64.b64encode(each).decode() for each in entries],
    }


def _wait(is_done: Any, again: Any = None) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not is_done():
        assert time.monotonic() < deadline, "the condition was not true in time"
        if again is not None:
            again()
        time.sleep(0.3)
