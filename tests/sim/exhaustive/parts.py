# SPDX-License-Identifier: Apache-2.0
"""The parts of a world: one writer, recoverers, bookies and the metadata record. Each is a machine of the product, with
the state that its driver would keep for it (armed timers, requests under way).

A part is stepped with a tuple of events and returns *emissions*, plain tuples that the search carries out on the
network. It notes in ``problem`` a promise that it broke by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester, ledger_key
from bk_core.errors import LedgerFencedError, MetadataConflictError, MetadataUnavailableError
from bk_core.model import DigestType, Fragment, LedgerMetadata, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.config import RecoveryConfig, WriterConfig
from bk_core.protocol.recovery import LedgerRecovery, Phase
from bk_core.protocol.writer import LedgerWrite
from bookie_server.machine import events as bev
from tests.sim.exhaustive.scope import Scope

LEDGER = 7
PASSWORD = b"x"
KEY = ledger_key(PASSWORD)
DIGESTER = Digester(DigestType.CRC32C, PASSWORD, LEDGER)
WRITER = 1  # the numbers of clients: the writer, then the recoverers
SESSIONS_PER_CLIENT = 100
UNARY = 1000  # the stream of a client's request is this plus the client's number
FENCES = 1 << 20  # the request id of a fence is this plus the attempt and the index
METADATA_RETRIES = 3
NOBODY = 0  # the client of a request that was given up

Emission = tuple[Any, ...]
T = TypeVar("T")


class Sessions:
    """Session numbers of one client. They name streams of a bookie, so no two clients share one."""

    def __init__(self, client: int) -> None:
        self.last = client * SESSIONS_PER_CLIENT

    def __call__(self) -> int:
        self.last += 1
        return self.last


class FirstChoice:
    """A source of randomness that always takes the first choice. Another choice is another scope."""

    def random(self) -> float:
        return 0.5

    def sample(self, population: Sequence[T], k: int) -> list[T]:
        return list(population[:k])


def payload(entry_id: int) -> bytes:
    """Return the payload that the application gives the writer for this id."""
    return b"entry %d" % entry_id


def bookie_name(slot: int) -> str:
    return f"b{slot}"


def first_metadata(scope: Scope) -> Versioned[LedgerMetadata]:
    ensemble = tuple(bookie_name(i) for i in range(scope.ensemble))
    value = LedgerMetadata(
        ensemble_size=scope.ensemble,
        write_quorum_size=scope.write_quorum,
        ack_quorum_size=scope.ack_quorum,
        fragments=(Fragment(0, ensemble),),
        password=PASSWORD,
    )
    return Versioned(value, 0)


@dataclass(frozen=True, slots=True)
class Suspect:
    """The client's session at ``index`` breaks, and its reconnect budget runs out at once."""

    index: int
    session: int


@dataclass(frozen=True, slots=True)
class StoreCall:
    """A client's request to the metadata store."""

    client: int
    call: ev.WriteMetadata | ev.ReadMetadata | ev.ReadBookies


class Client:
    """A machine of a client. ``timers`` are armed, and may fire at any moment."""

    def __init__(self, number: int, machine: Any) -> None:
        self.number, self.machine = number, machine
        self.timers: dict[str, None] = {}
        self.over = False
        self.problem: str | None = None

    def start(self) -> list[Emission]:
        return self._carried(self.machine.start())

    def step(self, events: tuple[Any, ...]) -> list[Emission]:
        emissions: list[Emission] = []
        for event in events:
            if isinstance(event, ev.TimerFired):
                self.timers.pop(event.name, None)
            if isinstance(event, Suspect):
                emissions += self.step((ev.SessionBroken(event.index, event.session, "cut"),))
                name = f"budget:{event.index}"
                if name in self.timers:
                    emissions += self.step((ev.TimerFired(name),))
                continue
            emissions += self._carried(self.machine.step(event))
        return emissions

    def _carried(self, effects: list[Any]) -> list[Emission]:
        emissions: list[Emission] = []
        for effect in effects:
            emissions += self._carry(effect)
        return emissions

    def _carry(self, effect: Any) -> list[Emission]:
        match effect:
            case ev.SetTimer(name):
                self.timers[name] = None
            case ev.CancelTimer(name):
                self.timers.pop(name, None)
            case ev.BackOff():
                self.timers["again"] = None
            case ev.MarkUnderreplicated():
                pass
            case ev.WriteMetadata() | ev.ReadMetadata() | ev.ReadBookies():
                return [("store", self.number, StoreCall(self.number, effect))]
            case ev.AttachSession(index, bookie, session, mode):
                event = bev.SessionAttached(session, session, LEDGER, KEY, mode)
                return [("open", int(bookie[1:]), session, self.number, index), ("up", int(bookie[1:]), session, event)]
            case ev.SendFrame(_, bookie, session, frame):
                event = bev.FramesArrived(session, memoryview(bytes(frame)))
                return [("up", int(bookie[1:]), session, event)]
            case ev.DetachSession(_, bookie, session):
                return [("gone", int(bookie[1:]), session)]
            case _:
                return self._carry_more(effect)
        return []

    def _carry_more(self, effect: Any) -> list[Emission]:
        raise AssertionError(f"nobody carries out {effect!r}")

    def core(self) -> Any:
        """Return all state that matters once the machine is over."""
        return type(self).__name__, getattr(self, "acked", None), getattr(self, "end", None)

    def _end(self) -> list[Emission]:
        self.over = True
        self.timers.clear()
        return [("over", self.number)]

    def _ask(self, bookie: str, event: Any) -> Emission:
        return "ask", int(bookie[1:]), self.number, event

    def _stream(self) -> int:
        return UNARY + self.number


