# SPDX-License-Identifier: Apache-2.0
"""What ``bk topic explain`` says of every entry of a random topic, beside what a read shows."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bk_cli.explain.message_findings import explain_message
from bk_cli.explain.message_seen import parse_id, see_message
from bk_core.cluster.finding import Weight
from bk_core.pulsar.cluster import PulsarAccess
from bk_core.pulsar.lookup.nodes import SNAPSHOTS
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from tests.kit import pulsar_entries as kit
from tests.kit.amount import some
from tests.kit.pulsar_world import PulsarWorld, pulsar_world
from tests.pulsar.test_topic import NAME, marker, txn

CHUNKS = 3


def entries(dice: random.Random, count: int, open_ones: set[int], begun: dict[int, int]) -> list[bytes]:
    """Messages, batches, transactions with their markers, chunks of which some are missing, and damaged entries.
    ``open_ones`` are transactions without a marker, and ``begun`` the numbers of the next chunks, for the next call."""
    made = list[bytes]()
    for number in range(count):
        kind = dice.choice(("plain", "batch", "txn", "txn", "marker", "chunk", "chunk", "damaged"))
        if kind == "plain":
            made.append(kit.entry(b"%d" % number, compression=dice.choice((0, 3))))
        elif kind == "batch":
            made.append(kit.batch_entry([kit.single(b"%d" % each) for each in range(dice.randint(1, 3))]))
        elif kind == "txn":
            open_ones.add(number := dice.choice([*open_ones, len(open_ones) + dice.randint(1, 1000)]))
            made.append(txn(b"%d" % number, number))
        elif kind == "marker":
            ended = dice.choice(sorted(open_ones)) if open_ones else 0
            open_ones.discard(ended)
            made.append(marker(dice.choice((21, 21, 22)) if ended else 10, ended))
        elif kind == "chunk":
            which = dice.choice([*begun, dice.randint(1, 1000)])
            part = begun.pop(which, 0)
            if part + 1 < CHUNKS:
                begun[which] = part + 1
            if dice.random() < 0.9:
                made.append(kit.chunk(part, b"abc", total=9, uuid=b"%d" % which))
        else:
            made.append(b"\x00\x00\x00\xff")
    return made


async def shown(world: PulsarWorld) -> set[EntryPosition]:
    """The entries of the rows of a read; of a chunked message the first and the last one."""
    table = await world.topic(NAME).to_arrow(columns=["__messageId"], corrupt="skip")
    found = set[EntryPosition]()
    for each in map(MessageId.deserialize, table["__messageId"].to_pylist()):
        found |= {each.entry} | ({each.first_chunk} if each.first_chunk is not None else set())
    return found


@pytest.mark.parametrize("seed", range(some(40, few=4)))
async def test_an_entry_is_said_to_be_shown_if_a_read_shows_it(seed: int) -> None:
    dice = random.Random(seed)
    async with pulsar_world() as world:
        world.set(f"/managed-ledgers/public/default/persistent/{SNAPSHOTS}", b"")
        ledgers, open_ones, begun = list[tuple[int, int]](), set[int](), dict[int, int]()
        for number in range(3):
            content = entries(dice, dice.randint(1, 10), open_ones, begun)
            written: Any = await world.ledger(NAME, content, is_open=number == 2 and dice.random() < 0.5)
            ledgers.append((written.ledger_id, len(content)))
        rows = await shown(world)
        for ledger_id, count in ledgers:
            for entry_id in range(count):
                at = EntryPosition(ledger_id, entry_id)
                seen = await see_message(world.bookkeeper, NAME, parse_id(str(at)), PulsarAccess())
                first = explain_message(seen)[0]
                is_middle = seen.metadata is not None and 0 < seen.metadata.chunk_id < CHUNKS - 1
                if not is_middle:
                    assert (first.weight is Weight.FINE) == (at in rows), (at, first)
