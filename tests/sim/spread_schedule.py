# SPDX-License-Identifier: Apache-2.0
"""Random schedules of one bookie with several data directories, from a seed: crashes, full directories, damage in one
of them.

The product's machine, holdings and start-up run on a simulated disk. The directory for a new ledger is drawn at each
question, so that a failure to keep a ledger in its directory shows. :func:`run_spread_schedule` raises
:class:`Violation` if an answer breaks a promise (an acked entry denied or gone, a fence forgotten, a normal entry acked
after it was fenced or denied in a fencing read), if a ledger is in two directories, or if damage in one directory harms
another.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import encode_frame
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.config import BookieConfig
from bookie_server.engine.holdings import IndexHoldings, answer_read
from bookie_server.engine.several_directories import SpreadHoldings
from bookie_server.identity.opening import OpenStorage, open_storage
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.state import MachineLimits
from bookie_server.storage.log.segment_log import LogMaintenance
from tests.kit.bookie_effects import parted
from tests.kit.segment_world import payload_of
from tests.sim.disk import SimDisk, SimulatedCrash
from tests.sim.storage import NOW_MS, Answer, ask, own_store

LEDGERS = tuple(range(1, 9))
SEGMENT_BYTES = 32 << 10
PROFILES = ("crashes", "crashes", "full", "damage")
_LIMITS = MachineLimits(read_part_bytes=4000, stream_bytes_max=60_000, in_flight_bytes_max=90_000)


class Violation(AssertionError):
    """Raised for a broken promise. The message names seed and step."""


@dataclass
class Outcome:
    """The results of one schedule."""

    seed: int
    profile: str
    step: int = 0
    counts: Counter[str] = field(default_factory=Counter)


class SpreadBackEnd:
    """The open directories of a bookie on one disk."""

    def __init__(self, chance: Random, directories: int) -> None:
        self.disk, self.store, self.chance, self.logs = SimDisk(), own_store(), chance, directories
        self.paths = [f"/data{number}" for number in range(directories)]
        self.opened: tuple[OpenStorage, ...] = ()

    def open(self) -> None:
        """Run the product's start-up, with the directories in any order."""
        paths = self.chance.sample(self.paths, len(self.paths))
        config = BookieConfig(data_dirs=tuple(map(Path, paths)), metadata_service_uri="memory://x", bookie_id="b1:3181")
        self.opened = open_storage(
            config, self.store, "b1", 3181, files=self.disk, segment_size_bytes=SEGMENT_BYTES, now_ms=lambda: NOW_MS
        )
        self.holdings = SpreadHoldings(
            [IndexHoldings(each.index, each.reader) for each in self.opened], lambda _: self.chance.randrange(self.logs)
        )
        self.log_maintenance = [LogMaintenance(each.log, self._sealed(each)) for each in self.opened]

    def _sealed(self, opened: OpenStorage) -> Any:
        return lambda sealed: opened.index.seal(sealed.generation, sealed.summary)

    def commit(self, log: int, frames: list[bytes | memoryview]) -> Any:
        places = self.opened[log].log.append_group(frames)
        self.log_maintenance[log].run()
        return places

    def read(self, effect: ev.ReadFrames | ev.ReadMemberships) -> ev.FramesRead | ev.MembershipsRead:
        return answer_read(self.opened[effect.log].reader, effect)

    def homes(self) -> dict[int, list[str]]:
        """Return the directories that know each ledger."""
        found: dict[int, list[str]] = defaultdict(list)
        for each in self.opened:
            for ledger_id in each.index.ledger_ids():
                found[ledger_id].append(each.directory.path)
        return found


@dataclass
class _Session:
    ledger_id: int
    mode: AttachMode
    frames: list[int] = field(default_factory=list)  # the ids of each frame
    behind_fence: list[bool] = field(default_factory=list)  # whether each frame was offered after a fence was answered
    durable: int = 0


