# SPDX-License-Identifier: Apache-2.0
"""The messages of many batches found at once are those that a walk through each batch finds."""

from __future__ import annotations

import cProfile
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from bk_core.pulsar.messages import batches, many_batches
from bk_core.pulsar.messages.row_maker import RowMaker
from bk_core.pulsar.messages.rows import schema_of
from bk_core.pulsar.model.plan import Bounds
from bk_core.pulsar.model.topic_name import TopicName
from tests.kit import pulsar_entries as kit

SIZES = st.integers(0, 300)
TEXTS = st.text(max_size=5)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message as clients write it; sometimes its payload looks like messages, or its metadata are unusual."""
    payload = draw(st.one_of(st.binary(max_size=40), SIZES.map(bytes), st.just(kit.single(b"inside") * 3)))
    key = draw(st.one_of(st.none(), st.binary(max_size=4), st.just(b"k" * 300)))
    properties = draw(st.dictionaries(TEXTS, TEXTS, max_size=3))
    made = kit.single(payload, properties, sequence_id=draw(SIZES), **({} if key is None else {"partition_key": key}))
    if draw(st.integers(0, 9)) == 0:  # the sequence id comes first
        metadata = b"\x40\x05" + kit.proto.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        made = struct.pack(">I", len(metadata)) + metadata + payload
    return made


Batches = tuple[Any, Any, Any, Any]
Bodies = list[tuple[bytes, int]]


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, int]:
    """The body of a batch, and the number of its messages, which may be wrong."""
    made = draw(st.lists(messages(), max_size=6))
    wrong = draw(st.integers(0, 9))
    body = b"".join(made) + (b"more" if wrong == 1 else b"")
    return body[:-1] if wrong == 2 else body, len(made) + (wrong == 3) - (wrong == 4)


def placed(all_bodies: Bodies, order: list[int]) -> Batches:
    """Put the bodies into one buffer in this order, with gaps. Return the buffer, and the columns of the batches."""
    buffer, begins = b"gap", [0] * len(all_bodies)
    for k in order:
        begins[k] = len(buffer)
        buffer += all_bodies[k][0] + b"\0\0\0\x02\x18\0"[: k % 7]
    begin = np.array(begins, dtype=np.int64)
    size = np.array([len(body) for body, _ in all_bodies], dtype=np.int64)
    return np.frombuffer(buffer, np.uint8), begin, begin + size, np.array([n for _, n in all_bodies], dtype=np.int64)


def check(made: Batches) -> int:
    """Compare each batch that was found with a walk through it. Return how many were found."""
    data, begin, end, counts = made
    found = many_batches.find(data, begin, end, counts)
    for k in np.flatnonzero(found.there).tolist():
        walked = batches.walk(data.data, int(begin[k]), int(end[k]), int(counts[k]))
        here = slice(found.first[k], found.first[k] + counts[k])
        columns = found.metadata_begin[here], found.metadata_end[here], found.payload_bytes[here]
        assert [each.tolist() for each in columns] == [each.tolist() for each in walked]
    assert found.metadata_begin.size == counts[found.there].sum()
    return int(found.there.sum())


def check_both(made: Batches) -> None:
    """Check the batches three times: small messages are guessed, then the loop through each batch finds all messages,
    then the steps through all batches do."""
    check(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_batches, "MESSAGE_BYTES_MAX", 0)
        by_loop = check(made)
        patch.setattr(many_batches, "_TOGETHER_MIN", 1)
        assert check(made) >= by_loop - 1, "only the last message of all may be too short for a step"


def parsed(body: bytes, count: int) -> list[tuple[int, int, int]] | None:
    """Return what a walk must return, by protobuf's own parser; None if the body is not such a batch."""
    found, at = list[tuple[int, int, int]](), 0
    for _ in range(count):
        if at + 4 > len(body):
            return None
        stop = at + 4 + int.from_bytes(body[at : at + 4], "big")
        metadata = body[at + 4 : stop]
        try:
            size = kit.proto.SingleMessageMetadata.FromString(metadata).payload_size
        except DecodeError:
            return None
        if not size and b"\x18\x00" not in metadata:  # the field is required
            return None
        found.append((at + 4, stop, size))
        at = stop + size
        if at > len(body):
            return None
    return found


@given(
    st.one_of(
        bodies(),
        st.lists(SIZES.map(lambda n: kit.single(bytes(100 * n))), max_size=4).map(
            lambda all_: (b"".join(all_), len(all_))
        ),
    )
)
def test_a_walk_finds_what_protobuf_parses(made: tuple[bytes, int]) -> None:
    body, count = made
    wanted = parsed(body, count)
    data = memoryview(b"before" + body + b"\x18\x00\x18\x00")
    if wanted is None or count < 0:
        with pytest.raises(ValueError, match=r"a batch|cannot be"):
            batches.walk(data, 6, 6 + len(body), count)
        return
    walked = batches.walk(data, 6, 6 + len(body), count)
    assert [(a - 6, b - 6, n) for a, b, n in zip(*(each.tolist() for each in walked), strict=True)] == wanted


