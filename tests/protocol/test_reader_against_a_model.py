# SPDX-License-Identifier: Apache-2.0
"""Reading a range from random bookies that find, deny, do not know, stop early, are cut, are silent or lie.

The truth is a list of payloads. Whatever the bookies do, what is delivered is the truth, in order, each entry once; an
error is one that the answers justify; and where one honest bookie of each write set answers in the end, there is none.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pytest

from bk_core import quorum
from bk_core.client.reading.shared_read import SharedRead
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import decode_frame, encode_frame
from bk_core.errors import EntryUnreadableError, NoSuchEntryError
from bk_core.model import DigestType, Fragment, LedgerMetadata
from bk_core.protocol import events as ev
from bk_core.protocol.reader import PASSES, RangeRead
from bk_core.wire.lane.reasons import EntryRange
from tests.kit.amount import some
from tests.protocol.kit import LEDGER, digester, metadata

SHAPES = [(1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 2, 2), (4, 2, 2), (5, 3, 2), (5, 2, 1)]
BOOKIES = [f"b{i}" for i in range(7)]
LIES = ["other ledger", "outside", "beyond", "flipped", "record", "both", "doubled", "too much"]


def truth_of(values: list[bytes], ledger_id: int = LEDGER) -> EntryBatch:
    made = EntryBatch.from_list(values)
    keyed = Digester(DigestType.CRC32C, b"", ledger_id)
    frame = encode_frame(made, digester=keyed, ledger_id=ledger_id, first_entry_id=0, lac=-1, length_before=0)
    return decode_frame(bytes(frame))


def frame_of(batch: EntryBatch, stamp: int) -> bytes:
    return bytes(encode_frame(batch, digester=None, session=stamp))


@dataclass
class Asked:
    """A request under way: what the bookie will still say of it."""

    read: ev.SendRead
    index: int
    said: list[object]
    silent: bool


@dataclass
class World:
    """Bookies, what they hold, and what they told the machine."""

    random: random.Random
    honest: bool
    values: list[bytes] = field(default_factory=list)
    requests: dict[int, Asked] = field(default_factory=dict)
    denied: dict[int, set[str]] = field(default_factory=dict)  # entry → who denied it to the machine's face
    asked_of: dict[int, list[str]] = field(default_factory=dict)
    timers: set[str] = field(default_factory=set)
    got: list[bytes] = field(default_factory=list)
    end: object = None

    def __post_init__(self) -> None:
        pick = self.random
        self.shape = pick.choice(SHAPES)
        self.values = [pick.randbytes(pick.choice((0, 3, 3, 40))) for _ in range(pick.randint(1, 40))]
        self.truth = truth_of(self.values)
        self.foreign = truth_of(self.values, LEDGER + 1)
        firsts = sorted({0, *(pick.randrange(len(self.values)) for _ in range(pick.randint(0, 3)))})
        fragments = tuple(Fragment(first, tuple(pick.sample(BOOKIES, self.shape[0]))) for first in firsts)
        self.metadata: LedgerMetadata = metadata(*self.shape, fragments=fragments).value
        self.good = {n: pick.choice(self.write_set(n)) for n in range(len(self.values))}  # says the truth in the end
        self.moods = {bookie: pick.choice(("well", "well", "slow", "dead", "lies", "odd")) for bookie in BOOKIES}
        self.holes = {(b, n): pick.choice("fffau") for b in BOOKIES for n in range(len(self.values))}

    def write_set(self, entry_id: int) -> list[str]:
        ensemble = self.metadata.fragment_of(entry_id).ensemble
        return [ensemble[i] for i in quorum.write_set(entry_id, *self.shape[:2])]

    def state(self, bookie: str, entry_id: int) -> str:
        """f: has it, a: denies it, u: cannot say, - : is not asked for it."""
        if bookie not in self.write_set(entry_id):
            return "a"
        if self.honest and self.good[entry_id] == bookie:
            return "f"
        return self.holes[bookie, entry_id]

    def is_good_for_some(self, read: ev.SendRead) -> bool:
        return self.honest and any(self.good[n] == read.bookie for n in range(read.first, read.last + 1))

    # --- answers ---

    def begin(self, read: ev.SendRead) -> None:
        mood = "well" if self.is_good_for_some(read) else self.moods[read.bookie]
        if mood == "odd":
            mood = self.random.choice(("well", "slow", "dead", "lies"))
        index = self.metadata.fragment_of(read.first).ensemble.index(read.bookie)
        silent = mood == "slow" or self.random.random() < 0.1
        said = self.lie(read) if mood == "lies" else self.tell(read, cut=mood == "dead")
        self.requests[read.request] = Asked(read, index, said, silent)

    def tell(self, read: ev.SendRead, *, cut: bool) -> list[object]:
        ids = range(read.first, read.last + 1)
        through = read.last if self.random.random() < 0.6 else self.random.choice(ids)
        states = {n: self.state(read.bookie, n) for n in ids if n <= through}
        said = self.frames(read, [n for n, s in states.items() if s == "f"])
        if cut:
            return [*said[: self.random.randint(0, len(said))], ev.ReadFailed(read.request, "cut")]
        absent = tuple(EntryRange(n, n) for n, s in states.items() if s == "a")
        unknown = tuple(EntryRange(n, n) for n, s in states.items() if s == "u" and self.random.random() < 0.8)
        return [*said, ev.ReadAnswered(read.request, through, absent, unknown)]

    def frames(self, read: ev.SendRead, ids: list[int]) -> list[object]:
        parts, stamp = [], self.random.choice((0, 1))
        while ids:
            cut = self.random.randint(1, len(ids))
            parts.append(frame_of(self.truth.select(np.array(ids[:cut])), stamp))
            ids = ids[cut:]
        return [ev.FramesRead(read.request, memoryview(part)) for part in parts]

    def lie(self, read: ev.SendRead) -> list[object]:
        ids = list(range(read.first, read.last + 1))
        all_of_it, whole = frame_of(self.truth.select(np.array(ids)), 0), ev.ReadAnswered(read.request, read.last)
        said: list[object] = [ev.FramesRead(read.request, memoryview(all_of_it)), whole]
        match self.random.choice(LIES):
            case "other ledger":
                said[0] = ev.FramesRead(read.request, memoryview(frame_of(self.foreign.select(np.array(ids)), 0)))
            case "outside":
                said[0] = ev.FramesRead(read.request, memoryview(frame_of(self.truth, 1)))
            case "beyond":
                said = [ev.ReadAnswered(read.request, read.last + 1000, (EntryRange(read.first, read.last + 1000),))]
            case "flipped":
                bad = bytearray(all_of_it)
                bad[self.random.randrange(len(bad))] ^= 1 << self.random.randrange(8)
                said[0] = ev.FramesRead(read.request, memoryview(bytes(bad)))
            case "record":
                said[0] = ev.FramesRead(
                    read.request, memoryview(self.random.randbytes(self.random.choice((3, 64, 99))))
                )
            case "both":
                everything = (EntryRange(read.first, read.last),)
                said = [ev.ReadAnswered(read.request, read.last, everything, everything)]
            case "doubled":
                twice = self.random.sample(ids * 2, len(ids) * 2)
                said = [ev.FramesRead(read.request, memoryview(frame_of(self.truth.select(np.array(twice)), 0))), whole]
            case "too much":
                said.insert(0, ev.FramesRead(read.request, memoryview(all_of_it * 3)))
        return said

    # --- the run ---

    def carry(self, effects: list[object]) -> None:
        for effect in effects:
            assert self.end is None, f"{effect} after {self.end}"
            match effect:
                case ev.SendRead(request):
                    assert request not in self.requests
                    assert 0 <= effect.first <= effect.last < len(self.values)
                    self.begin(effect)
                case ev.CancelRead(request):
                    self.requests.pop(request, None)
                case ev.SetTimer(name):
                    self.timers.add(name)
                case ev.DeliverBatch(batch):
                    self.got += batch.to_list()
                case _:
                    self.end = effect

    def fire(self, name: str) -> ev.TimerFired:
        self.timers.discard(name)
        return ev.TimerFired(name)

    def next_event(self) -> object:
        """Somebody speaks; when nobody does, a timer fires; a silent bookie speaks when only it is left, or gives up.

        A timer of ``late`` may fire at any moment: a machine must not care.
        """
        ready = [asked for asked in self.requests.values() if not asked.silent]
        late = sorted(name for name in self.timers if name.startswith("late"))
        if late and self.requests and self.random.random() < (0.1 if ready else 0.7):
            return self.fire(self.random.choice(late) if len(late) > 1 else late[0])
        again = sorted(name for name in self.timers if name.startswith("again"))
        if not ready and not self.requests:
            return self.fire(self.random.choice(again) if len(again) > 1 else again[0])
        asked = self.random.choice(ready or list(self.requests.values()))
        if asked.silent and not self.is_good_for_some(asked.read) and self.random.random() < 0.5:
            asked.said = [ev.ReadFailed(asked.read.request, "deadline")]
        event = asked.said.pop(0)
        if not asked.said or isinstance(event, (ev.ReadAnswered, ev.ReadFailed)):
            del self.requests[asked.read.request]
        if isinstance(event, ev.ReadAnswered):
            for gap in event.absent:
                for n in range(max(gap.first, asked.read.first), min(gap.last, event.answered_through) + 1):
                    self.denied.setdefault(n, set()).add(asked.read.bookie)
        return event

    def options(self) -> dict[str, object]:
        """Draw the options of a read."""
        return {"prefer": self.random.randrange(self.shape[0]), "avoid": self.random.sample(BOOKIES, 2)}

    def make(self, first: int, last: int, **options: object) -> RangeRead | SharedRead:
        return RangeRead(self.metadata, digester(), first, last, bytes_max=1 << 20, **options)

    def run(self, first: int, last: int, **options: object) -> None:
        machine = self.make(first, last, **options)
        self.carry(list(machine.start()))
        for _ in range(5_000):
            if self.end is not None:
                break
            self.carry(list(machine.step(self.next_event())))
        assert self.end is not None, "asks for ever"
        assert not self.requests, "left requests behind"
        assert self.got == self.values[first : first + len(self.got)]
        self.judge(machine, first, last)

    def judge(self, machine: RangeRead | SharedRead, first: int, last: int) -> None:
        if isinstance(self.end, ev.FinishRead):
            assert len(self.got) == last + 1 - first
            return
        assert isinstance(self.end, ev.Fail)
        assert not self.honest, f"an honest bookie had it: {self.end.error}"
        missing = first + len(self.got)
        assert not isinstance(machine, RangeRead) or machine.next == missing
        everybody = set(self.write_set(missing))
        if isinstance(self.end.error, NoSuchEntryError):
            assert self.denied.get(missing, set()) >= everybody, "called lost, though not all deny it"
        else:
            assert isinstance(self.end.error, EntryUnreadableError)
            assert all(bookie in str(self.end.error) for bookie in everybody)


def ends_of(kind: type[World], seeds: Iterable[int], honest: bool) -> Counter[str]:
    """Read a range in the world of each seed. Return how the reads ended: finished, lost or unreadable."""
    ends = Counter[str]()
    for seed in seeds:
        world = kind(random.Random(seed), honest)
        pick = world.random
        first = pick.randrange(len(world.values))
        last = pick.randint(first - 1, len(world.values) - 1)
        try:
            world.run(first, last, **world.options())
        except Exception as error:
            raise AssertionError(f"seed {seed}, honest {honest}") from error
        if isinstance(world.end, ev.FinishRead):
            ends["finished"] += 1
        else:
            ends["lost" if isinstance(world.end.error, NoSuchEntryError) else "unreadable"] += 1
    return ends


@pytest.mark.rule("P4", "MUST4", "MUST14")
@pytest.mark.parametrize("honest", [True, False], ids=["one-of-each-write-set-is-honest", "nobody-need-be"])
@pytest.mark.parametrize("seeds", range(some(4, few=1)))
def test_what_is_delivered_is_the_truth_whatever_the_bookies_do(honest: bool, seeds: int) -> None:
    ends = ends_of(World, range(seeds * 150, seeds * 150 + 150), honest)
    assert PASSES > 1
    assert ends["finished"] > 20
    assert honest or (ends["lost"] and ends["unreadable"])