def run_spread_schedule(seed: int, steps: int = 150) -> Outcome:
    """Run one schedule. Raises Violation."""
    return _Run(seed).run(steps)


class _Run:
    """One bookie's life, and the promises that it made."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.outcome = Outcome(seed, self.chance.choice(PROFILES))
        self.back_end = SpreadBackEnd(self.chance, self.chance.choice((2, 2, 3)))
        self.acked: dict[int, set[int]] = defaultdict(set)
        self.recovered: dict[int, set[int]] = defaultdict(set)  # ids that a recoverer offered
        self.denied: dict[int, set[int]] = defaultdict(set)  # ids that were denied in a fencing read
        self.fenced: set[int] = set()
        self.top: dict[int, int] = defaultdict(int)
        self.home: dict[int, str] = {}  # the directory in which a frame of the ledger was acked
        self.full: set[int] = set()
        self.damaged = ""  # the path of the damaged directory
        self.streams = 0
        self.back_end.open()
        self.begin()

    def need(self, holds: object, what: str) -> None:
        if not holds:
            raise Violation(f"seed {self.outcome.seed} ({self.outcome.profile}), step {self.outcome.step}: {what}")

    def begin(self) -> None:
        """Start a new process."""
        self.machine = BookieMachine(self.back_end.holdings, _LIMITS, self.back_end.logs)
        self.queues: list[list[bytes | memoryview]] = [[] for _ in range(self.back_end.logs)]
        self.reads: deque[ev.ReadFrames | ev.ReadMemberships] = deque()
        self.sessions: dict[tuple[int, int], _Session] = {}
        self.requests: dict[ev.RequestId, tuple[int, int, bool, set[int]]] = {}
        self.found: dict[ev.RequestId, int] = Counter()
        self.numbers = 0
        self.streams += 2
        self.full.clear()

    def run(self, steps: int) -> Outcome:
        acts = [(self.offer, 12), (self.commit, 10), (self.serve, 8), (self.read, 4), (self.fence, 2), (self.crash, 2)]
        if self.outcome.profile == "full":
            acts.append((self.fill, 3))
        if self.outcome.profile == "damage":
            acts.append((self.damage, 1))
        calls, weights = [act for act, _ in acts], [weight for _, weight in acts]
        for self.outcome.step in range(steps):
            self.chance.choices(calls, weights)[0]()
            twice = {ledger: paths for ledger, paths in self.back_end.homes().items() if len(paths) > 1}
            self.need(not twice, f"ledgers in two directories: {twice}")
        self.back_end.disk.crash(self.chance, "nothing")
        self.restart()
        return self.outcome

    # --- the machine ---

    def feed(self, event: ev.Event) -> None:
        events = deque([event])
        while events:
            for effect in parted(self.machine.step(events.popleft())):
                match effect:
                    case ev.Commit(frames, log=log):
                        self.queues[log].extend(frames)
                    case ev.ReadFrames() | ev.ReadMemberships():
                        self.reads.append(effect)
                    case ev.SendPart(request):
                        events.append(ev.PartSent(request))
                    case _:
                        self.heard(effect)

    def heard(self, effect: Any) -> None:
        match effect:
            case ev.SendAcks(stream, sessions, frames, ended):
                for number, count in zip(sessions, frames, strict=True):
                    self.acknowledged(self.sessions.get((stream, number)), count)
                for end in ended:
                    self.acknowledged(self.sessions.pop((stream, end.session), None), end.frames)
            case ev.SendTrailer(request, trailer, reason):
                self.answered(request, trailer, reason)
            case ev.SendLac(request):
                self.fenced.add(self.requests.pop(request)[0])

    def offer(self) -> None:
        """Offer the next entry, or one that was offered before, as a writer or a recoverer."""
        chance, ledger_id = self.chance, self.chance.choice(LEDGERS)
        mode = AttachMode.RECOVER if chance.random() < 0.2 else AttachMode.WRITE
        wanted = (ledger_id, mode)
        known = [key for key, each in self.sessions.items() if (each.ledger_id, each.mode) == wanted]
        if not known or chance.random() < 0.1:
            self.numbers += 1
            known = [(self.streams, self.numbers)]
            self.sessions[known[0]] = _Session(ledger_id, mode)
            self.feed(ev.SessionAttached(*known[0], ledger_id, bytes([ledger_id] * 20), mode))
        stream, number = known[0]
        session = self.sessions.get((stream, number))
        if session is None:
            return
        entry_id = self.top[ledger_id] if chance.random() < 0.8 else chance.randint(0, self.top[ledger_id])
        self.top[ledger_id] = max(self.top[ledger_id], entry_id + 1)
        session.frames.append(entry_id)
        session.behind_fence.append(ledger_id in self.fenced)
        if mode is AttachMode.RECOVER:
            self.recovered[ledger_id].add(entry_id)
        batch = EntryBatch.from_list([payload_of(ledger_id, entry_id, 60 + entry_id * 37 % 1500)])
        frame = encode_frame(
            batch, digester=Digester(DigestType.CRC32C, b"", ledger_id), ledger_id=ledger_id, first_entry_id=entry_id,
            lac=entry_id - 1, length_before=0, session=number,
        )  # fmt: skip
        self.feed(ev.FramesArrived(stream, memoryview(bytes(frame))))

    def commit(self) -> None:
        waiting = [log for log, queue in enumerate(self.queues) if queue]
        if not waiting:
            return
        log = self.chance.choice(waiting)
        queue = self.queues[log]
        if log in self.full:
            self.outcome.counts["no space"] += 1
            queue.clear()
            self.feed(ev.CommitFailed(Reason.NO_SPACE, "full", False, log))
            return
        group = queue[: self.chance.randint(1, len(queue))]
        del queue[: len(group)]
        self.outcome.counts[f"groups of log {log}"] += 1
        self.feed(ev.GroupCommitted(self.back_end.commit(log, group), log))

    def serve(self) -> None:
        for _ in range(min(len(self.reads), self.chance.randint(1, 3))):
            self.feed(self.back_end.read(self.reads.popleft()))

    def read(self) -> None:
        ledger_id = self.chance.choice(LEDGERS)
        first = self.chance.randint(0, self.top[ledger_id] + 2)
        fencing = self.chance.random() < 0.2
        self.numbers += 1
        request = (self.streams + 1, self.numbers)
        self.requests[request] = (ledger_id, first, fencing, set(self.acked[ledger_id]))
        key = bytes([ledger_id] * 20) if fencing else None
        self.feed(ev.ReadRequested(request, ledger_id, first, first, 0, key))

    def fence(self) -> None:
        ledger_id = self.chance.choice(LEDGERS)
        self.numbers += 1
        request = (self.streams + 1, self.numbers)
        self.requests[request] = (ledger_id, -1, True, set())
        self.feed(ev.FenceRequested(request, ledger_id, bytes([ledger_id] * 20)))
        if self.chance.random() < 0.3:
            self.commit()

    def fill(self) -> None:
        """Fill a directory, or make room in it again."""
        log = self.chance.randrange(self.back_end.logs)
        self.full ^= {log}
        self.feed(ev.ReadOnlyChanged(log in self.full, log))

    # --- what is heard ---

    def acknowledged(self, session: _Session | None, count: int) -> None:
        if session is None:
            return
        ledger_id, ids = session.ledger_id, session.frames[session.durable : count]
        if ids and session.mode is AttachMode.WRITE:
            late = [k for k in range(session.durable, count) if session.behind_fence[k]]
            self.need(not late, f"a normal add was acked after ledger {ledger_id} was fenced")
            refused = self.denied[ledger_id].intersection(ids)
            self.need(not refused, f"{refused} of ledger {ledger_id} were denied to a fencer and acked later")
        if ids:
            self.acked[ledger_id].update(ids)
            [path] = self.back_end.homes()[ledger_id]
            self.need(self.home.setdefault(ledger_id, path) == path, f"ledger {ledger_id} has moved to {path}")
        session.durable = max(session.durable, count)

    def answered(self, request: ev.RequestId, trailer: Any, reason: Reason) -> None:
        ledger_id, entry_id, fencing, acked = self.requests.pop(request)
        if reason:
            self.need(self.full or self.damaged or reason is Reason.OVERLOADED, f"a read was refused: {reason.name}")
            return
        absent = any(gap.first <= entry_id <= gap.last for gap in trailer.absent)
        self.need(not (absent and entry_id in acked), f"acked entry {entry_id} of ledger {ledger_id} is ABSENT")
        self.need(self.damaged or not trailer.unknown, f"UNKNOWN on a healthy disk: {trailer.unknown}")
        if fencing:
            self.fenced.add(ledger_id)
            if absent:
                self.denied[ledger_id].add(entry_id)

    # --- ends ---

    def crash(self) -> None:
        """Lose power, perhaps in a commit of one log, or kill the process."""
        chance, back_end = self.chance, self.back_end
        self.outcome.counts["crashes"] += 1
        log = chance.randrange(back_end.logs)
        if self.queues[log] and log not in self.full and chance.random() < 0.5:
            back_end.disk.crash_at(chance.randint(1, 6))
            try:
                back_end.commit(log, self.queues[log])
            except SimulatedCrash:
                self.outcome.counts["crash in a commit"] += 1
            back_end.disk.crash_at(None)
        if chance.random() < 0.3:
            back_end.disk.kill()
        else:
            back_end.disk.crash(chance)
        self.restart()

    def damage(self) -> None:
        """Lose the newest segment of one directory, so that the ledgers in it are not known."""
        if self.damaged or self.outcome.step < 40:
            return
        self.damaged = self.chance.choice(self.back_end.paths)
        self.outcome.counts["damaged"] += 1
        self.back_end.disk.crash(self.chance)
        folder = self.damaged + "/segments"
        newest = max(name for name in self.back_end.disk.names(folder) if name.endswith(".segment"))
        self.back_end.disk.lose_file(f"{folder}/{newest}")
        self.restart()

    def restart(self) -> None:
        back_end, chance = self.back_end, self.chance
        for _ in range(3):
            back_end.disk.crash_at(chance.randint(1, 30) if chance.random() < 0.3 else None)
            try:
                back_end.open()
                break
            except SimulatedCrash:
                self.outcome.counts["crash in a restart"] += 1
                back_end.disk.crash(chance)
        else:
            back_end.disk.crash_at(None)
            back_end.open()
        back_end.disk.crash_at(None)
        self.begin()
        self.verify()

    def verify(self) -> None:
        """Check every promise with the new process."""
        for ledger_id in LEDGERS:
            facts = self.back_end.holdings.facts(ledger_id)
            safe = facts.trouble is Reason.REASON_NONE
            whole = not self.damaged or self.home.get(ledger_id, self.damaged) != self.damaged
            self.need(safe or not whole, f"ledger {ledger_id} is in trouble because of another directory")
            self.need(facts.fenced or not safe or ledger_id not in self.fenced, f"the fence of {ledger_id} is lost")
            answer: Answer = ask(self.back_end, ledger_id, 0, self.top[ledger_id] + 3)
            denied = self.acked[ledger_id] & answer.absent
            self.need(not denied, f"acked entries {denied} of ledger {ledger_id} are ABSENT")
            if whole:
                gone = self.acked[ledger_id] - set(answer.found)
                self.need(not gone, f"acked entries {gone} of ledger {ledger_id} are gone")
            late = set(answer.found) & self.denied[ledger_id] - self.recovered[ledger_id]
            self.need(not late, f"entries {late} of ledger {ledger_id} were denied to a fencer and are here")
