# SPDX-License-Identifier: Apache-2.0
"""Positions outside the cluster: canonical JSON, the short form, and logs that are no longer the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_core.errors import InvalidArgumentError, LogOverwrittenError, LogRecreatedError
from bk_core.logs.model.head import LogHead
from bk_core.logs.model.position import (
    LogPosition,
    StreamOffset,
    check_position,
    decode_offset,
    encode_offset,
)

GOLDEN = Path(__file__).parents[2] / "golden"
UUID = "12345678-9abc-def0-1234-56789abcdef0"
CLUSTER = "5f5a1e5c-0000-4000-8000-000000000001"
OF_LOG = StreamOffset(CLUSTER, logs={"events": LogPosition(UUID, 0, 1000234)})
OF_LEDGERS = StreamOffset(CLUSTER, ledgers={9: 0, 17: 24, 100: 5})


@pytest.mark.rule("N7")
@pytest.mark.parametrize(("offset", "name"), [(OF_LOG, "stream-offset-log"), (OF_LEDGERS, "stream-offset-ledgers")])
def test_golden_positions_are_written_and_read(offset: StreamOffset, name: str) -> None:
    text = (GOLDEN / f"{name}.json").read_text().rstrip("\n")
    assert encode_offset(offset) == text
    assert decode_offset(text) == offset


@pytest.mark.rule("N7")
def test_equal_positions_have_equal_text_whatever_the_order_they_were_made_in() -> None:
    shuffled = StreamOffset(CLUSTER, ledgers={100: 5, 17: 24, 9: 0})
    assert encode_offset(shuffled) == encode_offset(OF_LEDGERS)
    assert " " not in encode_offset(OF_LOG)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "17",
        '{"events":1000234}',
        encode_offset(OF_LOG).replace('"v":1', '"v":2'),
        encode_offset(OF_LOG).replace('"v":1', '"v":1,"x":1'),
        encode_offset(OF_LOG).replace("1000234", '"1000234"'),
        encode_offset(OF_LOG).replace("1000234", "1000234.0"),
        encode_offset(OF_LOG).replace("1000234", "-1"),
        encode_offset(OF_LOG).replace("1000234", "true"),
        encode_offset(OF_LOG).replace("1000234", str(2**63)),
        encode_offset(OF_LOG).replace(f'"{UUID}"', "7"),
        encode_offset(OF_LEDGERS).replace('"17"', '"017"'),
        encode_offset(OF_LEDGERS).replace('"17"', '"x"'),
    ],
)
def test_what_is_no_position_of_ours_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        decode_offset(text)


@pytest.mark.rule("N7")
def test_a_position_in_a_log_that_was_made_again_or_overwritten_is_noticed() -> None:
    head = LogHead(uuid=UUID, epoch=3, start_offset=50, next_offset=60)
    assert check_position(LogPosition(UUID, 3, 55), head, name="events") == 55
    with pytest.raises(LogRecreatedError):
        check_position(LogPosition(UUID.replace("1", "2"), 3, 55), head, name="events")
    with pytest.raises(LogOverwrittenError, match="epoch 2"):
        check_position(LogPosition(UUID, 2, 20), head, name="events")
