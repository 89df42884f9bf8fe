# SPDX-License-Identifier: Apache-2.0
"""Scripts of the ways a client can end that need several things to go wrong at once, or somebody to misbehave.

Each asks for the typed error, and that nothing which was acknowledged is lost by it. Over 400 lines because each corner
is a few lines that read best beside the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import ledger_key
from bk_core.entries.frame import FrameKind
from bk_core.errors import Outcome
from bk_core.model import LedgerState
from bk_core.protocol import events as pe
from bk_core.protocol.recovery import Phase
from tests.sim.checkers import Violation
from tests.sim.clients import RECOVERY, WRITER, RecoveryHost, WriterHost
from tests.sim.knobs import quiet
from tests.sim.readers import TailHost
from tests.sim.store import SimStore
from tests.sim.world import World

ENSEMBLE = ("b1", "b2", "b3")
OTHER_KEY = ledger_key(b"another password")


def require(condition: bool, rule: str, what: str) -> None:
    if not condition:
        raise Violation(rule, what)


def _ends(host: WriterHost | RecoveryHost | TailHost, name: str) -> None:
    found = type(host.error).__name__
    require(found == name, "E1", f"{host.name} ended with {host.error!r}, not {name}")


def _silent(world: World, client: str, *bookies: str) -> None:
    for bookie in bookies:
        there, back = world.links(client, bookie)
        world.hold(*there, *back)


def _left_behind(world: World, entries: int = 3, **options: Any) -> WriterHost:
    """A ledger with confirmed entries whose writer died."""
    writer = world.writer("w", ENSEMBLE, **options)
    writer.append(entries)
    world.run_for(60)
    writer.die()
    world.network.leave("w")
    world.run_for(20)
    return writer


def wrong_password() -> None:
    """L2: who does not know the password neither fences nor writes."""
    world = World("corner", quiet())
    writer = _left_behind(world)
    stranger = world.recover(writer.ledger_id, key=OTHER_KEY)
    world.run_for(1_000)
    _ends(stranger, "WrongPasswordError")
    owner = world.recover(writer.ledger_id, "r2", tries=15)
    world.run_for(10_000)
    require(owner.finished is not None, "L2", "a stranger's attempt stands in the owner's way")


def bookies_under_another_password() -> None:
    """L2: bookies hold another ledger under this id."""
    world = World("corner", quiet())
    ledger_id = world.new_ledger("nobody", ENSEMBLE)[0] + 1
    for name in ENSEMBLE:
        world.bookies[name].back_end.holdings.fold(ledger_id, FrameKind.LEDGER_KEY, OTHER_KEY)
    writer = world.writer("w", ENSEMBLE)
    writer.append(1)
    world.run_for(500)
    _ends(writer, "WrongPasswordError")


def deleted_on_the_bookies() -> None:
    """A ledger that was deleted takes no more entries (D18)."""
    world = World("corner", quiet())
    writer = world.writer("w", ENSEMBLE)
    world.run_for(10)
    for name in ENSEMBLE:
        world.bookies[name].back_end.holdings.fold(writer.ledger_id, FrameKind.DELETED)
        world.bookies[name].kill(in_commit=False)
        world.restart(name)
    writer.append(1)
    world.run_for(3_000)
    _ends(writer, "NoSuchLedgerError")


def _closed_by_another(end: int) -> WriterHost:
    world = World("corner", quiet())
    writer = world.writer("w", ENSEMBLE)
    writer.append(3)
    world.run_for(50)
    record = world.store.newest(writer.ledger_id)
    assert record is not None
    world.store.on_write = lambda *_: None  # this client breaks the rules
    changed = replace(record.value.closed_at(end, 9), custom_metadata={"by": b"another"})
    world.store.store.write_ledger(writer.ledger_id, changed, record.version)
    world.store._sync(writer.ledger_id, "another")
    writer.close()
    world.run_for(1_000)
    return writer


def closed_by_another_at_the_same_end() -> None:
    """A close that finds the ledger closed at the same entry is a success (MUST8)."""
    writer = _closed_by_another(2)
    require(writer.closed is not None and writer.error is None, "MUST8", f"the close failed: {writer.error!r}")


def closed_by_another_elsewhere() -> None:
    """A close that finds the ledger closed at another entry is an error (MUST8)."""
    _ends(_closed_by_another(1), "MetadataConflictError")


def never_confirmed() -> None:
    """MUST 12: an add that no quorum confirms in time ends the writer, its outcome unknown."""
    world = World("corner", quiet())
    writer = world.writer("w", ENSEMBLE, config=replace(WRITER, add_quorum_timeout_ms=500, add_timeout_ms=2_000))
    _silent(world, "w", "b1", "b2")
    writer.append(1)
    world.run_for(3_000)
    _ends(writer, "QuorumTimeoutError")


def one_change_after_the_other() -> None:
    """MUST 12: ensemble changes without an entry confirmed in between are bounded."""
    world = World("corner", quiet(3, 3, 3, spares=3))
    config = replace(WRITER, ensemble_changes_max=1, add_timeout_ms=200, reconnect_budget_ms=100)
    writer = world.writer("w", ENSEMBLE, config=config)
    _silent(world, "w", "b1", "b4", "b5", "b6")
    writer.append(1)
    world.run_for(5_000)
    _ends(writer, "QuorumTimeoutError")


def _contended(world: World, ledger_id: int, change: Callable[[Any], Any]) -> None:
    """Somebody writes the record right before every other client's write."""
    store: SimStore = world.store
    write = store._write

    def beaten(client: str, asked: int, metadata: Any, version: int) -> Any:
        found = store.store.read_ledger(ledger_id)
        if not found.value.is_closed:
            store.store.write_ledger(ledger_id, change(found.value), found.version)
            store._sync(ledger_id, "rival")
        return write(client, asked, metadata, version)

    store._write = beaten