class WriterPart(Client):
    """The writer and its application, for which ids up to ``acked`` are confirmed."""

    def __init__(self, scope: Scope) -> None:
        config = WriterConfig(
            metadata_retries_max=METADATA_RETRIES,
            delay_ensemble_change=scope.delayed,
            allow_degraded_writes=scope.degraded,
        )
        machine = LedgerWrite(
            LEDGER,
            first_metadata(scope),
            DIGESTER,
            config=config,
            new_session=Sessions(WRITER),
            random=FirstChoice(),
        )
        super().__init__(WRITER, machine)
        self.acked = -1
        self.alone = not scope.recoverers

    @property
    def lac(self) -> int:
        return int(self.machine.lac)

    def append(self, entry_id: int) -> ev.Append:
        return ev.Append(EntryBatch.from_list([payload(entry_id)]))

    def _carry_more(self, effect: Any) -> list[Emission]:
        match effect:
            case ev.Confirm(lac):
                if self.over:
                    self.problem = f"I1: the writer confirms entry {lac} after it was over"
                if lac <= self.acked:
                    self.problem = f"I1: the writer confirms entry {lac} after entry {self.acked}"
                self.acked = max(self.acked, lac)
                return []
            case ev.Fail(error):
                if self.alone and isinstance(error, (LedgerFencedError, MetadataConflictError)):
                    self.problem = "MUST 8: the writer, which is alone, takes its own write for another client's"
                return self._end()
            case ev.FinishClose() | ev.FailClose():
                return self._end()
        return super()._carry_more(effect)


class RecoveryPart(Client):
    """One recoverer. ``end`` is the result for its caller."""

    def __init__(self, scope: Scope, number: int) -> None:
        config = RecoveryConfig(
            read_window_entries=scope.window, attempts_max=scope.attempts, metadata_retries_max=METADATA_RETRIES
        )
        machine = LedgerRecovery(DIGESTER, config=config, new_session=Sessions(number), random=FirstChoice())
        super().__init__(number, machine)
        self.end: int | None = None

    @property
    def done(self) -> bool:
        return bool(self.machine.phase is Phase.DONE)

    def _carry_more(self, effect: Any) -> list[Emission]:
        match effect:
            case ev.SendFence(index, bookie):
                request = (self._stream(), FENCES + 16 * self.machine.attempt + index)
                return [self._ask(bookie, bev.FenceRequested(request, LEDGER, KEY))]
            case ev.SendRead(request, bookie, first, last, bytes_max, fence):
                asked = bev.ReadRequested(
                    (self._stream(), request), LEDGER, first, last, bytes_max, KEY if fence else None
                )
                return [self._ask(bookie, asked)]
            case ev.CancelRead(request):
                return [("cancel", self.number, (self._stream(), request))]
            case ev.FinishRecovery(metadata):
                self.end = metadata.value.last_entry_id
                if not metadata.value.is_closed:
                    self.problem = "MUST 10: a recovery ended with a ledger that is not CLOSED"
                return self._end()
            case ev.Fail():
                return self._end()
        return super()._carry_more(effect)


def answer_failed(request: tuple[int, int], message: str) -> Any:
    """Return the event for a request that got no answer."""
    number = request[1]
    return ev.LacFailed(number % 16, message) if number >= FENCES else ev.ReadFailed(number, message)


class StorePart:
    """The metadata record, with compare-and-set and the rules that every write must keep (I3, I4)."""

    def __init__(self, scope: Scope) -> None:
        self.record = first_metadata(scope)
        self.writable = tuple(bookie_name(i) for i in range(scope.bookies))
        self.problem: str | None = None

    def step(self, events: tuple[Any, ...]) -> list[Emission]:
        (asked,) = events
        match asked.call:
            case ev.ReadMetadata():
                answer: Any = ev.MetadataRead(self.record)
            case ev.ReadBookies():
                answer = ev.BookiesRead(self.writable)
            case ev.WriteMetadata(metadata, version):
                answer = self._write(metadata, version)
        return [("tell", asked.client, (answer,))]

    def _write(self, new: LedgerMetadata, version: int) -> Any:
        old = self.record.value
        if version != self.record.version:
            return ev.MetadataConflicted()
        same = ("ensemble_size", "write_quorum_size", "ack_quorum_size", "password", "digest_type")
        if old.is_closed:
            self.problem = f"I3: a CLOSED ledger (end {old.last_entry_id}) is written again (end {new.last_entry_id})"
        elif new.problem() or any(getattr(old, name) != getattr(new, name) for name in same):
            self.problem = f"I4: bad metadata: {new.problem() or 'a constant changed'}"
        elif new.state.value < old.state.value:
            self.problem = f"I4: the state goes from {old.state.name} back to {new.state.name}"
        self.record = Versioned(new, self.record.version + 1)
        return ev.MetadataWritten(self.record)


LOST_ANSWER = ev.MetadataCallFailed(MetadataUnavailableError("the answer was lost"))
