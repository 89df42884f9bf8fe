# SPDX-License-Identifier: Apache-2.0
"""The disturbances: how each begins and ends, and what must follow from it. A disturbance that raises is a broken
promise."""

from __future__ import annotations

import json
import mmap
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bk_core.errors import NoSuchLedgerError
from tests.kit.waiting import until
from tests.trials.heal import schedule
from tests.trials.heal.check import naming, read_copy
from tests.trials.heal.nodes import HealCluster, Node
from tests.trials.heal.oracle import Journals, holds, pattern_of
from tests.trials.heal.schedule import Act

SOON_S = 30.0
"""Within how many seconds a bookie must register again, turn read-only, or turn writable."""
MENDED_S, DRAINED_S = 90.0, 120.0
LEDGERS_CORRUPTED = 3
FOUND_DAMAGE = ("scrubber_detectedScrubErrors", "bookie_own_copies_marked_total")
DAY_S = 86_400.0
Rotten = dict[tuple[int, int], list[Path]]
"""Maps entries (ledger id, entry id) of which a byte was changed to the segments that have them."""


class BrokenPromiseError(Exception):
    """The required consequence of a disturbance did not come."""


@dataclass(slots=True)
class World:
    """The cluster and the journals on which disturbances work. ``afterwards`` has functions that are called
    once all copies are complete again."""

    cluster: HealCluster
    journals: Journals
    counts: Counter[str] = field(default_factory=Counter)
    afterwards: list[Callable[[], None]] = field(default_factory=list)


def carry_out(world: World, act: Act) -> None:
    """Carry out a disturbance: begin, wait, heal, and check the consequences. Raises BrokenPromiseError, TimeoutError,
    or RuntimeError if a bookie does not start."""
    _ACTS[act.kind.name](world, world.cluster.node(act.slot), act)


def _demand(true: bool, text: str) -> None:
    if not true:
        raise BrokenPromiseError(text)


def _start(node: Node, *, accept_loss: bool = False) -> None:
    node.start(accept_loss=accept_loss)
    node.wait_ready()


# --- nothing is destroyed ---


def _kill(world: World, node: Node, act: Act) -> None:
    node.kill()
    time.sleep(act.lasts_s)
    _start(node)


def _freeze(world: World, node: Node, act: Act) -> None:
    node.signal(signal.SIGSTOP)
    time.sleep(act.lasts_s)
    node.signal(signal.SIGCONT)
    _await_registered(world, node)


def _partition(world: World, node: Node, act: Act) -> None:
    node.set_cable(away=True)
    time.sleep(act.lasts_s)
    node.set_cable(away=False)
    _await_registered(world, node)


def _await_registered(world: World, node: Node) -> None:
    """Wait until the bookie is registered. Its process must not have ended."""
    until(lambda: node.bookie_id in _writable(world), SOON_S, f"{node.bookie_id} does not register again")
    _demand(node.is_running, f"{node.bookie_id} ended: {node.said()[-500:]}")


def _writable(world: World) -> set[str]:
    world.cluster.store.sync()
    return set(world.cluster.store.writable_bookies())


def _clock(world: World, node: Node, act: Act) -> None:
    """Make the bookie's wall clock jump, and later jump back."""
    jumps = (-8 * DAY_S, -3_600.0, -30.0, 30.0, 3_600.0, 8 * DAY_S)
    node.set_clock(jumps[int(act.chance * len(jumps))])
    try:
        until_s = time.monotonic() + act.lasts_s
        while time.monotonic() < until_s:
            _demand(node.is_running, f"{node.bookie_id} ended when its clock jumped: {node.said()[-500:]}")
            time.sleep(0.5)
        _demand(node.get("/ready").startswith("ready"), f"{node.bookie_id} is not ready after its clock jumped")
        _demand(node.bookie_id in _writable(world), f"{node.bookie_id} is not registered after its clock jumped")
    finally:
        node.set_clock(0.0)


def _fill(world: World, node: Node, act: Act) -> None:
    """Fill the bookie's disk to the last byte. In one of three cases, also kill the bookie, which has to start
    again."""
    ballast, block = node.data / "ballast", bytes(1 << 20)
    try:
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(block) == len(block):
                pass
        until(lambda: _is_read_only(world, node), SOON_S, f"{node.bookie_id} is full and does not turn read-only")
        if act.chance < 0.33:
            node.kill()
            _start(node)
            world.counts["starts on a full disk"] += 1
        time.sleep(act.lasts_s)
        _demand(node.is_running, f"{node.bookie_id} ended on a full disk: {node.said()[-500:]}")
    finally:
        ballast.unlink(missing_ok=True)
    until(lambda: node.bookie_id in _writable(world), SOON_S, f"{node.bookie_id} has room and stays read-only")


