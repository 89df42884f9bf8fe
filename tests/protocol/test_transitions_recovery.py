# SPDX-License-Identifier: Apache-2.0
"""Every event in every phase of a recovery: where it leads, and that nothing else happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

from bk_core.entries.apache import lac_body
from bk_core.errors import MetadataUnavailableError, NoSuchLedgerError
from bk_core.model import LedgerMetadata, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.config import RecoveryConfig
from bk_core.protocol.recovery import LedgerRecovery, Phase, RecoveryEffect, RecoveryEvent
from bk_core.wire.lane.reasons import AttachMode, EntryRange, Reason
from tests.kit.transitions import NoRandom, Numbers, as_table, members, sweep
from tests.protocol.kit import digester, frame, metadata

E = TypeVar("E")
SPARES = ev.BookiesRead(("b0", "b1", "b2", "b3", "b4"))
NO_SPARES = ev.BookiesRead(("b0", "b1", "b2"))
AWAY = ev.MetadataCallFailed(MetadataUnavailableError("the store is away"))
GONE = ev.MetadataCallFailed(NoSuchLedgerError("deleted"))
FOUND = metadata(version=3)

TABLE: dict[tuple[str, str], str] = {
    ("CLAIM", "MetadataCallFailed"): "CLAIM DONE",
    ("CLAIM", "MetadataConflicted"): "CLAIM impossible",
    ("CLAIM", "MetadataRead"): "CLAIM FENCE WAIT DONE",
    ("CLAIM", "MetadataWritten"): "FENCE impossible",
    ("FENCE", "LacAnswered"): "FENCE READ DONE",
    ("FENCE", "LacFailed"): "FENCE DONE",
    ("FENCE", "MetadataCallFailed"): "impossible",
    ("FENCE", "MetadataConflicted"): "impossible",
    ("FENCE", "MetadataRead"): "impossible",
    ("FENCE", "MetadataWritten"): "impossible",
    ("READ", "BookiesRead"): "READ DONE impossible",
    ("READ", "FramesAcked"): "READ CLOSE",
    ("READ", "FramesRead"): "READ DRAIN DONE",
    ("READ", "MetadataCallFailed"): "READ DONE impossible",
    ("READ", "MetadataConflicted"): "impossible",
    ("READ", "MetadataRead"): "impossible",
    ("READ", "MetadataWritten"): "impossible",
    ("READ", "ReadAnswered"): "READ LENGTH DRAIN CLOSE DONE",
    ("READ", "ReadFailed"): "READ DONE",
    ("READ", "SessionEnded"): "READ DRAIN",
    ("LENGTH", "BookiesRead"): "impossible",
    ("LENGTH", "FramesRead"): "LENGTH CLOSE DONE",
    ("LENGTH", "MetadataCallFailed"): "impossible",
    ("LENGTH", "MetadataConflicted"): "impossible",
    ("LENGTH", "MetadataRead"): "impossible",
    ("LENGTH", "MetadataWritten"): "impossible",
    ("LENGTH", "ReadAnswered"): "LENGTH DONE",
    ("LENGTH", "ReadFailed"): "LENGTH DONE",
    ("DRAIN", "BookiesRead"): "DRAIN CLOSE DONE impossible",
    ("DRAIN", "FramesAcked"): "DRAIN CLOSE DONE",
    ("DRAIN", "MetadataCallFailed"): "DRAIN DONE impossible",
    ("DRAIN", "MetadataConflicted"): "impossible",
    ("DRAIN", "MetadataRead"): "impossible",
    ("DRAIN", "MetadataWritten"): "impossible",
    ("DRAIN", "SessionEnded"): "DRAIN DONE",
    ("DRAIN", "TimerFired"): "DRAIN CLOSE DONE",
    ("CLOSE", "MetadataCallFailed"): "CLOSE DONE",
    ("CLOSE", "MetadataConflicted"): "CLOSE DONE",
    ("CLOSE", "MetadataRead"): "CLOSE WAIT DONE",
    ("CLOSE", "MetadataWritten"): "DONE",
    ("WAIT", "MetadataCallFailed"): "impossible",
    ("WAIT", "MetadataConflicted"): "impossible",
    ("WAIT", "MetadataRead"): "impossible",
    ("WAIT", "MetadataWritten"): "impossible",
    ("WAIT", "TimerFired"): "CLAIM WAIT DONE",
}
"""The moves of docs/protocol.md; a pair that is missing leads nowhere."""


class Driver:
    """A recovery, and what it asked for last."""

    def __init__(self, **options: object) -> None:
        self.machine = LedgerRecovery(
            digester(),
            config=RecoveryConfig(read_window_entries=8, **options),
            new_session=Numbers(),
            random=NoRandom(),
        )
        self.asked: list[RecoveryEffect] = list(self.machine.start())

    def step(self, event: RecoveryEvent) -> None:
        self.asked += self.machine.step(event)

    def last(self, kind: type[E]) -> E:
        return next(effect for effect in reversed(self.asked) if isinstance(effect, kind))

    def reads(self) -> list[ev.SendRead]:
        """The newest read of each bookie."""
        return list({effect.bookie: effect for effect in self.asked if isinstance(effect, ev.SendRead)}.values())


Step = Callable[[Driver], RecoveryEvent]


def just(event: RecoveryEvent) -> Step:
    return lambda driver: event


def written(driver: Driver) -> RecoveryEvent:
    wanted = driver.last(ev.WriteMetadata)
    return ev.MetadataWritten(Versioned(wanted.metadata, wanted.version + 1))


def fenced(index: int, lac: int = -1, attempt: int = 1) -> Step:
    body = lac_body(lac, digester()) if lac >= 0 else b""
    return just(ev.LacAnswered(index + 3 * (attempt - 1), lac_body=body))


def found(index: int, first: int = 0) -> Step:
    return lambda driver: ev.FramesRead(
        driver.reads()[index].request, frame(first, b"one", b"two", length_before=first * 3)
    )


def denied(index: int) -> Step:
    def event(driver: Driver) -> RecoveryEvent:
        read = driver.reads()[index]
        return ev.ReadAnswered(read.request, read.last, absent=(EntryRange(read.first, read.last),))

    return event


def denied_from(index: int, first: int) -> Step:
    def event(driver: Driver) -> RecoveryEvent:
        read = driver.reads()[index]
        return ev.ReadAnswered(read.request, read.last, absent=(EntryRange(first, read.last),))

    return event


def session(driver: Driver, index: int) -> int:
    write_back = driver.machine._write_back
    return write_back.delivery.lanes[index].session if write_back is not None else 1


def acked(index: int, frames: int = 1) -> Step:
    return lambda driver: ev.FramesAcked(index, session(driver, index), frames)


def refused(index: int) -> Step:
    return lambda driver: ev.SessionEnded(index, session(driver, index), 0, Reason.IO_ERROR)


def broken(index: int) -> Step:
    return lambda driver: ev.SessionBroken(index, session(driver, index))


RECORD = just(ev.MetadataRead(FOUND))
CONFLICT = just(ev.MetadataConflicted())
LOST = just(AWAY)
CLAIM = (RECORD, written)
FENCE = (*CLAIM, fenced(0), fenced(1))
TWO = (*FENCE, found(0))
DRAIN = (*TWO, denied_from(0, 2), denied_from(1, 0))
CLOSE = (*FENCE, denied(0), denied(1))
TAKEN = just(ev.MetadataRead(Versioned(FOUND.value.in_recovery(), 9)))


def after(*steps: Step, **options: object) -> Callable[[], Driver]:
    def build() -> Driver:
        driver = Driver(**options)
        for step in steps:
            driver.step(step(driver))
        return driver

    return build


SITUATIONS: dict[str, Callable[[], Driver]] = {
    "asks for the record": after(),
    "the record cannot be read": after(LOST),
    "the last retry allowed": after(LOST, metadata_retries_max=1),
    "claims": after(RECORD),
    "the claim met a conflict": after(RECORD, CONFLICT),
    "the claim met a second conflict": after(RECORD, CONFLICT, CONFLICT),
    "the claim's answer was lost": after(RECORD, LOST, just(ev.TimerFired("metadata"))),
    "fences": after(*CLAIM),
    "one bookie is fenced": after(*CLAIM, fenced(0)),
    "two bookies cannot be fenced": after(*CLAIM, just(ev.LacFailed(0, "hangs")), just(ev.LacFailed(1, "hangs"))),
    "reads": after(*FENCE),
    "reads above a LAC": after(*CLAIM, fenced(0, 4), fenced(1, 4)),
    "two entries were found": after(*TWO),
    "one bookie denies": after(*FENCE, denied(0)),
    "two bookies cannot say": after(
        *FENCE, *[lambda d, i=i: ev.ReadFailed(d.reads()[i].request, "hangs") for i in (0, 1)]
    ),
    "a lane of the write-back waits": after(*TWO, broken(2)),
    "a bookie of the write-back failed": after(*TWO, refused(2)),
    "the store was away when spares were looked for": after(*TWO, refused(2), LOST),
    "no spare was found": after(*TWO, refused(2), just(NO_SPARES)),
    "two bookies of the write-back failed": after(*TWO, refused(2), just(NO_SPARES), refused(1)),
    "too much is to be written back": after(*TWO, write_back_bytes_max=1),
    "too much is to be written back, and the end is known": after(*DRAIN, acked(0), acked(1), write_back_bytes_max=1),
    "one bookie denies what follows": after(*TWO, denied_from(0, 2)),
    "two bookies deny what follows": after(*FENCE, denied_from(0, 2), denied_from(1, 2)),
    "one bookie denies what follows the LAC": after(*CLAIM, fenced(0, 4), fenced(1, 4), denied(0)),
    "asks how long the ledger is": after(*CLAIM, fenced(0, 4), fenced(1, 4), denied(0), denied(1)),
    "one cannot say how long": after(
        *CLAIM,
        *(fenced(0, 4), fenced(1, 4), denied(0), denied(1)),
        *[lambda d, i=i: ev.ReadFailed(d.reads()[i].request, "hangs") for i in (0, 1)],
    ),
    "write-backs are owed": after(*DRAIN),
    "one more ack confirms": after(*DRAIN, acked(0)),
    "the last copy lingers": after(*DRAIN, acked(0), acked(1)),
    "a bookie fails at the end": after(*DRAIN, acked(0), refused(2)),
    "the last copy's bookie fails": after(*DRAIN, acked(0), acked(1), refused(2)),
    "too few bookies are left at the end": after(*DRAIN, refused(2), just(NO_SPARES), refused(1)),
    "no ensemble change is left": after(*DRAIN, ensemble_changes_max=0),
    "closes": after(*CLOSE),
    "the close met a conflict": after(*CLOSE, CONFLICT),
    "the close's answer was lost": after(*CLOSE, LOST),
    "the close cannot be tried again": after(*CLOSE, LOST, metadata_retries_max=1),
    "another recovers": after(RECORD, CONFLICT, TAKEN),
    "another recovers, and we gave it time": after(RECORD, CONFLICT, TAKEN, just(ev.TimerFired("again"))),
    "the last attempt": after(RECORD, CONFLICT, TAKEN, attempts_max=1),
    "closed": after(*CLOSE, written),
    "closed by another": after(just(ev.MetadataRead(Versioned(FOUND.value.closed_at(7, 70), 9)))),
    "given up": after(just(GONE)),
}


def records(driver: Driver) -> Iterable[Versioned[LedgerMetadata]]:
    value = FOUND.value
    yield FOUND
    yield Versioned(value.in_recovery(), FOUND.version)
    yield Versioned(value.in_recovery(), FOUND.version + 1)  # ours, applied
    yield Versioned(value.in_recovery(), FOUND.version + 2)
    yield Versioned(value.closed_at(-1, 0), FOUND.version + 2)
    yield Versioned(value.closed_at(6, 60), FOUND.version + 9)


def events_of(driver: Driver) -> Iterable[RecoveryEvent]:
    yield from (SPARES, NO_SPARES, AWAY, GONE, ev.MetadataConflicted())
    for record in records(driver):
        yield ev.MetadataRead(record)
    if any(isinstance(effect, ev.WriteMetadata) for effect in driver.asked):
        yield written(driver)
    else:
        yield ev.MetadataWritten(Versioned(FOUND.value.in_recovery(), FOUND.version + 1))
    names = ("again", "metadata", "linger", "adds", *(f"{n}:{i}" for n in ("retry", "budget") for i in range(3)))
    yield from (ev.TimerFired(name) for name in names)
    yield from fence_events()
    yield from read_events(driver)
    yield from session_events(driver)


def fence_events() -> Iterable[RecoveryEvent]:
    damaged = bytearray(lac_body(10**12, digester()))
    damaged[15] ^= 1
    for index in (0, 1, 2, 3, 5):
        yield ev.LacAnswered(index)
    yield ev.LacAnswered(1, lac_body=lac_body(4, digester()))
    yield ev.LacAnswered(1, lac_body=bytes(damaged))
    yield ev.LacFailed(1, "hangs")
    yield ev.LacFailed(1, "not your ledger", Reason.UNAUTHORIZED)


def read_events(driver: Driver) -> Iterable[RecoveryEvent]:
    reads = driver.reads() or [ev.SendRead(1, "b0", 0, 7, 1, True)]
    for read in reads:
        payloads = [b"one", b"two"][: read.last - read.first + 1]
        yield ev.FramesRead(read.request, frame(read.first, *payloads, length_before=read.first * 3))
        yield ev.ReadAnswered(read.request, read.last, absent=(EntryRange(read.first, read.last),))
        yield ev.ReadFailed(read.request, "hangs")
    read = reads[-1]
    yield ev.FramesRead(read.request, frame(read.last + 1, b"not asked for", length_before=read.last * 3 + 3))
    yield ev.FramesRead(read.request, memoryview(b"no frame at all"))
    yield ev.ReadAnswered(read.request, read.first - 1)
    yield ev.ReadAnswered(read.request, read.last, unknown=(EntryRange(read.first, read.last),), detail="LIMBO")
    yield ev.ReadAnswered(read.request, read.last + 5)
    yield ev.FramesRead(999, frame(0, b"of no request"))
    yield ev.ReadAnswered(999, 7, absent=(EntryRange(0, 7),))
    yield ev.ReadFailed(999, "of no request")


def session_events(driver: Driver) -> Iterable[RecoveryEvent]:
    for index in range(3):
        yield from (ev.FramesAcked(index, session(driver, index), frames) for frames in (0, 1))
        yield refused(index)(driver)
        yield broken(index)(driver)
    own = session(driver, 1)
    yield from (ev.FramesAcked(1, own, frames) for frames in (-1, 50))
    yield from (ev.SessionEnded(1, own, 1, reason) for reason in (Reason.OVERLOADED, Reason.FENCED, Reason.READ_ONLY))
    yield ev.SessionEnded(2, session(driver, 2), 1, Reason.IO_ERROR)
    yield from (ev.FramesAcked(1, own + 99, 1), ev.SessionBroken(1, own + 99))
    yield ev.SessionEnded(1, own + 99, 0, Reason.IO_ERROR)


def state_of(machine: LedgerRecovery) -> str:
    return machine.phase.name


@pytest.mark.long
def test_every_event_in_every_phase_leads_where_the_table_says() -> None:
    seen = {}
    for build in SITUATIONS.values():
        found = sweep(
            {"": lambda build=build: build().machine},
            lambda machine, build=build: events_of(build()),
            state_of,
            effects_known=members(*members(RecoveryEffect)),
            ends=("DONE",),
            told=lambda machine: str(machine.phase),
        )
        for key, states in found.items():
            seen.setdefault(key, set()).update(states)
    kinds = {cls.__name__ for cls in members(RecoveryEvent)}
    assert set(seen) == {(phase.name, kind) for phase in Phase for kind in kinds}
    assert as_table(seen, Phase.__members__) == TABLE


@pytest.mark.rule("MUST9", "P7")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_reads_fence_the_frozen_ensemble_sessions_recover_and_a_close_bears_the_epoch(situation: str) -> None:
    for event in events_of(SITUATIONS[situation]()):
        driver = SITUATIONS[situation]()
        machine, was = driver.machine, driver.machine.phase
        try:
            effects = machine.step(event)
        except AssertionError:
            continue
        if situation in ("reads", "reads above a LAC"):
            assert machine.phase in (Phase.READ, Phase.DONE), "one bookie alone ends no ledger"
        for effect in effects:
            if isinstance(effect, ev.SendRead):
                assert effect.fence
                assert effect.bookie in FOUND.value.last_fragment.ensemble
            elif isinstance(effect, ev.AttachSession):
                assert effect.mode is AttachMode.RECOVER
            elif isinstance(effect, ev.WriteMetadata):
                assert effect.metadata.is_closed == (machine.phase is Phase.CLOSE)
                assert effect.version == (4 if effect.metadata.is_closed else machine.metadata.version)
        ends = [effect for effect in effects if isinstance(effect, (ev.Fail, ev.FinishRecovery))]
        assert len(ends) == (machine.phase is Phase.DONE and was is not Phase.DONE)
        assert ends == effects[len(effects) - len(ends) :]
        if ends:
            cancelled = {effect.request for effect in effects if isinstance(effect, ev.CancelRead)}
            assert cancelled <= {read.request for read in driver.asked if isinstance(read, ev.SendRead)}
            assert machine._window is None
            assert machine._write_back is None