@pytest.mark.long
@given(st.lists(bodies(), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_found_messages_are_those_of_a_walk(all_bodies: Bodies, dice: random.Random) -> None:
    order = list(range(len(all_bodies)))
    dice.shuffle(order)
    check_both(placed(all_bodies, order))


@given(st.lists(st.tuples(st.binary(max_size=200), st.integers(-5, 40)), min_size=1, max_size=5))
def test_any_bytes_are_found_only_as_a_walk_finds_them(all_bodies: Bodies) -> None:
    check_both(placed(all_bodies, list(range(len(all_bodies)))))


@pytest.mark.parametrize(
    "message",
    [
        lambda n: kit.single(bytes(n % 70)),
        lambda n: kit.single(b"x" * (n + 1), {"name": str(n)}, sequence_id=n, partition_key=b"key"),
        lambda n: kit.single(b"y", {"name": "v" * 400}, event_time=1_700_000_000_000 + n),
    ],
)
def test_usual_batches_of_all_sizes_are_found(message: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_batches, "_BLOCK_BYTES", 1000)  # messages begin at the end of a block, too
    all_bodies = [(b"".join(message(n) for n in range(count)), count) for count in (1, 2, 150, 3)]
    assert check(placed(all_bodies, [2, 0, 3, 1])) == 4


@pytest.mark.parametrize("key", [None, b"key"])
def test_many_batches_are_found_whether_steps_can_read_them_or_not(key: bytes | None) -> None:
    more = {} if key is None else {"partition_key": key}
    all_bodies = [(b"".join(kit.single(b"x" * (8 * k), **more) for _ in range(k)), k) for k in range(1, 60)]
    made = placed(all_bodies, list(range(59)))
    assert check(made) == 59
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_batches, "_STEP_BYTES", 0)
        assert check(made) == 59


def test_payloads_that_look_like_messages_are_not_taken_for_them() -> None:
    nested = b"".join(kit.single(kit.single(b"b" * n) * 2) for n in range(40)), 40
    zeros = b"".join(kit.single(bytes(n)) for n in (10, 18, 24, 0, 3)), 5  # 24 is a size that looks like its field
    assert check(placed([nested, zeros], [0, 1])) == 2


def test_unusual_batches_are_left_to_the_walk_and_others_are_found() -> None:
    usual = kit.single(b"a") * 5, 5
    strange = struct.pack(">I", 4) + b"\x40\x05\x18\x00", 1  # the sequence id comes first
    assert check(placed([usual, strange, usual], [0, 1, 2])) == 2


def test_payloads_full_of_messages_take_little_memory() -> None:
    body = kit.single(kit.single(b"") * 40)
    assert check(placed([(body * 5, 5)], [0])) == 0


def test_no_function_is_called_for_each_message() -> None:
    batch = kit.batch_entry([kit.single(b"x" * 100, sequence_id=n) for n in range(1000)])
    maker, entries = RowMaker(TopicName.parse("t"), schema_of(None)), kit.ledger([batch] * 20)

    def rows() -> int:
        return sum(each.num_rows for each in maker.rows(maker.heads(entries), Bounds()))

    assert rows() == 20_000  # the first call imports what Arrow needs
    profile = cProfile.Profile()
    profile.runcall(rows)
    calls = sum(each.callcount for each in profile.getstats())
    assert calls < 1_750, "it grew by more than a tenth"


@pytest.fixture(params=[many_batches._TOGETHER_MIN, 1], ids=["loop", "steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way in which large messages of a few batches are found."""
    monkeypatch.setattr(many_batches, "_TOGETHER_MIN", request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("payload", [many_batches.MESSAGE_BYTES_MAX, 2000, (1 << 14) - 1])
def test_large_messages_are_found(payload: int) -> None:
    usual = b"".join(kit.single(bytes(payload - n), sequence_id=n) for n in range(300)), 300
    short = kit.single(b"") + kit.single(bytes(payload)) + kit.single(b"x"), 3
    assert check(placed([usual, short, usual], [1, 2, 0])) == 3


@pytest.mark.usefixtures("way")
def test_large_messages_that_the_loop_does_not_know_are_left_to_the_walk() -> None:
    usual, large = kit.single(bytes(2000)), kit.single(bytes(1 << 14))
    keyed, cut = kit.single(bytes(2000), partition_key=b"k"), usual[:-1]
    short = struct.pack(">IBH", 1, 0x18, 0x0A00) + bytes(9)  # its metadata end before the size of its payload
    long = struct.pack(">IBH", 2, 0x18, 0x8001) + bytes(130)  # they end within the size of its payload
    bodies = (usual + large, usual * 2, usual + keyed, usual + cut, usual + short, usual + long)
    assert check(placed([(body, 2) for body in bodies], list(range(6)))) == 1


def test_the_loop_keeps_a_bounded_number_of_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "STEPS_KEPT_MAX", 10)
    steps, made = batches.Steps(), b"".join(kit.single(bytes(1000 + n)) for n in range(50))
    begins = batches.begins(memoryview(made), 0, len(made), 50, steps)
    assert begins is not None
    assert begins[-1] == len(made)
    assert len(steps) == 10
