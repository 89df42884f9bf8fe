# SPDX-License-Identifier: Apache-2.0
"""Leaders of a named log in a scenario: the production machine of leadership, which recovers and writes ledgers by the
production machines of :mod:`tests.scenarios.actors`. The log's head is one record of the metadata store.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from bk_core.errors import BookKeeperError
from bk_core.logs.machines import leadership_events as lead
from bk_core.logs.machines.leadership import LogLeadership
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.head import Extent, LogHead
from bk_core.logs.model.next_head import LedgerEnd
from bk_core.model import Fragment, LedgerId, LedgerMetadata, LedgerState, Versioned
from bk_core.protocol import events as ev
from tests.scenarios.actors import Recoverer, Writer
from tests.scenarios.clients import Client
from tests.scenarios.world import STORE, Message, StoryError, World, describe_log, error_text

_NONCE = itertools.count().__next__
_EMPTY = LogHead(uuid="12345678-9abc-def0-1234-56789abcdef0", created_ms=1, ledger_key=b"")


class Leader(Client):
    """Takes the log over when it is made. Its ledgers have clients named ``leader.ledger``, as ``A.7``."""

    machine: LogLeadership

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, 0)
        self.elected = True
        self.machine = LogLeadership()
        self.feed(lead.TakeOver())

    # --- the head ---

    def _on_read_head(self, effect: lead.ReadHead) -> None:
        def do() -> lead.HeadRead:
            head = head_of(self.world)
            ledgers = tuple(extent.ledger_id for extent in head.value.tail)
            return lead.HeadRead(head, ledgers[-2:])

        self.world.ask_store(self.name, do, self.feed)

    def _on_seal_extents(self, effect: lead.SealExtents) -> None:
        change = commit.seal(effect.expected.value, dict(effect.ends), nonce=_NONCE).head
        self._compare_and_set(effect.expected, change)

    def _on_list_ledger(self, effect: lead.ListLedger) -> None:
        change = commit.add_open_extent(effect.expected.value, effect.ledger, nonce=_NONCE).head
        self._compare_and_set(effect.expected, change)

    def _compare_and_set(self, expected: Versioned[LogHead], change: LogHead) -> None:
        def do() -> lead.HeadWritten | lead.HeadConflicted:
            head = head_of(self.world)
            if head.version != expected.version:
                self.world.say(
                    f"store refuses {self.name}: the log's version is {head.version}, not {expected.version}"
                )
                return lead.HeadConflicted()
            self.world.log = Versioned(change, head.version + 1)
            self.world.say(f"store takes {describe_log(self.world.log)}   from {self.name}")
            return lead.HeadWritten(self.world.log)

        self.world.ask_store(self.name, do, self.feed, lead.HeadWriteUnknown())

    # --- ledgers ---

    def _on_recover_ledger(self, effect: lead.RecoverLedger) -> None:
        self.world.say(f"{self.name} recovers ledger {effect.ledger_id}")
        recoverer = Recoverer(self.world, f"{self.name}.{effect.ledger_id}", effect.ledger_id, {})
        self.world.clients[recoverer.name] = recoverer

        def finished(done: ev.FinishRecovery) -> None:
            self.feed(lead.LedgerRecovered(effect.ledger_id, end_of(done.metadata.value)))

        recoverer.on_finished = finished

    def _on_create_ledger(self, effect: lead.CreateLedger) -> None:
        def do() -> lead.LedgerCreated:
            ledger_id = max([0, *self.world.records]) + 1
            ensemble = tuple(self.world.writable[:3])
            record = LedgerMetadata(
                ensemble_size=3,
                write_quorum_size=3,
                ack_quorum_size=2,
                fragments=(Fragment(0, ensemble),),
                state=LedgerState.OPEN,
            )
            self.world.records[ledger_id] = Versioned(record, 0)
            self.world.say(f"store makes ledger {ledger_id} for {self.name}")
            return lead.LedgerCreated(
                Extent(
                    is_open=True,
                    ledger_id=ledger_id,
                    created_ms=1,
                    ensemble_size=3,
                    write_quorum_size=3,
                    ack_quorum_size=2,
                )
            )

        self.world.ask_store(self.name, do, self.feed)

    def _on_delete_ledger(self, effect: lead.DeleteLedger) -> None:
        self.world.say(f"{self.name} deletes ledger {effect.ledger_id}, which nobody saw")
        self.world.delete_record(effect.ledger_id)

    def _on_serve(self, effect: lead.Serve) -> None:
        self.world.say(f"{self.name} leads: appends go to ledger {effect.ledger_id}, offset {effect.base_offset}")
        self._write(effect.ledger_id)

    def _on_switch_ledger(self, effect: lead.SwitchLedger) -> None:
        self.world.say(f"{self.name} goes on in ledger {effect.ledger_id}")
        self._write(effect.ledger_id)
        self.world.clients[f"{self.name}.{effect.previous_id}"].feed(ev.Close())

    def _on_close_ledger(self, effect: lead.CloseLedger) -> None:
        self.world.clients[f"{self.name}.{effect.ledger_id}"].feed(ev.Close())

    def _write(self, ledger_id: LedgerId) -> None:
        writer = Writer(self.world, f"{self.name}.{ledger_id}", ledger_id, {})
        self.world.clients[writer.name] = writer

        def closed() -> None:
            self._answer(lead.LedgerClosed(ledger_id, end_of(self.world.records[ledger_id].value)))

        def failed(error: BookKeeperError) -> None:
            self._answer(lead.WriterFailed(ledger_id, error))

        writer.on_closed, writer.on_failed = closed, failed

    # --- elections, pauses, ends ---

    def _on_ask_leader(self, effect: lead.AskLeader) -> None:
        self._answer(lead.LeaderAnswered(self.elected))

    def _answer(self, event: Any) -> None:
        """What is heard within the same process, a turn later."""
        self.world.send(STORE, self.name, Message(lambda: self.feed(event)))

    def _on_wait(self, effect: lead.Wait) -> None:
        self._on_set_timer(ev.SetTimer("wait", 0))

    def fire(self, name: str) -> None:
        if name != "wait" or name not in self.timers:
            raise StoryError(f"{self.name} does not wait")
        self.timers.remove(name)
        self.feed(lead.WaitEnded())

    def _on_finish_roll(self, effect: lead.FinishRoll) -> None:
        self.world.say(f"{self.name} has rolled" if effect.error is None else f"{self.name} could not roll")

    def _on_finish_leadership(self, effect: lead.FinishLeadership) -> None:
        self.world.say(f"{self.name} has given up the log")

    def _on_lose_leadership(self, effect: lead.LoseLeadership) -> None:
        self.world.say(f"{self.name} does not lead: {error_text(effect.error)}")


def _depose(leader: Leader) -> None:
    leader.elected = False


LEADER_WORDS: dict[str, Callable[[Leader], None]] = {
    "roll": lambda leader: leader.feed(lead.Roll()),
    "give_up": lambda leader: leader.feed(lead.GiveUp()),
    "deposed": _depose,
}


def head_of(world: World) -> Versioned[LogHead]:
    """The log's head; an empty one at first."""
    if world.log is None:
        world.log = Versioned(_EMPTY, 0)
    return world.log


def end_of(record: LedgerMetadata) -> LedgerEnd:
    """Where a closed ledger ends."""
    return LedgerEnd(entry_count=record.last_entry_id + 1, size_bytes=record.length, fragments=record.fragments)
