# SPDX-License-Identifier: Apache-2.0
"""The words of a scenario (README.md lists them): each is a function of this file named ``do_<word>``."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, replace

from bk_core.entries.batch import EntryBatch
from bk_core.model import Fragment, LedgerMetadata, LedgerState, Versioned
from bk_core.protocol import events as ev
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine import events as mev
from tests.scenarios.actors import Follower, Reader, Recoverer, Writer
from tests.scenarios.bookies import Bookie
from tests.scenarios.clients import Client
from tests.scenarios.logs import LEADER_WORDS, Leader
from tests.scenarios.publishing import Publisher
from tests.scenarios.world import STORE, Link, Message, StoryError, World, describe, describe_log, ranges

LEDGER = 7


@dataclass
class Command:
    """One line of a story: a word, plain arguments, and options (``key=value``)."""

    word: str
    arguments: list[str]
    options: dict[str, str]

    @classmethod
    def parse(cls, line: str) -> Command:
        word, *rest = line.split()
        options = dict(each.split("=", 1) for each in rest if re.match(r"[a-z_]+=", each))
        return cls(word, [each for each in rest if not re.match(r"[a-z_]+=", each)], options)

    def number(self, name: str) -> int | None:
        return int(self.options[name]) if name in self.options else None


def perform(world: World, line: str) -> None:
    command = Command.parse(line)
    verb = globals().get(f"do_{command.word}")
    if verb is None:
        raise StoryError(f"unknown word {command.word!r}")
    try:
        verb(world, command)
    except (ValueError, KeyError) as error:
        raise StoryError(f"cannot be understood ({error})") from error


# --- the cast ---------------------------------------------------------------------------------------------------------


def do_bookies(world: World, command: Command) -> None:
    """Bookies with limits of their own, made before the ledger names them."""
    for name in command.arguments:
        world.bookies[name] = Bookie(world, name, **{key: int(value) for key, value in command.options.items()})
        world.writable.append(name)


def do_ledger(world: World, command: Command) -> None:
    """TLA ClientCreatesLedger: the record is in the store, and a writer holds it."""
    if command.arguments:
        raise StoryError(f"what is {command.arguments[0]!r}?")
    options = dict(command.options)
    ensemble = tuple(options.pop("bookies").split(","))
    spare = options.pop("spare", "").split(",")
    ledger_id = int(options.pop("id", str(LEDGER)))
    for name in [*ensemble, *filter(None, spare)]:
        if name not in world.bookies:
            do_bookies(world, Command("bookies", [name], {}))
    write, ack = int(options.pop("write")), int(options.pop("ack"))
    world.records[ledger_id] = Versioned(
        LedgerMetadata(
            ensemble_size=len(ensemble),
            write_quorum_size=write,
            ack_quorum_size=ack,
            fragments=(Fragment(0, ensemble),),
            state=LedgerState.OPEN,
        ),
        0,
    )
    do_writer(world, Command("writer", [options.pop("writer", "w")], {**options, "id": str(ledger_id)}))


def do_writer(world: World, command: Command) -> None:
    """Another writer that holds the ledger's record, as a process that was thought dead."""
    (name,), options = command.arguments, dict(command.options)
    world.clients[name] = Writer(world, name, int(options.pop("id", LEDGER)), options)


def do_recover(world: World, command: Command) -> None:
    (name,), options = command.arguments, dict(command.options)
    world.clients[name] = Recoverer(world, name, int(options.pop("id", LEDGER)), options)


def do_read(world: World, command: Command) -> None:
    """``read rd 0..3``; without a range up to the end of the closed ledger."""
    name, *span = command.arguments
    ledger_id = command.number("id") or LEDGER
    if span:
        first, _, last = span[0].partition("..")
    else:
        record = world.records[ledger_id].value
        if not record.is_closed:
            raise StoryError("the ledger is not closed: say what to read")
        first, last = "0", str(record.last_entry_id)
    world.clients[name] = Reader(world, name, ledger_id, int(first), int(last or first))


def do_tail(world: World, command: Command) -> None:
    """Follow how far a ledger is confirmed."""
    for name in command.arguments:
        world.clients[name] = Follower(world, name, command.number("id") or LEDGER)


def do_lead(world: World, command: Command) -> None:
    """``lead A``: a process takes the log over. ``lead A roll``, ``give_up`` and ``deposed`` are said to it later."""
    name, *words = command.arguments
    if not words:
        world.clients[name] = Leader(world, name)
        return
    leader = world.clients[name]
    if not isinstance(leader, Leader) or words[0] not in LEADER_WORDS:
        raise StoryError(f"{name} {words[0]}?")
    LEADER_WORDS[words[0]](leader)