def _is_read_only(world: World, node: Node) -> bool:
    world.cluster.store.sync()
    return node.bookie_id in world.cluster.store.read_only_bookies()


def _rolling(world: World, node: Node, act: Act) -> None:
    """Stop every bookie in order and start it again, one after the other."""
    for each in world.cluster.nodes:
        code = each.stop()
        wanted = (0,) if each.ours else (0, 143, -signal.SIGTERM)
        _demand(code in wanted, f"{each.bookie_id} ended with {code} after SIGTERM: {each.said()[-500:]}")
        _start(each)
        _await_registered(world, each)


# --- copies are destroyed ---


def _wipe(world: World, node: Node, act: Act) -> None:
    """Delete the bookie's data. The bookie is refused under its old id until an operator accepts the loss."""
    node.kill()
    node.empty()
    time.sleep(act.lasts_s)
    node.start()
    code = node.ended(SOON_S)
    said = node.said()
    if code is None:
        node.kill()
        raise BrokenPromiseError(f"{node.bookie_id} started on an empty directory with its old cookie")
    _demand(code != 0 and "--accept-loss" in said, f"{node.bookie_id} ended with {code}: {said[-500:]}")
    node.kill()
    world.counts["starts refused after a wipe"] += 1
    _start(node, accept_loss=True)


def _replace(world: World, node: Node, act: Act) -> None:
    """Replace a machine by a new one with a new bookie. The old bookie is removed once no record names it."""
    node.kill()
    before = node.become_new()
    _start(node)
    world.afterwards.append(lambda: _remove(world, before))


def _drain(world: World, node: Node, act: Act) -> None:
    """Let the bookie leave in order. Then no record may name it, whatever the command says."""
    cluster, leaving = world.cluster, node.bookie_id
    wait = f"{int(DRAINED_S)}s"
    child, log = cluster.command("drain", "bookie", "drain", leaving, "--fence", "--wait", wait, "--json")
    code = child.wait(DRAINED_S + SOON_S)
    _demand(code == 0, f"bk bookie drain {leaving} ended with {code}: {_last(log)}")
    _demand(json.loads(_last(log))["drained"] is True, f"bk bookie drain {leaving} says {_last(log)}")
    left = naming(cluster.store, leaving)
    _demand(
        not left, f"DRAIN LIED: {leaving} is drained, says the command, and {len(left)} ledgers name it: {left[:5]}"
    )
    code = node.stop()
    _demand(code == 0, f"{leaving} ended with {code} after SIGTERM: {node.said()[-500:]}")
    _remove(world, leaving)
    node.become_new()
    _start(node)


def _remove(world: World, leaving: str) -> None:
    """Remove a bookie that has left. Its registration may last as long as its session."""
    deadline = time.monotonic() + SOON_S
    while True:
        child, log = world.cluster.command("remove", "bookie", "remove", leaving)
        code = child.wait(SOON_S)
        if code == 0:
            world.counts["bookies removed"] += 1
            return
        _demand(time.monotonic() < deadline, f"bk bookie remove {leaving} ended with {code}: {_last(log)}")
        time.sleep(1.0)


