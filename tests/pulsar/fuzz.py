# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.pulsar.fuzz --inputs N``: mutated entries of topics through everything that makes rows of them.

Each is rows or a typed error. ``test_hostile.py`` runs a part.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import resource
import sys
import time

from bk_core.errors import TopicError
from bk_core.pulsar.messages.decoder import DecodeOptions
from bk_core.pulsar.messages.row_maker import RowMaker
from bk_core.pulsar.messages.rows import TYPES, schema_of
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.plan import Bounds
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.model.transactions import Transactions
from tests.kit import pulsar_entries as kit

SCHEMA = schema_of(list(TYPES))
TOPIC = TopicName.parse(kit.TOPIC)
KINDS = tuple((many, compacted) for many in (1, 60, 200) for compacted in (False, True))
"""How many entries are read together, and whether they are those of a compacted ledger."""
LENIENT = DecodeOptions(corrupt="skip", encrypted="raw", message_bytes_max=1 << 20)


def seeds() -> list[bytes]:
    singles = [kit.single(b"v" * k, properties={"a": "b"}, partition_key=b"k", event_time=5) for k in range(9)]
    found = [kit.batch_entry(singles, compression=kind, checksum=False, broker={"index": 3}) for kind in range(5)]
    found.append(kit.entry(b"plain", properties={"k": "v"}, checksum=False, partition_key=b"x", ordering_key=b"y"))
    found.append(kit.entry(marker_type=22, txnid_most_bits=1, txnid_least_bits=2, checksum=False))
    found.append(
        kit.entry(b"abc", uuid=b"u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=6, checksum=False)
    )
    head = kit.proto.MessageMetadata(producer_name=b"p", publish_time=1, encryption_param=b"n" * 12)
    head.encryption_keys.add(key=b"client", value=b"wrapped")
    found.append(kit.framed(head, b"secret", checksum=False))
    return found


def mutated(data: bytes, dice: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(dice.choice((0, 1, 1, 2, 5))):
        if found:
            found[dice.randrange(len(found))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
    if dice.random() < 0.3:
        del found[dice.randrange(len(found) + 1) :]
    if dice.random() < 0.2:
        at = dice.randrange(len(found) + 1)
        found[at:at] = dice.randbytes(dice.randrange(6))
    return bytes(found)


def read(entries: list[bytes], options: DecodeOptions, *, compacted: bool = False) -> int:
    """Make rows of these entries, with all that goes before; returns how many."""
    maker = RowMaker(TOPIC, SCHEMA, options)
    heads = maker.heads(kit.ledger(entries), compacted=compacted)
    heads.note(Transactions())
    look_back = maker.missing(heads)
    if look_back is not None:
        look_back.add(heads)
        look_back.finish()
    return sum(batch.num_rows for batch in maker.rows(heads, Bounds()))


def round_of(number: int, kind: tuple[int, bool], options: DecodeOptions) -> int:
    """Read some mutated entries; returns how many."""
    (many, compacted), dice = kind, random.Random(f"{number} {kind}")
    originals = seeds()
    if compacted:
        originals = [kit.compacted(EntryPosition(1, 2), each) for each in originals]
    entries = [mutated(dice.choice(originals), dice) for _ in range(many)]
    with contextlib.suppress(TopicError):
        read(entries, options, compacted=compacted)
    return many


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.pulsar.fuzz", description="Mutated entries of topics.")
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first round")
    ask = parser.parse_args()
    began, done, number = time.monotonic(), 0, ask.seed
    while done < ask.inputs:
        for kind in KINDS:
            try:
                done += round_of(number, kind, LENIENT)
            except Exception:
                print(f"round {number} of {kind} failed: round_of({number}, {kind}, LENIENT)", file=sys.stderr)
                raise
        number += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{done:,} mutated entries in {time.monotonic() - began:.0f} s, all rows or typed errors; at most {peak} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
