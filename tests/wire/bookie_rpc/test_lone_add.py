# SPDX-License-Identifier: Apache-2.0
"""An add that comes alone is read as protobuf, and what reads bursts, would read it, or left to them."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.connection import lone_adds
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX
from bk_core.wire.bookie_rpc.runs import ADD, LONE_ADDS_MAX
from tests.kit.bookie_requests import add, read
from tests.kit.bookie_wire import KEY, as_expected

WIRES = [v3, v2]
NUMBERS = (0, 1, 127, 128, 16_383, 16_384, 2**21, 2**31, 2**32, 2**62, 2**63 - 1)
SIZES = (0, 1, 40, 60, 127, 128, 16_383, 16_384)


def entry(ledger_id: int, entry_id: int, size: int) -> bytes:
    ids = ledger_id.to_bytes(8, "big", signed=True) + entry_id.to_bytes(8, "big", signed=True)
    return (ids + random.Random(size).randbytes(size))[: max(size, 16)]


def usual(wire: ModuleType, txn: int = 300, ledger_id: int = 7, entry_id: int = 1000, size: int = 60) -> bytes:
    return add(3 if wire is v3 else 2, txn, (ledger_id, entry_id), entry(ledger_id, entry_id, size))


def is_lone(wire: ModuleType, data: bytes) -> bool:
    """Whether it is read as a lone add. If it is, then as what it is."""
    found = wire.lone_add(memoryview(data))
    if found is None:
        return False
    txn, ledger_id, entry_id, recovery, key, body = found
    row = ("AddRun", ADD, 0, txn, ledger_id, entry_id, bytes(body), len(body), 0, int(recovery), 0, key, len(key))
    version = 3 if wire is v3 else 2
    assert as_expected(data, answers=False, version=version) == ([row], len(data), False, version), data.hex()
    return True


@pytest.mark.rule("L6")
@pytest.mark.parametrize("wire", WIRES)
def test_adds_of_all_numbers_and_sizes_are_lone_ones(wire: ModuleType) -> None:
    for number in NUMBERS:
        assert is_lone(wire, usual(wire, txn=number))
        assert is_lone(wire, usual(wire, ledger_id=number))
        assert is_lone(wire, usual(wire, entry_id=number))
    for size in SIZES:
        assert is_lone(wire, usual(wire, size=size))


@pytest.mark.long
@pytest.mark.rule("L6")
@pytest.mark.parametrize("wire", WIRES)
def test_a_lone_add_of_which_any_byte_is_another_is_read_as_what_it_is_or_left(wire: ModuleType) -> None:
    made = usual(wire)
    lone = 0
    for at in range(len(made)):
        for value in range(256):
            lone += is_lone(wire, made[:at] + bytes((value,)) + made[at + 1 :])
    assert lone > 256 * (len(KEY) + 60), "key and entry may be anything"
    for end in range(len(made)):
        assert not is_lone(wire, made[:end])
    assert not is_lone(wire, made + b"\0")
    assert not is_lone(wire, made + made)


def test_what_is_no_normal_add_is_left() -> None:
    body = entry(7, 5, 60)
    for version, wire in ((3, v3), (2, v2)):
        for more in ({"recovery": True}, {"priority": 100}, {"deferred": version == 3, "recovery": version == 2}):
            assert wire.lone_add(memoryview(add(version, 1, (7, 5), body, **more))) is None
    for key in (b"", KEY[:19], KEY + b"x"):
        assert v3.lone_add(memoryview(add(3, 1, (7, 5), body, key=key))) is None
    for txn, ids in ((2**63, (7, 5)), (1, (-1, 5)), (1, (7, -1))):
        assert v3.lone_add(memoryview(add(3, txn, ids, body))) is None
    assert v3.lone_add(memoryview(usual(v2))) is v2.lone_add(memoryview(usual(v3))) is None


@pytest.mark.rule("L5")
@pytest.mark.parametrize("wire", WIRES)
def test_a_lone_add_has_the_limit_of_all_frames(wire: ModuleType) -> None:
    around = len(usual(wire, size=1 << 20)) - (1 << 20)
    assert is_lone(wire, usual(wire, size=FRAME_BYTES_MAX - around - 2))  # both lengths are a byte longer
    assert wire.lone_add(memoryview(usual(wire, size=FRAME_BYTES_MAX - around + 1))) is None


@pytest.mark.rule("L6")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("ledgers", [1, 5])
def test_adds_to_several_ledgers_are_read_as_each_of_them_and_the_rest_is_kept(wire: ModuleType, ledgers: int) -> None:
    """Unless there are more than 12 of one ledger, which are cheaper as columns."""
    most = ledgers * LONE_ADDS_MAX
    made = [usual(wire, txn=k, ledger_id=k % ledgers, entry_id=k, size=k * 10) for k in range(most + 2)]
    for count in range(1, most + 1):
        for rest in (b"", made[0][:3], made[1][:-1]):
            found = lone_adds(memoryview(b"".join(made[:count]) + rest), wire.lone_add)
            assert found == ([wire.lone_add(memoryview(each)) for each in made[:count]], len(b"".join(made[:count])))
    for count in (most + 1, most + 2):
        assert lone_adds(memoryview(b"".join(made[:count])), wire.lone_add) is None


@pytest.mark.parametrize("wire", WIRES)
def test_bytes_with_anything_but_adds_are_left(wire: ModuleType) -> None:
    one, reading = usual(wire), read(3 if wire is v3 else 2, 1, (7, 1))
    for each in ([one, reading], [reading, one], [], [one[:-1]], [one[:2]]):
        assert lone_adds(memoryview(b"".join(each)), wire.lone_add) is None, each
    too_long = (FRAME_BYTES_MAX + 1).to_bytes(4, "big")
    assert lone_adds(memoryview(too_long + one), wire.lone_add) is None
    assert lone_adds(memoryview(one + too_long), wire.lone_add) == ([wire.lone_add(memoryview(one))], len(one))