def _last(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _corrupt(world: World, node: Node, act: Act) -> None:
    """Change bytes in sealed segments of a running bookie. If it has sealed none yet, stop it and change bytes of its
    other segments."""
    before = _found_damage(node)
    rotten = _flip(world, node, act, sealed_only=True)
    if rotten:
        _await_mended(world, node, rotten, before)
    else:
        _corrupt_stopped(world, node, act)


def _corrupt_stopped(world: World, node: Node, act: Act) -> None:
    """Change bytes while the bookie is stopped."""
    node.stop()
    rotten = _flip(world, node, act, sealed_only=False)
    _start(node)
    _await_mended(world, node, rotten, 0.0)


def _found_damage(node: Node) -> float:
    """Return how often the bookie itself has found damage since it was started: in a pass of the scrubber, or when it
    marked a ledger."""
    numbers = node.metrics()
    return sum(numbers.total(name) or 0.0 for name in FOUND_DAMAGE)


def _await_mended(world: World, node: Node, rotten: Rotten, before: float) -> None:
    """Wait until the bookie has found the damage itself, and then until it has the correct bytes of each entry again.
    The trial reads only afterwards, because its reads would show the damage to the bookie too. Damage in a segment that
    compaction has already copied and gives up cannot be found."""
    world.counts["entries corrupted"] += len(rotten)
    if rotten:
        what = f"NOT FOUND: {node.bookie_id} does not notice that entries {list(rotten)} have rotten bytes"
        files = {path for changed in rotten.values() for path in changed}
        until(lambda: _found_damage(node) > before or not any(path.exists() for path in files), MENDED_S, what, 1.0)
    for ledger_id, entry_id in rotten:
        what = f"NOT MENDED: ledger {ledger_id}, entry {entry_id} at {node.bookie_id} has rotten bytes"
        until(partial(_is_mended, world, node, ledger_id, entry_id), MENDED_S, what, 1.0)
        world.counts["entries mended"] += 1


def _is_mended(world: World, node: Node, ledger_id: int, entry_id: int) -> bool:
    try:
        record = world.cluster.store.read_ledger(ledger_id).value
    except NoSuchLedgerError:
        return True
    if not any(node.bookie_id in part.ensemble for part in record.fragments):
        return True
    payload = pattern_of(ledger_id).payload(entry_id)
    return read_copy(world.cluster, ledger_id, node.bookie_id, entry_id) == payload


def _flip(world: World, node: Node, act: Act, *, sealed_only: bool) -> Rotten:
    """Change a byte of one entry in some closed ledgers, in every place where this bookie has the entry."""
    rng, found = random.Random(act.chance), Rotten()
    files = sorted((path for path in node.data.rglob("*") if _is_segment(path)), key=lambda each: each.name)
    newest = max(files, key=lambda each: each.stat().st_mtime_ns, default=None)
    if sealed_only:
        files = [path for path in files if path != newest and path.with_suffix(".idx").exists()]
    for ledger_id, wanted in _held(world, node, rng):
        entry_id = rng.choice(wanted)
        if changed := [path for path in files if _flip_in(path, pattern_of(ledger_id).payload(entry_id))]:
            found[ledger_id, entry_id] = changed
        if len(found) == LEDGERS_CORRUPTED:
            break
    return found


def _is_segment(path: Path) -> bool:
    return path.is_file() and path.suffix == ".segment"


def _held(world: World, node: Node, rng: random.Random) -> list[tuple[int, list[int]]]:
    """Return closed ledgers, with the entries that this bookie has to have, in random order."""
    found = []
    world.journals.read()
    for known in world.journals.alive():
        with suppress(NoSuchLedgerError):
            record = world.cluster.store.read_ledger(known.ledger_id).value
            if not record.is_closed:
                continue
            for at, part in enumerate(record.fragments):
                last = record.last_entry_of(at)
                if last is None or node.bookie_id not in part.ensemble:
                    continue
                index = part.ensemble.index(node.bookie_id)
                sizes = record.ensemble_size, record.write_quorum_size
                ids = [i for i in range(part.first_entry_id, last + 1) if holds(index, i, *sizes)]
                if ids:
                    found.append((known.ledger_id, ids))
    return rng.sample(found, len(found))


def _flip_in(path: Path, payload: bytes) -> int:
    """Change a byte of the payload wherever the file has it. Return the number of places."""
    count, at = 0, 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        while (at := data.find(payload, at)) >= 0:
            data[at + len(payload) // 2] ^= 0x40
            count, at = count + 1, at + 1
        data.flush()
    return count


_ACTS: dict[str, Callable[[World, Node, Act], None]] = {
    schedule.KILL.name: _kill,
    schedule.FREEZE.name: _freeze,
    schedule.PARTITION.name: _partition,
    schedule.CLOCK.name: _clock,
    schedule.FILL.name: _fill,
    schedule.WIPE.name: _wipe,
    schedule.REPLACE.name: _replace,
    schedule.CORRUPT.name: _corrupt,
    schedule.CORRUPT_STOPPED.name: _corrupt_stopped,
    schedule.DRAIN.name: _drain,
    schedule.ROLLING.name: _rolling,
}
