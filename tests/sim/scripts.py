# SPDX-License-Identifier: Apache-2.0
"""Scripted schedules: for each defect that random schedules show too rarely, the few steps that show it.

A script runs the product's machines in a quiet world, holds links, and chooses the order of the events that matter. It
raises Violation if the defect is planted. On the product every script passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bk_core import quorum
from bk_core.entries.digest import ledger_key
from bk_core.entries.frame import FrameKind
from bk_core.errors import (
    BookKeeperError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    Outcome,
    WrongPasswordError,
)
from bk_core.model import DigestType
from bk_core.protocol import events as pe
from bk_core.protocol.recovery import Phase
from tests.sim.checkers import Violation
from tests.sim.clients import RECOVERY, WRITER, RecoveryHost, WriterHost
from tests.sim.host import REQUEST_MS, Host
from tests.sim.knobs import quiet
from tests.sim.readers import ReadHost
from tests.sim.world import World

ENSEMBLE = ("b1", "b2", "b3")


def _require(condition: bool, rule: str, what: str) -> None:
    if not condition:
        raise Violation(rule, what)


def _isolate(world: World, client: str, bookie: str) -> None:
    there, back = world.links(client, bookie)
    world.hold(*there, *back)


def _die(world: World, host: Host) -> None:
    """Let the client die. Its messages that have not arrived are lost."""
    host.die()
    for lane in world.scheduler.held:
        world.scheduler.drop_held(lane)
    world.network.leave(host.name)


def empty_last_fragment() -> None:
    """D2: the last fragment is empty, and its bookies know no LAC. The entries before it are settled all the same."""
    world = World("script", quiet(2, 2, 2, spares=2))
    writer = world.writer("w", ("b1", "b2"))
    for _ in range(3):
        writer.append(1)
        world.run_for(50)
    for name in world.bookies:
        _isolate(world, "w", name)
    writer.append(1)
    world.run_for(1_500)  # both are replaced, and nothing reaches their replacements
    record = world.store.newest(writer.ledger_id)
    _require(record is not None and len(record.value.fragments) == 2, "setup", f"no ensemble change: {record}")
    _die(world, writer)
    recoverer = world.recover(writer.ledger_id, tries=3)
    world.run_for(2_000)
    _require(recoverer.finished is not None, "D2", f"recovery failed: {recoverer.error!r}")
    _require(recoverer.machine.recovered == 0, "D2", "entries of settled fragments were recovered again")


def reads_follow() -> None:
    """D4: a bookie is replaced while recovery writes back. The new one knows nothing about entries that are not read
    yet."""
    world = World("script", quiet(3, 3, 2, spares=1, latency_ms=0.2))
    writer = world.writer("w", ENSEMBLE, config=replace(WRITER, explicit_lac_delay_ms=10_000))
    _isolate(world, "w", "b3")
    for _ in range(8):  # all at once, so that no entry carries a LAC
        writer.append(1)
    world.run_for(30)
    _require(writer.machine.lac == 7, "setup", "b1 and b2 should have confirmed all")
    _die(world, writer)
    world.crash("b1")
    config = replace(RECOVERY, read_window_entries=1, write_back_bytes_max=1, reconnect_budget_ms=5, retry_delay_ms=1)
    recoverer = world.recover(writer.ledger_id, config=config)
    world.run_for(2_000)
    _require(recoverer.finished is not None, "D4", f"recovery failed: {recoverer.error!r}")


def hung_bookie() -> None:
    """D15: b3 hangs. b1 and b2 deny the entry, which is enough."""
    world = World("script", quiet(3, 3, 2, spares=1))
    writer = world.writer("w", ENSEMBLE)
    writer.append(2)
    world.run_for(50)
    writer.die()
    _isolate(world, "r", "b3")
    recoverer = world.recover(writer.ledger_id)
    world.run_for(REQUEST_MS / 2)
    _require(recoverer.finished is not None, "D15", "recovery waits for a bookie that hangs")


def two_recoverers() -> None:
    """P7: of many recoverers at once each ends well, because they give way to each other."""
    world = World("script", quiet(3, 3, 2, spares=1))
    writer = world.writer("w", ENSEMBLE, config=replace(WRITER, explicit_lac_delay_ms=10_000))
    for _ in range(6):
        writer.append(1)
    world.run_for(30)
    _die(world, writer)
    hosts = [world.recover(writer.ledger_id, f"r{number}") for number in range(5)]
    world.run_for(60_000)
    errors = [host.error for host in hosts if host.finished is None]
    _require(not errors, "P7", f"recoverers were in each other's way for ever: {errors}")


def large_ids() -> None:
    """D29: write sets of entries beyond 31 and 32 bits."""
    for entry in (0, 7, 1 << 31, (1 << 32) + 3, (1 << 63) - 1):
        for size, copies in ((3, 2), (5, 3), (7, 4)):
            wanted = tuple((entry + i) % size for i in range(copies))
            found = quorum.write_set(entry, size, copies)
            _require(found == wanted, "D29", f"entry {entry} of {size}: {found}, not {wanted}")


def overload() -> None:
    """P1: b1 to b3 are slow and refuse too much data. A later frame is small enough again."""
    world = World("script", quiet(3, 3, 3, spares=0, latency_ms=0.1, sync_ms=60.0))
    writer = world.writer("w", ENSEMBLE, config=replace(WRITER, reconnect_budget_ms=5_000, add_timeout_ms=8_000))
    for _ in range(14):
        writer.append(150)
        world.run_for(1)
    for _ in range(20):
        world.run_for(20)
        writer.append(1)
    world.run_for(20_000)
    _require(writer.error is None, "P1", f"the writer failed: {writer.error!r}")
    _require(writer.machine.idle, "P1", "some entries were never confirmed")


def idle_writer() -> None:
    """P9: the writer is idle after its last entry. A tail sees this entry all the same."""
    world = World("script", quiet())
    writer = world.writer("w", ENSEMBLE)
    tail = world.tail(writer.ledger_id)
    assert tail is not None
    world.run_for(20)
    writer.append(1)
    world.run_for(60)
    _require(tail.next == 1, "P9", "an acknowledged entry is not seen within 50 ms")


def one_way_to_the_tail() -> None:
    """P10: the tail gets nothing from b1, which hangs."""
    world = World("script", quiet())
    writer = world.writer("w", ENSEMBLE)
    tail = world.tail(writer.ledger_id)
    assert tail is not None
    _isolate(world, "t", "b1")
    writer.append(1)
    world.run_for(60)
    _require(tail.machine.lac == 0, "P10", "the tail hangs on one bookie")


def lost_entry() -> None:
    """MUST14: all copies of an entry are gone."""
    world = World("script", quiet())
    writer = world.writer("w", ENSEMBLE)
    for _ in range(3):
        writer.append(1)
        world.run_for(30)
    writer.close()
    world.run_for(300)
    assert writer.closed is not None
    for bookie in world.bookies.values():
        for ledger in bookie.back_end.holdings.ledgers.values():
            ledger.frames = [frame for frame in ledger.frames if frame.extent.first != 1]
    world.checker.bookies.clear()
    ends: list[BookKeeperError | None] = []
    ReadHost(world, "reader", writer.ledger_id, writer.closed.value, 0, 2, ends.append)
    world.run_for(5_000)
    _require(len(ends) == 1 and isinstance(ends[0], NoSuchEntryError), "MUST14", f"the reader ended with {ends}")


def apaches_fences_are_lost() -> None:
    """MUST3: Apache's bookies answer that there is no entry before their fences are on disk, and then lose the
    fences."""
    world = World("script", quiet(3, 3, 2, spares=0, apache=1.0, torn_commit=0.0))
    writer = world.writer("w", ENSEMBLE)
    world.hold(*(f"{name} disk" for name in ENSEMBLE))
    recoverer = world.recover(writer.ledger_id)
    world.run_for(REQUEST_MS / 2)
    _require(recoverer.finished is None, "MUST3", "fences that are not on disk yet were believed")
    for name in ENSEMBLE:
        world.crash(name)
        world.restart(name)
    world.release()
    writer.append(1)
    world.run_for(5_000)


def bookies_under_another_password() -> None:
    """L2: bookies hold another ledger under this id."""
    world = World("script", quiet())
    ledger_id = world.new_ledger("nobody", ENSEMBLE)[0] + 1
    for name in ENSEMBLE:
        world.bookies[name].back_end.holdings.fold(ledger_id, FrameKind.LEDGER_KEY, ledger_key(b"another password"))
    writer = world.writer("w", ENSEMBLE)
    writer.append(1)
    world.run_for(500)
    _require(isinstance(writer.error, WrongPasswordError), "L2", f"the writer ended with {writer.error!r}")


def deleted_on_the_bookies() -> None:
    """D18, MUST 11: a deleted ledger takes no more entries, and entries in flight are in doubt."""
    world = World("script", quiet())
    writer = world.writer("w", ENSEMBLE)
    world.run_for(10)
    for name in ENSEMBLE:
        world.bookies[name].back_end.holdings.fold(writer.ledger_id, FrameKind.DELETED)
        world.bookies[name].kill(in_commit=False)
        world.restart(name)
    writer.append(1)
    world.run_for(3_000)
    _require(isinstance(writer.error, NoSuchLedgerError), "D18", f"the writer ended with {writer.error!r}")


def _ends_unknown(host: WriterHost | RecoveryHost) -> None:
    _require(isinstance(host.error, MetadataUnavailableError), "E1", f"{host.name} ended with {host.error!r}")
    assert host.error is not None
    _require(host.error.outcome is Outcome.UNKNOWN, "MUST11", f"{host.error!r}: {host.error.outcome}")


def close_applied_and_store_away() -> None:
    """MUST 8, MUST 11: a close whose answer was lost is not called "not applied"."""
    world = World("script", quiet())
    writer = world.writer("w", ENSEMBLE)
    writer.append(1)
    world.run_for(50)
    writer.close()
    _close_applied_and_store_away(world, writer)
    world = World("script", quiet())
    writer = world.writer("w", ENSEMBLE)
    writer.append(3)
    world.run_for(60)
    _die(world, writer)
    recoverer = world.recover(writer.ledger_id)
    while recoverer.machine.phase is not Phase.CLOSE and world.scheduler.step():
        pass
    _close_applied_and_store_away(world, recoverer)


def _close_applied_and_store_away(world: World, host: WriterHost | RecoveryHost) -> None:
    """Let the store apply the close, and lose its answer and all later ones."""
    world.store.lose_next[host.name] = [True]
    while world.checker.truth(host.ledger_id).closed_at is None and world.scheduler.step():
        pass
    world.store.away(host.name, True)
    world.run_for(5_000)
    _ends_unknown(host)


def no_spare_where_all_is_confirmed() -> None:
    """P8: a close needs no spare bookie for confirmed entries. The bookies that lack some are marked."""
    world = World("script", quiet(spares=0))
    writer = world.writer("w", ENSEMBLE)
    world.crash("b1")
    writer.append(1)
    while writer.machine.change is None and world.scheduler.step():
        pass
    writer.close()
    world.run_for(1_000)
    _require(writer.closed is not None, "P8", f"the close failed: {writer.error!r}")
    _require(world.store.marked(writer.ledger_id) == ("b1",), "P8", "b1 was not marked")


def acks_of_too_many() -> None:
    """P1-table: bookies ack frames that they were never sent, while the writer sits in the table of lone entries."""
    world = World("script", quiet(3, 3, 2, spares=2, latency_ms=0.2))
    world.digest_type = DigestType.CRC32C
    writer = world.writer("w", ENSEMBLE)
    writer.append(1)
    world.run_for(20)
    writer.append(1)
    _require(writer.sits, "setup", "the writer should sit")
    session = writer.machine.delivery.common_session
    for index in range(2):
        writer.feed(pe.FramesAcked(index, session, 9))
    _require(writer.machine.lac == 0, "P1-table", "an ack of too many frames confirmed an entry")
    world.run_for(2_000)
    _require(writer.machine.lac == 1, "P1-table", "the entry was never confirmed")


SCRIPTS: dict[str, Callable[[], None]] = {
    "acks of too many": acks_of_too_many,
    "empty last fragment": empty_last_fragment,
    "reads follow": reads_follow,
    "hung bookie": hung_bookie,
    "two recoverers": two_recoverers,
    "large ids": large_ids,
    "overload": overload,
    "idle writer": idle_writer,
    "one way to the tail": one_way_to_the_tail,
    "lost entry": lost_entry,
    "Apache's fences are lost": apaches_fences_are_lost,
    "bookies under another password": bookies_under_another_password,
    "deleted on the bookies": deleted_on_the_bookies,
    "close applied and store away": close_applied_and_store_away,
    "no spare where all is confirmed": no_spare_where_all_is_confirmed,
}