def do_publish(world: World, command: Command) -> None:
    """``publish J 8 9``: job J publishes closed ledgers into the log."""
    name, *words = command.arguments
    takeover, job = command.options.get("takeover") == "yes", command.options.get("job", name)
    world.clients[name] = Publisher(world, name, [int(word) for word in words], takeover=takeover, job=job)


# --- what applications do ---------------------------------------------------------------------------------------------


def do_append(world: World, command: Command) -> None:
    """Each word is one entry in a frame of its own; ``x+y`` puts two entries into one frame."""
    writer = _client(world, command.options.get("by", "w"))
    for each in command.arguments:
        writer.feed(ev.Append(EntryBatch.from_list([payload.encode() for payload in each.split("+")])))


def do_close(world: World, command: Command) -> None:
    _client(world, command.arguments[0] if command.arguments else "w").feed(ev.Close())


def do_vanish(world: World, command: Command) -> None:
    """A client's process dies; what it has sent is still on its way."""
    for name in command.arguments:
        _client(world, name).vanish()


def do_timer(world: World, command: Command) -> None:
    """``timer w adds x4``: a client's timer fires, four times; ``timer b1``: the bookie makes LACs durable."""
    name, *rest = command.arguments
    if name in world.bookies:
        bookie = world.bookies[name]
        bookie.timers.remove(None)
        bookie.feed(mev.TimerFired(None))
        return
    times = int(rest[1].removeprefix("x")) if len(rest) > 1 else 1
    for _ in range(times):
        _client(world, name).fire(rest[0])


# --- the network ------------------------------------------------------------------------------------------------------


def do_deliver(world: World, command: Command) -> None:
    """``all``; a bookie or ``store`` (there and back); a link ``w->b1`` (one way). ``entry=`` and ``count=`` stop."""
    entry, count = command.number("entry"), command.number("count")
    for name in command.arguments:
        if name == "all":
            world.flow()
        elif "->" in name:
            if not world.deliver(_link(world, name), entry=entry, count=count):
                raise StoryError(f"nothing is on its way {name}")
        elif not world.round_trip(_place(world, name), entry):
            raise StoryError(f"nothing is on its way to or from {name}")


def do_lose(world: World, command: Command) -> None:
    """What waits on a link is lost, and whoever waits for it learns that no answer came."""
    for name in command.arguments:
        if not world.lose(_link(world, name), count=command.number("count")):
            raise StoryError(f"nothing is on its way {name}")


def do_double(world: World, command: Command) -> None:
    """The first message that waits on each link is there twice."""
    for name in command.arguments:
        queue = _queue(world, name)
        queue.insert(1, queue[0])


def do_flip(world: World, command: Command) -> None:
    """One bit flips in the first answer that waits on a link."""
    for name in command.arguments:
        queue = _queue(world, name)
        flip = queue[0].flip
        if flip is None:
            raise StoryError(f"{name}: no bit to flip")
        queue[0] = flip()


def do_cut(world: World, command: Command) -> None:
    """Nothing moves to or from a place, or on a link, until ``heal``."""
    for link in _links(world, command):
        world.cut.add(link)


def do_heal(world: World, command: Command) -> None:
    for link in _links(world, command):
        world.cut.discard(link)


# --- bookies ----------------------------------------------------------------------------------------------------------


def do_crash(world: World, command: Command) -> None:
    """What was not synced is gone; clients hear that their connections broke when the story delivers it."""
    for name in command.arguments:
        _bookie(world, name).crash()


def do_restart(world: World, command: Command) -> None:
    """``restart b1``: with its disk; ``empty``: with a new one; ``limbo``: with a new one, and it knows (RULES S8)."""
    how = [each for each in command.arguments if each in ("empty", "limbo")]
    for name in command.arguments:
        if name in how:
            continue
        bookie = _bookie(world, name)
        if bookie.alive:
            raise StoryError(f"{name} has not crashed")
        bookie.restart()
        if how:
            bookie.wipe(list(world.records), limbo=how == ["limbo"])


def do_hold(world: World, command: Command) -> None:
    """The disk of a bookie is slow: nothing becomes durable until ``sync``."""
    for name in command.arguments:
        _bookie(world, name).slow = True


def do_sync(world: World, command: Command) -> None:
    """What waits for the disk is durable now; the disk goes on being slow."""
    for name in command.arguments:
        _bookie(world, name).sync()


