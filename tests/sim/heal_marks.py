# SPDX-License-Identifier: Apache-2.0
"""Finds missing copies in profile *heal*: the product's auditors, of which there may be two, and the product's checks
of bookies on their own copies. There is also a worker of Apache's, which removes marks too early.

The code of auditors blocks. Before a call of an auditor the world may go on, the store may go away, or the auditor's
process may end. A bookie awaits calls over its line to the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from bk_core.errors import BookKeeperError, MetadataUnavailableError, Outcome
from bk_core.metadata.records import BookieOrder
from bk_core.metadata.unreadable import UnreadableNodes
from bk_core.model import INCARNATION_PROPERTY, BookieId, BookieServiceInfo, EntryId, LedgerId
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import Reason
from bookie_server.autorecovery.auditor import Auditor
from bookie_server.autorecovery.own_copies import OwnCopies
from bookie_server.autorecovery.presence import Presence, Present
from bookie_server.autorecovery.settings import AutoRecoveryConfig
from bookie_server.machine import events as ev
from tests.kit.memory_holdings import MemoryHoldings
from tests.kit.memory_store import MemoryStore
from tests.sim.bookie import MemoryBackEnd
from tests.sim.checkers import Violation
from tests.sim.clients import RecoveryHost, WriterHost

if TYPE_CHECKING:
    from tests.sim.heal import HealWorld

TICK_MS = 40.0
AUDIT_MS = 60.0


class Registrations:
    """The part of the store that lists the bookies, made from the world."""

    def __init__(self, world: HealWorld) -> None:
        self._world = world
        self._infos: dict[tuple[BookieId, int], BookieServiceInfo] = {}
        self.unreadable = UnreadableNodes()

    def sync(self) -> None: ...

    def known_bookies(self) -> list[BookieId]:
        return [name for name in self._world.bookies if name not in self._world.operators.removed]

    def _info(self, name: BookieId) -> BookieServiceInfo:
        key = name, self._world.incarnations.get(name, 0)
        if key not in self._infos:
            self._infos[key] = BookieServiceInfo(name, properties={INCARNATION_PROPERTY: str(key[1])})
        return self._infos[key]

    def writable_bookies(self) -> dict[BookieId, BookieServiceInfo]:
        return {name: self._info(name) for name in self._world.store.registered}

    def read_only_bookies(self) -> dict[BookieId, BookieServiceInfo]:
        writable = self._world.store.registered
        return {name: self._info(name) for name in self._world.present() if name not in writable}

    def lost_bookie_recovery_delay_s(self) -> None:
        return None

    def bookie_orders(self) -> Mapping[BookieId, BookieOrder]:
        return self._world.operators.orders


class CheckedPresence(Presence):
    """Checks that no bookie counts as lost that this process saw within the delay."""

    def __init__(self, world: HealWorld, registrations: Registrations) -> None:
        self._world, self._born, self._seen = world, world.scheduler.now, dict[BookieId, float]()
        super().__init__(registrations, world.delay_ms / 1000, clock=lambda: world.scheduler.now / 1000)

    def look(self, named: Iterable[BookieId] = ()) -> Present:
        found, now = super().look(named), self._world.scheduler.now
        self._seen.update(dict.fromkeys(self._world.present(), now))
        for bookie in found.lost:
            away_ms = now - self._seen.get(bookie, self._born)
            if away_ms < self._world.delay_ms - 1e-6:
                raise Violation("delay", f"{bookie} counts as lost after {away_ms} ms")
        return found


# --- auditors --------------------------------------------------------------------------------------------------------


class Died(BaseException):
    """Raised when the process of an auditor ends at a call."""


class BlockingStore:
    """The store for an auditor's code. ``stood_still`` says whether time passed in a call."""

    def __init__(self, auditor: SimAuditor, store: MemoryStore) -> None:
        self._auditor, self._store = auditor, store

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        def call(*args: Any) -> Any:
            self._auditor.before_call()
            return method(*args)

        return call

    def mark_underreplicated(self, ledger_id: LedgerId, missing: tuple[BookieId, ...]) -> None:
        auditor = self._auditor
        auditor.before_call()
        auditor.world.scheduler.reached("a lost bookie was marked")
        if auditor.may_not_mark and auditor.world.operators.paused:
            raise Violation("pause", f"{auditor.name} marks ledger {ledger_id}, and repairs were paused before")
        if auditor.loses_answers and auditor.draw.random() < 0.2:
            self._store.tree.lose_next_answer(applied=auditor.draw.random() < 0.5)
        self._store.mark_underreplicated(ledger_id, missing)


