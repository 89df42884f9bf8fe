# SPDX-License-Identifier: Apache-2.0
"""Random operations for two bookies at once, of all kinds that a bookie serves on Apache's wire.

An *epoch* is a row of bursts about ledgers of its own; seed and number determine all of it. The answers to a burst are
the same in any order in which a bookie may carry it out: each ledger is on one connection, and is either added to, or
read, or fenced, or gets a LAC. So a difference in the answers comes from the bookies, not from the order of their
threads. If the effect of an operation may differ, its ledger is not used after it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.connection import RequestReader
from bk_core.wire.bookie_rpc.runs import AddRun, BatchRead, ReadRun, Request, Single
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from tests.kit import bookie_requests as make
from tests.kit.bookie_requests import OTHER_KEY
from tests.kit.bookie_wire import KEY, frame
from tests.wire.bookie_rpc.fuzz import mutate

WIRES = (3, 3, 3, 2, 2)
"""The wire of each connection of an epoch."""

LIVE_LEDGERS = 80
LEDGERS_AN_EPOCH = 10_000
EPOCH_OPERATIONS = 20_000
LOOSE_A_BURST = 4
ENTRY_MAX = 1 << 33
"""The limit of entry ids. Apache's index has a place for each id up to the greatest, so ids far above fail when the
index is written."""

Ids = tuple[int, int]


@dataclass(slots=True)
class Operation:
    """One request. ``key`` finds its answer. ``notes`` are for the rules about listed differences."""

    number: int
    kind: str
    wire: int
    frame: bytes
    key: object
    ledger: int
    words: str = ""
    notes: frozenset[str] = frozenset()

    def asked(self) -> Request | None:
        """Return the request as this project's bookie reads it, or None if it cannot be read."""
        reader = RequestReader()
        reader.version = self.wire
        items = reader.read(self.frame).items
        return items[0] if items else None

    def __str__(self) -> str:
        said = self.frame.hex() if len(self.frame) <= 200 else f"{self.frame[:200].hex()}… {len(self.frame)} bytes"
        return f"v{self.wire} {self.kind} {self.words} {said}"


Step = dict[int, list[Operation]]
"""Maps each connection to its operations."""


@dataclass(slots=True)
class Burst:
    """Operations in steps, with a pause after each step. All answers are awaited after the last step. Each ``loose``
    operation has a connection of its own, because it may end the connection."""

    number: int
    steps: list[Step]
    loose: list[Operation]


@dataclass(slots=True)
class Ledger:
    number: int
    key: bytes
    entries: dict[int, bytes] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)  # the ids of the entries
    top: int = -1
    lac: int = -1
    fenced: bool = False
    spent: bool = False