def do_break(world: World, command: Command) -> None:
    """The disk of a bookie fails from now on; ``full``: it has no space."""
    full = "full" in command.arguments
    for name in command.arguments:
        if name != "full":
            reason = Reason.NO_SPACE if full else Reason.STORAGE_FAILED
            _bookie(world, name).broken_disk = mev.CommitFailed(reason, "the disk failed", not full)


def do_damage(world: World, command: Command) -> None:
    """The copy of an entry on a bookie's disk cannot be read."""
    entry = int(command.options["entry"])
    for name in command.arguments:
        frames = [f for f in _bookie(world, name).frames_of(LEDGER) if f.holds(entry)]
        if not frames:
            raise StoryError(f"{name} does not hold entry {entry}")
        for frame in frames:
            frame.damaged = True


def do_register(world: World, command: Command) -> None:
    for name in command.arguments:
        if name not in world.bookies:
            do_bookies(world, Command("bookies", [name], {}))
        elif name not in world.writable:
            world.writable.append(name)


def do_unregister(world: World, command: Command) -> None:
    for name in command.arguments:
        world.writable.remove(name)


# --- the store --------------------------------------------------------------------------------------------------------


def do_meddle(world: World, command: Command) -> None:
    """Somebody else changes the record: ``meddle first=0 bookies=b1,b2,b4`` repairs a fragment, ``meddle state=…``,
    ``meddle end=1`` closes it, ``meddle delete``."""
    value = world.records[LEDGER].value
    if command.arguments == ["delete"]:
        world.delete_record(LEDGER)
        world.say("store: the ledger is deleted")
        return
    if "bookies" in command.options:
        first, ensemble = int(command.options["first"]), tuple(command.options["bookies"].split(","))
        fragments = tuple(
            Fragment(f.first_entry_id, ensemble) if f.first_entry_id == first else f for f in value.fragments
        )
        value = replace(value, fragments=fragments)
    if "end" in command.options:
        value = value.closed_at(int(command.options["end"]), int(command.options.get("length", "0")))
    if "state" in command.options:
        value = replace(value, state=LedgerState[command.options["state"]])
    world.put_record("somebody else", LEDGER, value)


# --- a look -----------------------------------------------------------------------------------------------------------


def do_show(world: World, command: Command) -> None:
    """What is durable on a bookie, or what the store holds."""
    for name in command.arguments:
        if name == STORE:
            for record in world.records.values():
                world.say(f"store: {describe(record)}")
            if world.log is not None:
                world.say(f"store: {describe_log(world.log)}")
            continue
        bookie = _bookie(world, name)
        for ledger_id in bookie.store.ledgers:
            frames = bookie.frames_of(ledger_id)
            ids = {i for f in frames for i in range(f.extent.first, f.extent.last + 1) if f.holds(i)}
            lac = max((f.extent.max_lac for f in frames), default=-1)
            facts = bookie.store.facts(ledger_id)
            marks = [word for word, is_so in (("fenced", facts.fenced), ("limbo", bool(facts.trouble))) if is_so]
            world.say(" ".join([f"{name} holds {ranges(list(ids)) or 'nothing'}   lac={lac}", *marks]))
        if not bookie.store.ledgers:
            world.say(f"{name} knows nothing")


# --- names ------------------------------------------------------------------------------------------------------------


def _client(world: World, name: str) -> Client:
    if name not in world.clients:
        raise StoryError(f"there is no client {name}")
    return world.clients[name]


def _bookie(world: World, name: str) -> Bookie:
    if name not in world.bookies:
        raise StoryError(f"there is no bookie {name}")
    return world.bookies[name]


def _place(world: World, name: str) -> str:
    if name != STORE:
        _bookie(world, name)
    return name


def _link(world: World, name: str) -> Link:
    source, _, target = name.partition("->")
    for each in (source, target):
        if each != STORE and each not in world.bookies and each not in world.clients:
            raise StoryError(f"there is no {each}")
    return source, target


def _queue(world: World, name: str) -> deque[Message]:
    queue = world.links.get(_link(world, name))
    if not queue:
        raise StoryError(f"nothing is on its way {name}")
    return queue


def _links(world: World, command: Command) -> list[Link]:
    found: list[Link] = []
    for name in command.arguments:
        if "->" in name:
            found.append(_link(world, name))
        else:
            place = _place(world, name)
            found += [link for client in world.clients for link in ((client, place), (place, client))]
    return found