class SimAuditor:
    """The processes of one auditor, one after the other. Each runs the product's auditor."""

    def __init__(self, world: HealWorld, name: str, draw: Random) -> None:
        self.world, self.name, self.draw = world, name, draw
        self.store = MemoryStore(world.store.cluster)
        self.dies = draw.choice((0.0, 0.0, 0.05))
        self.loses_answers = draw.random() < 0.3
        self._rescan_s = draw.choice((0.3, 3_600.0))
        self._is_slow = draw.random() < 0.3
        self.lives = 0
        self.may_not_mark = False

    def start(self) -> None:
        world = self.world
        self.lives += 1
        presence = CheckedPresence(world, world.registrations)
        config = AutoRecoveryConfig(lost_bookie_delay_s=world.delay_ms / 1000, rescan_s=self._rescan_s)
        self.auditor = Auditor(
            BlockingStore(self, self.store),
            self.name,
            presence,
            config,
            clock=lambda: world.scheduler.now / 1000,
            readers=0,  # the world goes on within a call of the store, and has one thread
        )
        self._wait(TICK_MS / 2)

    def _wait(self, delay_ms: float) -> None:
        self.world.scheduler.at(delay_ms, "auditor clock", f"{self.name} looks", self._look)

    def before_call(self) -> None:
        world = self.world
        is_lost = self.loses_answers and self.draw.random() < 0.05
        if is_lost or world.store.is_away(self.name):
            raise MetadataUnavailableError("the store is away", value=self.name, outcome=Outcome.NOT_APPLIED)
        if self.dies and self.draw.random() < self.dies:
            raise Died
        if self._is_slow and self.draw.random() < 0.2:
            world.run_for(self.draw.expovariate(1 / 5.0))

    def _look(self) -> None:
        paused = self.world.operators.paused
        self.may_not_mark = paused
        was = self.auditor.elected
        try:
            self.auditor.look()
        except Died:
            self.world.scheduler.reached("an auditor died at work")
            self.world.scheduler.at(100, "auditor clock", f"{self.name} starts again", self._start_again)
            return
        except BookKeeperError:
            self.world.scheduler.reached("an auditor could not look")
        if self.auditor.elected and not was:
            self.world.scheduler.reached("an auditor was elected")
        self._wait(AUDIT_MS)

    def _start_again(self) -> None:
        new_session(self.store)
        self.start()


def new_session(store: MemoryStore) -> None:
    """End the session of a store with its locks and votes, and begin a new one."""
    tree = store.tree
    tree._cluster.end_session(tree.session_id)
    tree._session_id = tree._cluster.new_session()


# --- own copies ------------------------------------------------------------------------------------------------------


class NotingHoldings(MemoryHoldings):
    """Notes the ledgers in which damage was found, as the product's index does."""

    def __init__(self) -> None:
        super().__init__()
        self.suspects: dict[LedgerId, None] = {}

    def mark_damaged(self, ledger_id: LedgerId, place: ev.Place) -> None:
        super().mark_damaged(ledger_id, place)
        self.suspects[ledger_id] = None


class HealBackEnd(MemoryBackEnd):
    """A back end whose new process knows no damage."""

    holdings: NotingHoldings

    def __init__(self) -> None:
        super().__init__()
        self.holdings = NotingHoldings()

    def restart(self) -> None:
        self.holdings.suspects.clear()
        for frame in self._damaged():
            frame[1].known_damaged = False

    def scrub(self) -> None:
        for ledger_id, frame in self._damaged():
            if not frame.known_damaged:
                self.holdings.mark_damaged(ledger_id, frame)

    def _damaged(self) -> list[tuple[LedgerId, Any]]:
        return [(i, f) for i, ledger in self.holdings.ledgers.items() for f in ledger.frames if f.damaged]

    @property
    def is_damaged(self) -> bool:
        return bool(self._damaged())


class Ask:
    """An awaitable question. ``begin`` gets the function to call with the answer, which may be an exception."""

    def __init__(self, begin: Callable[[Callable[[Any], None]], None]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self._begin)


class _Question:
    """A stream of the bookie's machine for one request of the bookie's own."""

    def __init__(self, done: Callable[[Any], None]) -> None:
        self._done = done

    def deliver(self, effect: Any) -> None:
        if isinstance(effect, ev.SendTrailer):
            self._done(BookKeeperError(effect.reason.name) if effect.reason else effect.trailer)

    def cut(self, why: str) -> None:
        self._done(BookKeeperError(why))


