# SPDX-License-Identifier: Apache-2.0
"""Offloaded ledgers read over HTTP, by the S3 client of pyarrow: what it says of buckets and objects that are not there
or that it may not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bk_core.errors import OffloadMissingError, OffloadUnavailableError
from bk_core.pulsar.model.offload import OffloadedCopy
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.offloaded import storage
from bk_core.pulsar.offloaded.access import OffloadStorage
from bk_core.pulsar.offloaded.source import CopyRange, OffloadedReads
from tests.kit.offloaded import offload
from tests.kit.s3_endpoint import S3Endpoint

ENTRIES = [bytes([65 + n]) * (n * 7) for n in range(20)]
NAME = "0403-ledger-403"


@pytest.fixture
def s3() -> Iterator[S3Endpoint]:
    made = S3Endpoint("cold")
    data, index = offload({7: ENTRIES}, 500)
    made.objects = {f"cold/{NAME}": data, f"cold/{NAME}-index": index}
    try:
        yield made
    finally:
        made.close()


def reads(**how: Any) -> OffloadedReads:
    return OffloadedReads(OffloadStorage(access_key="me", secret_key="hush", region="eu-1", **how))


def read(by: OffloadedReads, s3: S3Endpoint, *, bucket: str = "cold", name: str = NAME, first: int = 0) -> list[bytes]:
    copy = OffloadedCopy("aws-s3", (name,), 19, bucket, "eu-1", s3.url)
    wanted = CopyRange(TopicName.parse("orders"), 7, first, 19, copy)
    return [entry for batch in by.batches(wanted) for entry in batch.to_list()]


def test_ledger_is_read_from_the_bucket_and_endpoint_of_the_record(s3: S3Endpoint) -> None:
    by = reads()
    assert read(by, s3) == ENTRIES
    assert read(by, s3, first=11) == ENTRIES[11:]
    assert s3.requests.count(f"HEAD cold/{NAME}") == 1


def test_bucket_that_is_not_there_is_not_taken_for_objects_that_are_not_there(s3: S3Endpoint) -> None:
    """A query with failOnDataLoss=false skips missing objects. A wrong name of a bucket must not make it skip all."""
    with pytest.raises(OffloadUnavailableError, match="no bucket or folder warm"):
        read(reads(), s3, bucket="warm")
    with pytest.raises(OffloadMissingError, match="cold/other"):
        read(reads(), s3, name="other")


def test_object_that_is_deleted_after_it_was_opened_is_missing(s3: S3Endpoint) -> None:
    by = reads()
    assert read(by, s3) == ENTRIES
    del s3.objects[f"cold/{NAME}"]
    began = len(s3.requests)
    with pytest.raises(OffloadMissingError, match=NAME):
        read(by, s3)
    assert len(s3.requests) - began <= 4, "it is not asked for again and again"


@pytest.mark.parametrize("after", [0, 3])
def test_refusal_is_told_at_once(s3: S3Endpoint, after: int) -> None:
    s3.fails = [200] * after + [403] * 20
    with pytest.raises(OffloadUnavailableError, match=r"refused to read ledger 7.*give credentials"):
        read(reads(), s3)
    assert len(s3.requests) <= after + 4


def test_numbers_in_the_names_of_objects_are_not_taken_for_a_refusal() -> None:
    where = f"When reading information for key '{NAME}' in bucket 'cold': "
    assert not storage.REFUSED.search(where + "AWS Error SLOW_DOWN during HeadObject operation: No response body")
    for refusal in (
        "AWS Error ACCESS_DENIED during HeadObject operation: No response body",
        "AWS Error UNKNOWN (HTTP status 403) during HeadObject operation: No response body",
        "google::cloud::Status(PERMISSION_DENIED: Permanent error, with a last message of no)",
        "GetProperties failed. Azure Error: [AuthenticationFailed] 403 Server failed to authenticate the request.",
    ):
        assert storage.REFUSED.search(where + refusal)