class Epoch:
    """Makes the bursts of one epoch. ``base`` is its first ledger id; nothing else depends on ``base``."""

    def __init__(self, seed: int, number: int, base: int) -> None:
        self.rng = random.Random(f"{seed}:{number}")
        self._base, self._made = base, 0
        self._txn = self.rng.choice((0, 100, 16_300, 2**31 - 500, 2**63 - 5000))
        self._number = 0
        self._live: list[Ledger] = []
        self._touched: set[int] = set()
        self._unlike: set[int] = set()  # ledgers that only one of the bookies may know
        self._busy: set[int] = set()
        self._bodies: dict[Ids, set[bytes]] = {}  # of all adds, also of ledgers that are not used any more
        self._mutated: dict[Ids, list[Operation]] = {}  # the adds of one burst may be done in any order
        self._wire = 3
        self._out: list[Operation] = []

    def bursts(self, operations: int) -> Iterator[Burst]:
        """Yield bursts with this number of operations in all, or a few more."""
        number = 0
        while self._number < operations:
            number += 1
            yield self._watching(number) if self.rng.random() < 0.15 else self._burst(number)

    # --- bursts ---

    def _burst(self, number: int) -> Burst:
        step: Step = {}
        self._renew()
        self._busy.clear()
        for ledger in self._live:
            role = self.rng.choices((None, self._adds, self._reads, self._fence, self._tell_lac), (30, 40, 25, 1, 4))[0]
            if role is None:
                continue
            self._busy.add(ledger.number)
            connection = self.rng.randrange(len(WIRES))
            self._wire, self._out = WIRES[connection], step.setdefault(connection, [])
            role(ledger)
        loose = [one for _ in range(LOOSE_A_BURST) if (one := self._malformed()) is not None]
        return Burst(number, [step], loose)

    def _watching(self, number: int) -> Burst:
        """Return polls that wait, and operations that wake them."""
        polls: Step = {0: []}
        wakes: Step = {1: []}
        self._renew()
        awake = [one for one in self._live if not one.fenced and (one.entries or self.rng.random() < 0.02)]
        for ledger in self.rng.sample(awake, min(8, len(awake))):
            self._wire, self._out = 3, polls[0]
            above = ledger.lac
            for _ in range(self.rng.choice((1, 1, 2))):
                piggyback = self.rng.random() < 0.7
                words = f"{ledger.number} above {above}{' with its entry' if piggyback else ''}"
                self._put(
                    "poll that waits",
                    make.read(3, self._next(), (ledger.number, -1), poll=(above, 3_000), piggyback=piggyback),
                    ledger,
                    words,
                )
            self._out = wakes[1]
            if ledger.entries and self.rng.random() < 0.2:
                self._lac(ledger, max(above, 0) + 1, right=True)
            else:
                self._add(ledger, ledger.top + 1, lac=above + self.rng.randrange(1, 3))
        return Burst(number, [polls, wakes], [])

    def _renew(self) -> None:
        self._live = [one for one in self._live if not one.spent and self.rng.random() > len(one.entries) / 4000]
        while len(self._live) < LIVE_LEDGERS:
            self._live.append(self._new())

    def _new(self) -> Ledger:
        while True:
            self._made += 1
            if self._made not in self._touched:
                return Ledger(self._base + self._made, OTHER_KEY if self.rng.random() < 0.05 else KEY)

    def _next(self) -> int:
        self._txn += 1
        return self._txn

    def _put(
        self, kind: str, made: bytes, ledger: Ledger, words: str, *, key: object = None, note: str = ""
    ) -> Operation:
        one = Operation(
            self._number,
            kind,
            self._wire,
            made,
            self._txn if key is None else key,
            ledger.number,
            words,
            frozenset((note,)) if note else frozenset(),
        )
        self._number += 1
        self._out.append(one)
        return one

    # --- adds ---

    def _adds(self, ledger: Ledger) -> None:
        rng = self.rng
        recovery = rng.random() < 0.15
        priority = 100 if recovery and rng.random() < 0.5 else 0
        for _ in range(rng.choice((1, 1, 2, 5, 20, 40))):
            way = rng.random()
            if way < 0.75 or not ledger.entries:
                self._add(ledger, ledger.top + 1, recovery=recovery, priority=priority)
            elif way < 0.80:
                self._add(ledger, ledger.top + rng.randrange(2, 5), recovery=recovery, priority=priority)
            elif way < 0.88:
                again = rng.choice(ledger.ids)
                self._add(ledger, again, recovery=recovery, priority=priority, body=ledger.entries[again])
            elif way < 0.95:
                self._add(ledger, rng.randrange(ledger.top + 1), recovery=recovery, priority=priority, twice=False)
            else:
                key = KEY if ledger.key != KEY else OTHER_KEY
                at = ledger.top + 1
                body = make.entry(ledger.number, at, b"", lac=ledger.lac)
                self._put_add("add, wrong key", ledger, at, body, key=key, recovery=recovery, priority=priority)
        if self._wire == 3 and rng.random() < 0.2:
            self._put("force", make.force(self._next(), ledger.number), ledger, f"{ledger.number}")
        if rng.random() < 0.03:
            self._last_add(ledger, priority)

    def _add(
        self,
        ledger: Ledger,
        at: int,
        *,
        recovery: bool = False,
        priority: int = 0,
        body: bytes | None = None,
        lac: int | None = None,
        twice: bool = True,
    ) -> None:
        rng = self.rng
        if not twice and at in ledger.entries:
            return
        if body is None:
            size = rng.choices((0, 10, 100, 2_000), (2, 4, 4, 1))[0]
            carried = rng.choice((at - 1, at - 1, ledger.lac, -1, at + 1)) if lac is None else lac
            body = make.entry(ledger.number, at, rng.randbytes(size), lac=carried, length=size * (at + 1))
            ledger.lac = max(ledger.lac, carried)
            if at not in ledger.entries:
                ledger.ids.append(at)
            ledger.entries[at], ledger.top = body, max(ledger.top, at)
            self._bodies.setdefault((ledger.number, at), set()).add(body)
        self._put_add("recovery add" if recovery else "add", ledger, at, body, recovery=recovery, priority=priority)

    def _put_add(
        self,
        kind: str,
        ledger: Ledger,
        at: int,
        body: bytes,
        *,
        key: bytes | None = None,
        ids: Ids | None = None,
        recovery: bool = False,
        priority: int = 0,
        note: str = "",
    ) -> None:
        beside = ids or (ledger.number, at)
        made = make.add(
            self._wire,
            self._next(),
            beside,
            body,
            key=ledger.key if key is None else key,
            recovery=recovery,
            priority=priority,
            deferred=self._wire == 3 and self.rng.random() < 0.05,
        )
        of_answer = struct.unpack_from(">qq", body) if self._wire == 2 and len(body) >= 16 else beside
        self._put(
            kind,
            made,
            ledger,
            f"{beside[0]}/{beside[1]} of {len(body)} bytes",
            key=("add", *of_answer) if self._wire == 2 else None,
            note=note,
        )

    def _last_add(self, ledger: Ledger, priority: int) -> None:
        """Make an add whose answers or effect may differ in a listed way, as the ledger's last operation. It has the
        priority of the earlier ones, because Apache's bookie has other threads for other priorities."""
        rng, at = self.rng, ledger.top + 1
        body = make.entry(ledger.number, at, b"last", lac=ledger.lac)
        ledger.spent = True
        self._unlike.add(ledger.number)
        kind = rng.choice(("payload", "lac", "short", "inside", "key"))
        if kind == "payload" and ledger.entries:
            at = rng.choice(ledger.ids)
            body = make.entry(ledger.number, at, b"another payload", lac=at - 1)
            self._put_add("add, another payload", ledger, at, body, note="another payload", priority=priority)
        elif kind == "lac" and ledger.entries:
            at = rng.choice(ledger.ids)
            (length,) = struct.unpack_from(">q", ledger.entries[at], 24)
            body = make.entry(ledger.number, at, ledger.entries[at][36:], lac=at, length=length)
            self._put_add("recovery add, another LAC", ledger, at, body, recovery=True, priority=priority)
        elif kind == "short":
            self._put_add("add, short entry", ledger, at, body[: rng.randrange(16, 32)], priority=priority)
        elif kind == "inside" and self._wire == 3:
            inside = self._new()
            self._unlike.add(inside.number)
            body = make.entry(rng.choice((ledger.number, inside.number)), at + 1, b"inside")
            self._put_add("add, other ids inside", ledger, at, body, priority=priority)
        elif kind == "key" and self._wire == 3:
            key = rng.choice((b"", b"key", bytes(19), bytes(21)))
            self._put_add("add, odd key", ledger, at, body, key=key, priority=priority)
        else:
            self._put_add("add", ledger, at, body, priority=priority)

    # --- everything else ---

    def _reads(self, ledger: Ledger) -> None:
        for _ in range(self.rng.choice((1, 1, 3, 10, 40))):
            (self._read_of_v3 if self._wire == 3 else self._read_of_v2)(ledger)

    def _some_id(self, ledger: Ledger) -> int:
        rng = self.rng
        if ledger.entries and rng.random() < 0.75:
            return rng.choice(ledger.ids)
        return rng.choice((ledger.top + 1, ledger.top + 7, rng.randrange(ledger.top + 2), 2**31, 2**40))

    def _read_of_v2(self, ledger: Ledger) -> None:
        rng, at = self.rng, self._some_id(ledger)
        where = rng.choices((ledger.number, self._base - 1, -5), (30, 1, 1))[0]
        if rng.random() < 0.2:
            at = -1
        if rng.random() < 0.3:
            request = self._next() % ENTRY_MAX
            size = rng.choice((0, 1, 200, 1000, 1 << 20))
            count = rng.choice((0, 1, 3, 20, -1))
            made = make.batch(request, (where, at), count, size)
            self._put("batch read", made, ledger, f"{where}/{at} {count} {size}", key=("batch", request))
            return
        made = make.read(2, 0, (where, at), priority=rng.choice((0, 0, 100)))
        self._put("read", made, ledger, f"{where}/{at}", key=("read", where, at))

    def _read_of_v3(self, ledger: Ledger) -> None:
        rng, at = self.rng, self._some_id(ledger)
        where = rng.choices((ledger.number, self._base - 1, -5), (30, 1, 1))[0]
        kind = rng.choices(range(7), (50, 15, 10, 8, 3, 14, 1))[0]
        txn = self._next()
        if kind == 0:
            self._put("read", make.read(3, txn, (where, at), priority=rng.choice((0, 0, 100))), ledger, f"{where}/{at}")
        elif kind == 1:
            self._put("read of the last", make.read(3, txn, (where, -1)), ledger, f"{where}")
        elif kind == 2:
            self._put("read LAC", make.read_lac(txn, where), ledger, f"{where}")
        elif kind == 3:
            self._put("list", make.list_entries(txn, where), ledger, f"{where}")
        elif kind == 4:
            made = rng.choice((make.info(txn, 3), make.info(txn, 1), make.info(txn, None), make.start_tls(txn)))
            self._put("info, TLS", rng.choice((made, make.auth(3, txn))), ledger, "")
        elif kind == 5:
            self._poll_at_once(ledger, where, at)
        else:
            self._put("force", make.force(txn, where), ledger, f"{where}")

    def _poll_at_once(self, ledger: Ledger, where: int, at: int) -> None:
        """Make a poll that does not wait, or waits only briefly."""
        rng = self.rng
        above = rng.choice((ledger.lac - 1, ledger.lac - 1, ledger.lac, -1, -2, ledger.top))
        timeout = rng.choices((None, 0, 1, 15, 60), (3, 2, 2, 1, 10 if above < ledger.lac else 0))[0]
        piggyback = rng.random() < 0.7
        poll = (above, timeout) if rng.random() < 0.95 else None
        entry = -1 if rng.random() < (0.95 if piggyback else 0.5) else at
        made = make.read(3, self._txn, (where, entry), poll=poll, piggyback=piggyback)
        self._put("poll", made, ledger, f"{where}/{entry} {poll} {'with its entry' if piggyback else ''}")

    def _fence(self, ledger: Ledger) -> None:
        rng = self.rng
        at = rng.choice((-1, -1, self._some_id(ledger)))
        key = rng.choices((ledger.key, KEY if ledger.key != KEY else OTHER_KEY), (5, 1))[0]
        ids = ledger.number, at
        if not ledger.entries:
            ledger.key = key
        ledger.fenced = ledger.fenced or key == ledger.key
        if self._wire == 2 and rng.random() < 0.2:
            request = self._next() % ENTRY_MAX
            ids = ids[0], max(ids[1], 0)
            self._put(
                "fencing batch read",
                make.batch(request, ids, 3, 500, fence_key=key),
                ledger,
                f"{ids}",
                key=("batch", request),
            )
            return
        made = make.read(self._wire, self._next(), ids, fence_key=key, priority=rng.choice((0, 100)))
        self._put("fencing read", made, ledger, f"{ids}", key=("read", *ids) if self._wire == 2 else None)

    def _tell_lac(self, ledger: Ledger) -> None:
        if self._wire == 3:
            self._lac(ledger, max(self.rng.choice((ledger.top, ledger.top + 5, ledger.lac - 3, 0)), 0))

    def _lac(self, ledger: Ledger, lac: int, *, right: bool = False) -> None:
        rng, body, kind = self.rng, make.lac_body(ledger.number, lac), "LAC"
        key = ledger.key if right or rng.random() < 0.9 else KEY if ledger.key != KEY else OTHER_KEY
        if not ledger.entries:
            ledger.key = key
        if not right and rng.random() < 0.05:
            ledger.spent, kind = True, "LAC, wrong digest"
            self._unlike.add(ledger.number)
            body = body[:16] + bytes(4)
        elif key == ledger.key:
            ledger.lac = max(ledger.lac, lac)
        made = make.write_lac(self._next(), ledger.number, lac, body, key)
        self._put(kind, made, ledger, f"{ledger.number} {lac}")

    # --- malformed, in a frame that is whole ---

    def _malformed(self) -> Operation | None:
        rng = self.rng
        self._wire, self._out = rng.choice((3, 3, 2)), []
        ledger = self._new() if rng.random() < 0.3 else rng.choice(self._live)
        if ledger.spent or ledger.number in self._busy:
            return None
        odd = rng.random() < 0.2
        made = self._odd(ledger) if odd else self._mutate(ledger)
        reader = RequestReader()
        items = reader.read(made).items
        # A frame that cannot be read here may be an add with a key of its own at Apache's bookie.
        notes, touched = self._looked_at(items[0]) if items else (set(), {ledger.number})
        if "harmful" in notes or any(not 0 <= number - self._base < LEDGERS_AN_EPOCH for number in touched):
            return None  # a ledger of another epoch, or of none: a difference would show in a later epoch
        if items and not self._busy.isdisjoint(_named(items[0])):
            return None  # the burst uses it on another connection, so the order is not known
        if items and not self._unlike.isdisjoint(_named(items[0])):
            return None  # a changed bit of its id leads to a ledger with a listed difference, which would show again
        self._busy |= {ledger.number, *(_named(items[0]) if items else ())}
        for known in self._live:
            known.spent = known.spent or known.number in touched
        self._touched |= {number - self._base for number in touched}
        one = Operation(self._number, "odd" if odd else "malformed", 3, made, None, ledger.number, "", frozenset(notes))
        self._number += 1
        if items and isinstance(items[0], AddRun):
            self._note_other_payloads(items[0], one)
        return one

    def _note_other_payloads(self, add: AddRun, one: Operation) -> None:
        """Note that the order of the payloads of one id is not known, so that each of its adds may be refused."""
        if (ids := _ids_inside(add)) is None:
            return
        adds, bodies = self._mutated.setdefault(ids, []), self._bodies.setdefault(ids, set())
        adds.append(one)
        bodies.update(map(bytes, add.bodies().pieces()))
        if len(bodies) > 1:
            for each in adds:
                each.notes |= {"another payload"}

    def _odd(self, ledger: Ledger) -> bytes:
        """Return a request that no client sends, but that can be read."""
        rng = self.rng
        body = make.entry(ledger.number, ledger.top + 1, b"odd")
        at = rng.choice((self._some_id(ledger), self._some_id(ledger), -2, -(2**63)))
        if self._wire == 2:
            ids = struct.pack(">qq", ledger.number, at)
            version, operation = rng.choice((0, 1, 2, 3, 9, 200)), rng.choice((1, 2, 2, 3, 4, 5, 6, 7, 8))
            behind = ledger.key + body if operation == 1 else ids
            word = struct.pack(">I", version << 24 | operation << 16 | rng.choice((0, 0, 1, 2, 4, 0xFFFF)))
            return frame(word + behind + rng.choice((b"", bytes(20), bytes(7))))
        request = v3.request(rng.choice(pb.OperationType.values()), self._next())
        request.header.version = rng.choice(pb.ProtocolVersion.values())
        if rng.random() < 0.5:
            request.readRequest.ledgerId, request.readRequest.entryId = ledger.number, at
        return v3.framed(request)

    def _mutate(self, ledger: Ledger) -> bytes:
        rng, wire = self.rng, self._wire
        at = self._some_id(ledger)
        body = make.entry(ledger.number, ledger.top + 1, b"mutated", lac=ledger.lac)
        clean = [
            make.add(wire, self._next(), (ledger.number, ledger.top + 1), body, key=ledger.key),
            make.read(wire, self._next(), (ledger.number, at)),
            make.read(wire, self._next(), (ledger.number, at), fence_key=ledger.key),
        ]
        if wire == 3:
            clean += [
                make.read(3, self._next(), (ledger.number, -1), poll=(-1, 5), piggyback=True),
                make.write_lac(self._next(), ledger.number, 0, make.lac_body(ledger.number, 0), ledger.key),
                make.read_lac(self._next(), ledger.number),
                make.force(self._next(), ledger.number),
                make.list_entries(self._next(), ledger.number),
                make.info(self._next()),
                make.auth(3, self._next()),
            ]
        else:
            clean += [make.batch(self._next() % ENTRY_MAX, (ledger.number, at), 3, 500), make.auth(2, 0)]
        content = bytearray(rng.choice(clean)[4:])
        for _ in range(rng.choice((1, 1, 2, 3))):
            mutate(rng, content, clean)
        return frame(bytes(content))

    def _looked_at(self, item: Request) -> tuple[set[str], set[int]]:
        """Return the notes about a request that rules need, and the ledgers that the request may change."""
        notes: set[str] = set()
        touched: set[int] = set()
        if isinstance(item, AddRun):
            touched.add(int(item.ledger_ids[0]))
            if (ids := _ids_inside(item)) is not None:
                touched.add(ids[0])
                if not (0 <= ids[0] < 2**62 and 0 <= ids[1] < ENTRY_MAX):
                    notes.add("harmful")
        elif isinstance(item, BatchRead):
            touched.update([item.ledger_id] if item.fencing else [])
        elif isinstance(item, Single):
            asked = item.request
            for name in ("readRequest", "writeLacRequest"):
                if asked.HasField(name) and (name != "readRequest" or asked.readRequest.HasField("flag")):
                    touched.add(getattr(asked, name).ledgerId)
        if not isinstance(item, AddRun) and any(not 0 <= number < 2**62 for number in touched):
            notes.add("harmful")
        return notes, touched


def _ids_inside(add: AddRun) -> Ids | None:
    """Return the ids in the entry, or None if the entry is too short to have them."""
    (body,) = map(bytes, add.bodies().pieces())
    return struct.unpack_from(">qq", body) if len(body) >= 16 else None


def _named(item: Request) -> set[int]:
    """Return the ledgers that a request names."""
    if isinstance(item, AddRun):
        inside = _ids_inside(item)
        return {int(item.ledger_ids[0])} | ({inside[0]} if inside is not None else set())
    if isinstance(item, ReadRun):
        return set(map(int, item.ledger_ids))
    if isinstance(item, BatchRead):
        return {item.ledger_id}
    return {one.ledgerId for _, one in item.request.ListFields() if hasattr(one, "ledgerId")}
