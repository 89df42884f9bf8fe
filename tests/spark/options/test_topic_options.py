# SPDX-License-Identifier: Apache-2.0
"""Options of topics: names, positions, and contradictions that the driver refuses."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import BookKeeperError
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.topic_name import TopicName
from bk_spark.options.offsets import EARLIEST, LATEST
from bk_spark.options.options import BkOptions, Use, parse_options
from bk_spark.options.selection import TopicSelection
from bk_spark.options.topic_options import TOPIC_ONLY, TopicOptions, parse_topic_bound

NAME = "persistent://public/default/orders"
URI = {"metadataserviceuri": "zk://localhost:2181/ledgers"}
SELECTION = TopicSelection((NAME,))
PARTITION = TopicName.parse(f"{NAME}-partition-3")


def parse(use: Use | None = Use.READ, **options: Any) -> BkOptions:
    return parse_options({**URI, "topic": "orders", **options}, use)


def topics(use: Use | None = Use.READ, **options: Any) -> TopicOptions:
    found = parse(use, **options).topics
    assert found is not None
    return found


def refusal(use: Use | None = Use.READ, **options: Any) -> str:
    with pytest.raises(BookKeeperError) as caught:
        parse_options({**URI, **options}, use)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("[BK_")
    return text


def test_topics_have_full_names_in_order_each_once() -> None:
    assert parse().selection == SELECTION
    several = parse_options({**URI, "topics": "b, t/n/a,b,persistent://t/n/a"}, Use.READ).selection
    assert several == TopicSelection(("persistent://public/default/b", "persistent://t/n/a"))
    assert parse_options({**URI, "path": NAME}, Use.READ).selection == SELECTION
    assert parse_options({**URI, "paths": json.dumps([NAME, NAME])}, Use.READ).selection == SELECTION
    assert "has no ledgers" in refusal(topic="non-persistent://public/default/x")
    assert "Pulsar 1" in refusal(topic="persistent://t/cluster/n/x")
    assert "cannot be read together" in refusal(paths=json.dumps([NAME, "log"]))


def test_a_pattern_is_of_one_namespace() -> None:
    def pattern(text: str) -> tuple[str, str | None]:
        found = parse_options({**URI, "topicsPattern": text}, Use.READ).selection
        assert isinstance(found, TopicSelection)
        return found.namespace, found.pattern

    assert pattern("persistent://t/ns/*") == ("t/ns", ".*")
    assert pattern("t/ns/ord(ers|s)?") == ("t/ns", "ord(ers|s)?")
    assert pattern("ord.*") == ("public/default", "ord.*")
    for wrong in ("persistent://t/.*/x", "t/ns", "t//x", "(", "non-persistent://t/ns/x", ""):
        assert "topicsPattern" in refusal(topicsPattern=wrong)


def test_a_selection_contradicts_no_other() -> None:
    assert "more than one thing is selected" in refusal(topic="a", path="events")
    assert "more than one thing is selected" in refusal(topic="a", topics="b")
    for option in TOPIC_ONLY:
        given_value = {"isolation": "read_committed", "readCompacted": "true", "encryptedMessages": "raw"}
        given_value["offloadedReadPriority"] = "bookkeeper-first"
        text = refusal(path="events", **{option: given_value.get(option, "x")})
        assert f"option {option} is for topics of Pulsar" in text


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("readMode", "closedOnly"), ("startingEntryId", "1"), ("endingEntryId", "1"), ("codec", "arrow")),
        *(("digestType", "CRC32C"), ("corruptEntries", "null"), ("pulsarAdminTokenPath", "/x")),
        *(("subscription", " "), ("isolation", "serializable"), ("pulsarPrivateKeys.path", "/none")),
        *(("startingOffsets", "latest"), ("endingOffsets", "earliest"), ("startingTimestamp", "1700000000")),
    ],
)
def test_an_option_that_does_not_apply_is_refused_by_name(option: str, value: str) -> None:
    assert option.removesuffix("TokenPath") in refusal(topic="orders", **{option: value})


def test_there_is_one_start_and_one_end() -> None:
    ways = {"startingOffsets": "earliest", "startingTimestamp": "2026-01-31T12:00:00Z", "subscription": "s"}
    for first in ways:
        for second in ways:
            if first < second:
                assert "exclude each other" in refusal(topic="a", **{first: ways[first], second: ways[second]})
    assert "exclude each other" in refusal(topic="a", endingOffsets="latest", endingTimestamp="1700000000000")


def test_a_stream_begins_at_the_end_unless_it_is_said_otherwise() -> None:
    assert topics(Use.STREAM).starting.everywhere == LATEST
    assert topics(Use.STREAM, subscription="s").starting.everywhere == EARLIEST
    assert topics(Use.STREAM, startingTimestamp="1700000000000").starting.everywhere == EARLIEST
    assert topics(Use.STREAM, startingOffsets="earliest").starting.everywhere == EARLIEST
    assert topics().starting.everywhere == EARLIEST
    assert "readCompacted is not for a stream" in refusal(Use.STREAM, topic="a", readCompacted="true")


def test_writing_to_a_topic_is_refused_by_name() -> None:
    text = refusal(Use.WRITE, topic="orders")
    assert "does not write to topics of Pulsar" in text
    assert NAME in text
    assert parse_options({**URI, "path": "events", "isolation": "read_committed"}, Use.WRITE).topics is None


def test_private_keys_are_read_on_the_driver_and_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(b"PEM\n")
    assert topics(**{"pulsarPrivateKeys.path": str(file)}).private_keys == {"*": b"PEM"}
    both = topics(pulsarPrivateKeysPath=f"a={file}, b={file}")
    assert both.private_keys == {"a": b"PEM", "b": b"PEM"}
    assert "PEM" not in repr(both)
    assert pickle.loads(pickle.dumps(both)) == both


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.sampled_from([-1, 3]),
    st.integers(-1, 100),
    st.booleans(),
)
def test_each_form_of_a_position_means_the_same(
    ledger_id: int, entry_id: int, partition: int, batch_index: int, serialized: bool
) -> None:
    wanted = MessageId(ledger_id, entry_id, partition, batch_index)
    place = list(wanted.serialize()) if serialized else str(wanted)
    text = json.dumps({"orders-partition-3": place})
    assert parse_topic_bound("startingOffsets", text, SELECTION).at(PARTITION) == wanted
    short = json.dumps({str(PARTITION): str(EntryPosition(ledger_id, entry_id))})
    assert parse_topic_bound("startingOffsets", short, SELECTION).at(PARTITION) == MessageId(ledger_id, entry_id)


@pytest.mark.parametrize(
    "place",
    ["", "1", "1:", "1:2:3:4:5", "-1:0", "x:y", 5, None, True, [], [300], [1, 2, 3], {"0": "1:2"}, "1:2:4", 1.5],
)
def test_what_is_no_position_is_refused(place: Any) -> None:
    with pytest.raises(BookKeeperError, match="startingOffsets"):
        parse_topic_bound("startingOffsets", json.dumps({str(PARTITION): place}), SELECTION)


def test_positions_are_of_selected_topics_each_once() -> None:
    for text in ('{"other":"1:2"}', '{"orders":"1:2","public/default/orders":"1:2"}', "[]", "{", "soon"):
        with pytest.raises(BookKeeperError, match="startingOffsets"):
            parse_topic_bound("startingOffsets", text, SELECTION)
    words = parse_topic_bound("startingOffsets", '{"orders":"latest"}', SELECTION)
    assert words.at(TopicName.parse("orders")) == LATEST