def recovery_that_always_meets_an_open_record() -> None:
    """MUST 12: conflicts are bounded."""
    world = World("corner", quiet())
    writer = _left_behind(world)
    _contended(world, writer.ledger_id, lambda value: value)
    recoverer = world.recover(writer.ledger_id)
    world.run_for(20_000)
    _ends(recoverer, "RecoveryInconclusiveError")


def recovery_that_always_meets_another() -> None:
    """P7: at most ten attempts."""
    world = World("corner", quiet())
    writer = _left_behind(world)
    _contended(world, writer.ledger_id, lambda value: replace(value, state=LedgerState.IN_RECOVERY))
    recoverer = world.recover(writer.ledger_id)
    world.run_for(200_000)
    _ends(recoverer, "RecoveryInconclusiveError")


def close_that_always_conflicts() -> None:
    """MUST 12: conflicts of a close are bounded."""
    world = World("corner", quiet())
    writer = world.writer("w", ENSEMBLE)
    writer.append(1)
    world.run_for(50)
    _contended(world, writer.ledger_id, lambda value: value)
    writer.close()
    world.run_for(20_000)
    _ends(writer, "MetadataConflictError")


def last_confirmed_entry_unreadable() -> None:
    """The ledger's length is not known: recovery does not guess it."""
    world = World("corner", quiet())
    writer = _left_behind(world)
    for bookie in world.bookies.values():
        for ledger in bookie.back_end.holdings.ledgers.values():
            for frame in ledger.frames:
                frame.damaged = True
    recoverer = world.recover(writer.ledger_id)
    world.run_for(5_000)
    _ends(recoverer, "RecoveryInconclusiveError")


def large_entries() -> None:
    """Recovery writes back in pieces that fit a frame."""
    world = World("corner", quiet(bookie_bytes_max=64 << 20))
    writer = world.writer("w", ENSEMBLE, config=replace(WRITER, slow_bookie_bytes_max=1 << 30))
    payloads = [bytes([number]) * (1 << 20) for number in range(4)]
    world.checker.truth(writer.ledger_id).given += payloads
    writer.feed(pe.Append(EntryBatch.from_list(payloads)))
    world.run_for(20)
    writer.die()
    world.network.leave("w")
    world.run_for(50)
    config = replace(RECOVERY, read_bytes_max=16 << 20, write_back_bytes_max=16 << 20)
    recoverer = world.recover(writer.ledger_id, config=config)
    world.run_for(2_000)
    require(recoverer.finished is not None, "P7", f"recovery failed: {recoverer.error!r}")
    assert recoverer.finished is not None
    require(recoverer.finished.value.last_entry_id == 3, "P7", "entries were lost")


