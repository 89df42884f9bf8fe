# SPDX-License-Identifier: Apache-2.0
"""Jobs that publish closed ledgers into a named log: the production machine of publishing in a scenario."""

from __future__ import annotations

import itertools

from bk_core.errors import MetadataUnavailableError, Outcome
from bk_core.logs.commit import LedgerEnd
from bk_core.logs.head import NewExtent, PublishId
from bk_core.logs.machines import change_events as change
from bk_core.logs.machines.publication import Publication, Publish
from bk_core.logs.machines.transactions import PublishOptions
from bk_core.model import LedgerId, Versioned
from bk_core.protocol import events as ev
from tests.scenarios.actors import Recoverer
from tests.scenarios.clients import Client
from tests.scenarios.logs import end_of, head_of
from tests.scenarios.world import StoryError, World, describe_log

_NONCE = itertools.count().__next__
_NO_ANSWER = MetadataUnavailableError("the metadata store did not answer", outcome=Outcome.UNKNOWN)


class Publisher(Client):
    """Publishes closed ledgers as one job, all or none."""

    machine: Publication

    def __init__(self, world: World, name: str, ledgers: list[LedgerId], *, takeover: bool, job: str) -> None:
        super().__init__(world, name, 0)
        extents = tuple(_extent(world, ledger_id) for ledger_id in ledgers)
        publish_id = PublishId.job(job)
        self.machine = Publication(
            Publish(
                extents=extents,
                publish_id=publish_id,
                now_ms=1,
                nonce=_NONCE,
                options=PublishOptions(takeover=takeover),
            )
        )
        self._ends: dict[LedgerId, LedgerEnd] = {}
        self.feed(change.Start())

    def abort(self) -> None:
        self.feed(change.Abort())

    def _on_read_head(self, effect: change.ReadHead) -> None:
        lost = change.RequestFailed(_NO_ANSWER)
        self.world.ask_store(self.name, lambda: change.HeadRead(head_of(self.world)), self.feed, lost)

    def _on_check_ledgers(self, effect: change.CheckLedgers) -> None:
        lost = change.RequestFailed(_NO_ANSWER)
        self.world.ask_store(self.name, lambda: change.LedgersChecked(), self.feed, lost)

    def _on_recover_ledgers(self, effect: change.RecoverLedgers) -> None:
        for ledger_id in effect.ledgers:
            self.world.say(f"{self.name} recovers ledger {ledger_id}")
            recoverer = Recoverer(self.world, f"{self.name}.{ledger_id}", ledger_id, {})
            self.world.clients[recoverer.name] = recoverer

            def finished(done: ev.FinishRecovery, ledger_id: LedgerId = ledger_id) -> None:
                self._ends[ledger_id] = end_of(done.metadata.value)
                if len(self._ends) == len(effect.ledgers):
                    self.feed(change.LedgersRecovered(self._ends))

            recoverer.on_finished = finished

    def _on_write_head(self, effect: change.WriteHead) -> None:
        def do() -> change.HeadWritten | change.HeadConflicted:
            version = head_of(self.world).version
            if version != effect.version:
                self.world.say(f"store refuses {self.name}: the log's version is {version}, not {effect.version}")
                return change.HeadConflicted()
            self.world.log = Versioned(effect.head, version + 1)
            self.world.say(f"store takes {describe_log(self.world.log)}   from {self.name}")
            return change.HeadWritten()

        self.world.ask_store(self.name, do, self.feed, change.HeadWriteUnknown(_NO_ANSWER))

    def _on_drop_ledgers(self, effect: change.DropLedgers) -> None:
        for ledger_id in effect.ledgers:
            self.world.say(f"{self.name} deletes ledger {ledger_id}")
            self.world.delete_record(ledger_id)

    def _on_wait(self, effect: change.Wait) -> None:
        self._on_set_timer(ev.SetTimer("wait", 0))

    def fire(self, name: str) -> None:
        if name not in self.timers:
            raise StoryError(f"{self.name} does not wait")
        self.timers.remove(name)
        self.feed(change.WaitEnded())

    def _on_finish(self, effect: change.Finish) -> None:
        self.world.say(f"{self.name} has published, from offset {effect.result.base_offset}")


def _extent(world: World, ledger_id: LedgerId) -> NewExtent:
    record = world.records[ledger_id].value
    if not record.is_closed:
        raise StoryError(f"ledger {ledger_id} is not closed")
    return NewExtent(
        ledger_id=ledger_id,
        entry_count=record.last_entry_id + 1,
        size_bytes=record.length,
        created_ms=1,
        ensemble_size=record.ensemble_size,
        write_quorum_size=record.write_quorum_size,
        ack_quorum_size=record.ack_quorum_size,
        fragments=record.fragments,
    )
