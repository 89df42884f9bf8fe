# SPDX-License-Identifier: Apache-2.0
"""Jobs that publish closed ledgers into a named log: the production sequence of publishing in a scenario."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from bk_core.errors import BookKeeperError, MetadataConflictError, MetadataUnavailableError, Outcome
from bk_core.logs.machines import ask
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.publication import Publish, PublishOptions
from bk_core.logs.model.head import NewExtent, PublishId
from bk_core.logs.model.next_head import LedgerEnd
from bk_core.model import LedgerId, Versioned
from bk_core.protocol import events as ev
from tests.scenarios.actors import Recoverer
from tests.scenarios.clients import Client
from tests.scenarios.logs import end_of, head_of
from tests.scenarios.world import StoryError, World, describe_log, error_text

_LOG = "log"
_NONCE = itertools.count().__next__


class Publisher(Client):
    """Publishes closed ledgers as one job, all or none. What is fed to it are answers."""

    def __init__(self, world: World, name: str, ledgers: list[LedgerId], *, takeover: bool, job: str) -> None:
        super().__init__(world, name, 0)
        extents = tuple(_extent(world, ledger_id) for ledger_id in ledgers)
        publish_id = PublishId.job(job)
        intent = Publish(
            extents=extents, publish_id=publish_id, now_ms=1, nonce=_NONCE, options=PublishOptions(takeover=takeover)
        )
        self._steps = HeadChange({_LOG: intent}).run()
        self._ends: dict[LedgerId, LedgerEnd] = {}
        self.feed(None)

    def feed(self, event: Any) -> None:
        if self.gone:
            return
        try:
            request = self._steps.throw(event) if isinstance(event, BookKeeperError) else self._steps.send(event)
        except StopIteration as ended:
            self.world.say(f"{self.name} has published, from offset {ended.value[_LOG].base_offset}")
        except BookKeeperError as error:
            self.world.say(f"{self.name} fails: {error_text(error)}")
        else:
            self._carry_out(list(request.requests.values()) if isinstance(request, ask.ForLogs) else [request])

    def _ask(self, do: Callable[[], Any]) -> None:
        self.world.ask_store(self.name, lambda: {_LOG: do()}, self.feed, {_LOG: _no_answer()})

    def _on_read_head(self, effect: ask.ReadHead) -> None:
        self._ask(lambda: ask.HeadRead(head_of(self.world)))

    def _on_check_ledgers(self, effect: ask.CheckLedgers) -> None:
        self._ask(lambda: None)

    def _on_recover_ledgers(self, effect: ask.RecoverLedgers) -> None:
        for ledger_id in effect.ledgers:
            self.world.say(f"{self.name} recovers ledger {ledger_id}")
            recoverer = Recoverer(self.world, f"{self.name}.{ledger_id}", ledger_id, {})
            self.world.clients[recoverer.name] = recoverer

            def finished(done: ev.FinishRecovery, ledger_id: LedgerId = ledger_id) -> None:
                self._ends[ledger_id] = end_of(done.metadata.value)
                if len(self._ends) == len(effect.ledgers):
                    self.feed({_LOG: ask.LedgersRecovered(self._ends)})

            recoverer.on_finished = finished

    def _on_write_heads(self, effect: ask.WriteHeads) -> None:
        write = effect.writes[_LOG]

        def do() -> MetadataConflictError | None:
            version = head_of(self.world).version
            if version != write.version:
                self.world.say(f"store refuses {self.name}: the log's version is {version}, not {write.version}")
                return MetadataConflictError("another version")
            self.world.log = Versioned(write.head, version + 1)
            self.world.say(f"store takes {describe_log(self.world.log)}   from {self.name}")
            return None

        self.world.ask_store(self.name, do, self.feed, _no_answer())

    def _on_wait(self, effect: ask.Wait) -> None:
        self._on_set_timer(ev.SetTimer("wait", 0))

    def fire(self, name: str) -> None:
        if name not in self.timers:
            raise StoryError(f"{self.name} does not wait")
        self.timers.remove(name)
        self.feed(None)


def _no_answer() -> MetadataUnavailableError:
    return MetadataUnavailableError("the metadata store did not answer", outcome=Outcome.UNKNOWN)


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