def store_away_while_replacing() -> None:
    """The look for a spare bookie is repeated until the store is there again."""
    world = World("corner", quiet(3, 3, 2, spares=1))
    writer = _left_behind(world, config=replace(WRITER, explicit_lac_delay_ms=10_000))
    world.crash("b1")
    recoverer = world.recover(writer.ledger_id)
    while recoverer.machine._write_back is None and world.scheduler.step():
        pass
    world.store.away("r", True)
    world.run_for(600)
    world.store.away("r", False)
    world.run_for(3_000)
    require(recoverer.finished is not None, "MUST12", f"recovery failed: {recoverer.error!r}")


def fewer_spares_than_failures() -> None:
    """P7: recovery goes on with what is left, or says that it cannot."""
    world = World("corner", quiet(5, 2, 2, spares=1))
    five = ("b1", "b2", "b3", "b4", "b5")
    writer = world.writer("w", five, config=replace(WRITER, explicit_lac_delay_ms=10_000))
    writer.append(6)
    world.run_for(60)
    writer.die()
    world.network.leave("w")
    world.run_for(10)
    recoverer = world.recover(writer.ledger_id)
    while recoverer.machine._write_back is None and world.scheduler.step():
        pass
    world.crash("b1")
    world.crash("b3")
    world.run_for(5_000)
    require(recoverer.over, "MUST12", "recovery never ends")
    for name in ("b1", "b3"):
        world.restart(name)
    again = world.recover(writer.ledger_id, "r2", tries=5)
    world.run_for(5_000)
    require(again.finished is not None, "P7", f"recovery failed: {again.error!r}")


def recovery_changes_without_end() -> None:
    """MUST 12: the ensemble changes of a recovery are bounded."""
    world = World("corner", quiet(2, 2, 2, spares=3))
    writer = world.writer("w", ("b1", "b2"), config=replace(WRITER, explicit_lac_delay_ms=10_000))
    writer.append(2)
    world.run_for(60)
    writer.die()
    world.network.leave("w")
    world.crash("b1")
    _silent(world, "r", "b3", "b4", "b5")
    config = replace(RECOVERY, ensemble_changes_max=1, add_timeout_ms=200, reconnect_budget_ms=100)
    recoverer = world.recover(writer.ledger_id, config=config)
    world.run_for(5_000)
    _ends(recoverer, "RecoveryInconclusiveError")


def record_closed_below_what_was_shown() -> None:
    """I8: a tail that was shown entry 2 does not take an end of 1 for the end."""
    world = World("corner", quiet())
    writer = world.writer("w", ENSEMBLE)
    tail = world.tail(writer.ledger_id)
    assert tail is not None
    writer.append(3)
    world.run_for(100)
    record = world.store.newest(writer.ledger_id)
    assert record is not None
    tail.feed(pe.MetadataChanged(replace(record, value=record.value.closed_at(1, 9), version=record.version + 1)))
    _ends(tail, "IntegrityError")


def watch_refused() -> None:
    """P10: a watch that could not be set is set later; of a deleted ledger a tail says so."""
    world = World("corner", quiet())
    writer = world.writer("w", ENSEMBLE)
    world.store.away("t", True)
    tail = world.tail(writer.ledger_id)
    assert tail is not None
    world.run_for(100)
    world.store.away("t", False)
    writer.append(1)
    world.run_for(1_000)
    require(tail.next == 1, "P10", "the tail never got going")
    gone = world.new_ledger("nobody", ENSEMBLE)[0]
    late = TailHost(world, "t2", gone, world.store.newest(gone))
    world.store.delete(gone)
    world.run_for(1_000)
    _ends(late, "NoSuchLedgerError")