class SimOwnCopies:
    """The product's check of a bookie's own copies. Each process of the bookie has its own."""

    def __init__(self, world: HealWorld, name: BookieId) -> None:
        self.world, self.name = world, name
        self.own: OwnCopies | None = None
        self._starts = -1
        self._begun = False
        self._round: Any = None

    @property
    def is_pending(self) -> bool:
        """Whether it checks a ledger now, or will check one."""
        bookie = self.world.bookies[self.name]
        if not bookie.alive:
            return False
        new = self._starts != bookie.starts or not self._begun
        return bool(bookie.back_end.holdings.suspects) or (
            bool(self._in_limbo()) if new else self._round is not None or bool(self.own and len(self.own.suspects))
        )

    def look(self) -> None:
        bookie = self.world.bookies[self.name]
        if not bookie.alive:
            return
        if self._starts != bookie.starts:
            self._starts, self._begun = bookie.starts, False
            if self._round is not None:
                self._round.close()
            self._round = None
            clock = lambda: self.world.scheduler.now  # noqa: E731  # a second of production's is a millisecond here
            self.own = OwnCopies(
                self.world.store.store, self.name, self._gaps, self._source, clock=clock, call=self._call
            )
        if self._round is None and self.is_pending and self.own is not None:
            self._round = self.own.round()
            self._go_on(self._round, None)

    def _go_on(self, round_: Any, answer: Any) -> None:
        if round_ is not self._round:
            return  # from a process that has ended
        bookie = self.world.bookies[self.name]
        if not bookie.alive or bookie.starts != self._starts:
            return
        try:
            begin = round_.throw(answer) if isinstance(answer, Exception) else round_.send(answer)
        except StopIteration:
            self._round = None
            return
        except BookKeeperError:
            self.world.scheduler.reached("a bookie could not look at its copies")
            self._round = None
            return
        begin(lambda said: self._go_on(round_, said))

    def _call(self, method: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        name = f"{self.name}:own"
        what = getattr(method, "__name__", "calls")

        def do() -> Any:
            if what == "mark_underreplicated":
                self.world.scheduler.reached("a bookie marked itself")
            try:
                return method(*args)
            except BookKeeperError as error:
                return error

        def answered(done: Callable[[Any], None], said: Any) -> None:
            error = getattr(said, "error", None)
            done(error if isinstance(error, Exception) else said)

        return Ask(lambda done: self.world.store._call(name, f"{name} {what}", do, lambda said: answered(done, said)))

    async def _gaps(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> ReadTrailer:
        def ask(done: Callable[[Any], None]) -> None:
            bookie, stream = self.world.bookies[self.name], self.world.network.new_stream()

            def later(said: Any) -> None:
                self.world.scheduler.at(0.0, f"{self.name} clock", f"{self.name} knows its gaps", done, said)

            bookie.routes[stream] = _Question(later)
            bookie.feed(ev.ReadRequested((stream, 1), ledger_id, first, last, 0, ids_only=True))

        trailer: ReadTrailer = await Ask(ask)
        if trailer.answered_through < first:
            raise BookKeeperError("the bookie does not tell its own entries")
        return trailer

    async def _source(self) -> list[LedgerId]:
        holdings = self.world.bookies[self.name].back_end.holdings
        in_limbo = [] if self._begun else self._in_limbo()
        self._begun = True
        found, holdings.suspects = [*in_limbo, *holdings.suspects], {}
        return found

    def _in_limbo(self) -> list[LedgerId]:
        ledgers = self.world.bookies[self.name].back_end.holdings.ledgers
        return [ledger_id for ledger_id, held in ledgers.items() if held.facts.trouble is Reason.LIMBO]


class ApacheWorker:
    """Removes the marks of running bookies although their copies are incomplete, because Apache's worker looks only at
    the first and the last entry of a fragment. It removes only marks that the bookies made themselves. Other facts that
    only a mark holds would be lost, as on a cluster of Apache's."""

    def __init__(self, world: HealWorld, draw: Random) -> None:
        self.world, self._draw = world, draw
        self._store = MemoryStore(world.store.cluster)
        self._times = draw.choice((1, 3, 6))

    def look(self) -> None:
        world = self.world
        for ledger_id, missing in world.store.marks().items():
            by_themselves = all(
                bookie in world.store.registered and (own := world.own[bookie].own) and ledger_id in own.lacking
                for bookie in missing
            )
            if self._times and by_themselves and not self._is_written(ledger_id) and self._draw.random() < 0.5:
                self._take(ledger_id)

    def _is_written(self, ledger_id: LedgerId) -> bool:
        """Return whether a client is closing the ledger, which may have marked the same bookie for entries that only
        this client knows to be missing."""
        writers = [host for host in self.world.hosts if isinstance(host, WriterHost | RecoveryHost)]
        return any(host.ledger_id == ledger_id and not host.dead and not host.over for host in writers)

    def _take(self, ledger_id: LedgerId) -> None:
        store = self._store
        if not store.lock_underreplicated(ledger_id, "apache"):
            return
        mark = store.read_underreplicated(ledger_id)
        if mark is not None and store.remove_underreplicated(ledger_id, mark.version):
            self._times -= 1
            self.world.scheduler.reached("Apache's worker removed a mark too early")
        store.unlock_underreplicated(ledger_id)