def impossible_events() -> None:
    """What nobody asked for is a bug of the driver: an assertion that names state and event."""
    world = World("corner", quiet())
    writer = world.writer("w", ENSEMBLE)
    recoverer = world.recover(writer.ledger_id)
    world.run_for(500)
    record = world.store.newest(writer.ledger_id)
    assert record is not None
    fresh = world.recover(writer.ledger_id, "r2")
    for machine, event in (
        (writer.machine, pe.MetadataWritten(record)),
        (writer.machine, pe.BookiesRead(())),
        (writer.machine, object()),
        (fresh.machine, pe.MetadataWritten(record)),
        (fresh.machine, object()),
    ):
        try:
            machine.step(event)
        except AssertionError as error:
            require(bool(str(error)), "E1", "the assertion does not say what happened where")
        else:
            require(machine.state.name == "FAILED", "E1", f"{event} was taken") if machine is writer.machine else None
    require(recoverer.finished is not None, "P7", f"recovery failed: {recoverer.error!r}")


def store_away_for_too_long() -> None:
    """MUST 11: the last call's outcome is not that of what is in flight, nor that of a close before it."""
    world = World("corner", quiet(3, 3, 3, spares=1))
    writer = world.writer("w", ENSEMBLE)
    world.crash("b1")
    writer.append(1)
    world.store.away("w", True)
    world.run_for(3_000)
    _ends(writer, "MetadataUnavailableError")
    assert writer.error is not None
    require(writer.error.outcome is Outcome.UNKNOWN, "MUST11", f"{writer.error!r}: {writer.error.outcome}")


def _close_applied_and_store_away(world: World, host: WriterHost | RecoveryHost) -> None:
    """The store applies the close, and neither its answer nor any other comes back."""
    world.store.lose_next[host.name] = [True]
    while world.checker.truth(host.ledger_id).closed_at is None and world.scheduler.step():
        pass
    world.store.away(host.name, True)
    world.run_for(5_000)
    _ends(host, "MetadataUnavailableError")
    assert host.error is not None
    require(host.error.outcome is Outcome.UNKNOWN, "MUST11", f"closed, and {host.name} says {host.error.outcome}")


def close_applied_and_store_away() -> None:
    """MUST 8, MUST 11: a close whose answer was lost is not called "not applied"."""
    world = World("corner", quiet())
    writer = world.writer("w", ENSEMBLE)
    writer.append(1)
    world.run_for(50)
    writer.close()
    _close_applied_and_store_away(world, writer)
    world = World("corner", quiet())
    recoverer = world.recover(_left_behind(world).ledger_id)
    while recoverer.machine.phase is not Phase.CLOSE and world.scheduler.step():
        pass
    _close_applied_and_store_away(world, recoverer)


def no_spare_where_all_is_confirmed() -> None:
    """P8: a close needs no spare bookie for entries that are confirmed; what misses them is marked."""
    world = World("corner", quiet(spares=0))
    writer = world.writer("w", ENSEMBLE)
    world.crash("b1")
    writer.append(1)
    while writer.machine.change is None and world.scheduler.step():
        pass
    writer.close()
    world.run_for(1_000)
    require(writer.closed is not None, "P8", f"the close failed: {writer.error!r}")
    require(world.store.marked(writer.ledger_id) == ("b1",), "P8", "b1 was not marked")


CORNERS: dict[str, Callable[[], None]] = {
    function.__name__.replace("_", " "): function
    for function in (
        wrong_password,
        bookies_under_another_password,
        deleted_on_the_bookies,
        closed_by_another_at_the_same_end,
        closed_by_another_elsewhere,
        never_confirmed,
        one_change_after_the_other,
        recovery_that_always_meets_an_open_record,
        recovery_that_always_meets_another,
        close_that_always_conflicts,
        last_confirmed_entry_unreadable,
        large_entries,
        store_away_while_replacing,
        fewer_spares_than_failures,
        recovery_changes_without_end,
        record_closed_below_what_was_shown,
        watch_refused,
        impossible_events,
        store_away_for_too_long,
        close_applied_and_store_away,
        no_spare_where_all_is_confirmed,
    )
}
