# SPDX-License-Identifier: Apache-2.0
"""The clients of a scenario: writer, recoverer, reader and follower, each the production machine as it is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from bk_core import quorum
from bk_core.errors import BookKeeperError
from bk_core.model import LedgerId
from bk_core.protocol import events as ev
from bk_core.protocol.config import RecoveryConfig, WriterConfig
from bk_core.protocol.ends.follower import LedgerFollower
from bk_core.protocol.reader import RangeRead
from bk_core.protocol.recovery import LedgerRecovery
from bk_core.protocol.writer import LedgerWrite, WriterState
from bookie_server.machine import events as mev
from tests.kit.memory_holdings import stored
from tests.scenarios.clients import Client
from tests.scenarios.world import StoryError, World, braced, describe


class Writer(Client):
    """``append`` and ``close`` are the application's words."""

    machine: LedgerWrite

    def __init__(self, world: World, name: str, ledger_id: LedgerId, options: dict[str, str]) -> None:
        super().__init__(world, name, ledger_id)
        self._confirmed = -1
        self.on_closed: Callable[[], None] = lambda: None
        self.on_failed: Callable[[BookKeeperError], None] = lambda error: None
        self.machine = LedgerWrite(
            ledger_id,
            world.records[ledger_id],
            self.digester,
            config=with_options(WriterConfig(), options),
            new_session=itertools.count(1).__next__,
            random=random.Random(1),
        )
        self.begin(self.machine.start())

    def status(self) -> str:
        machine = self.machine
        if machine.state in (WriterState.CLOSED, WriterState.FAILED) or self.gone:
            return ""
        value, lanes = machine.metadata.value, machine.delivery.lanes
        groups: list[tuple[list[int], str]] = []
        for entry in range(machine.lac + 1, machine.lap + 1):
            members = quorum.write_set(entry, value.ensemble_size, value.write_quorum_size)
            acked = braced([lanes[i].bookie for i in sorted(members) if lanes[i].watermark >= entry])
            if groups and groups[-1][1] == acked:
                groups[-1][0].append(entry)
            else:
                groups.append(([entry], acked))
        spans = [f"{ids[0]}" if len(ids) == 1 else f"{ids[0]}..{ids[-1]}" for ids, _ in groups]
        pending = " | ".join(f"{span} {acked}" for span, (_, acked) in zip(spans, groups, strict=True))
        return f"{self.name} pending: {pending or 'nothing'}   lac={machine.lac}"

    def _failed(self) -> tuple[str, ...]:
        return tuple(self.machine.delivery.lanes[index].bookie for index in self.machine.failed)

    def _on_confirm(self, effect: ev.Confirm) -> None:
        first, self._confirmed = self._confirmed + 1, effect.lac
        self.world.say(f"{self.name} confirms {first}" + (f"..{effect.lac}" if effect.lac > first else ""))

    def _on_finish_close(self, effect: ev.FinishClose) -> None:
        self.world.say(f"{self.name} has closed the ledger at {effect.metadata.value.last_entry_id}")
        self.on_closed()

    def _on_fail(self, effect: ev.Fail) -> None:
        super()._on_fail(effect)
        self.on_failed(effect.error)

    def _on_fail_close(self, effect: ev.FailClose) -> None:
        self.world.say(f"{self.name} could not close the ledger")


class Recoverer(Client):
    """Starts when it is made."""

    machine: LedgerRecovery

    def __init__(self, world: World, name: str, ledger_id: LedgerId, options: dict[str, str]) -> None:
        super().__init__(world, name, ledger_id)
        self.on_finished: Callable[[ev.FinishRecovery], None] = lambda finished: None
        self.machine = LedgerRecovery(
            self.digester,
            config=with_options(RecoveryConfig(), options),
            new_session=itertools.count(1).__next__,
            random=random.Random(1),
        )
        self.begin(self.machine.start())

    def _tell_requests(self, effects: list[Any]) -> None:
        written: dict[tuple[int, int], list[str]] = {}
        for each in effects:
            if isinstance(each, ev.SendFrame):
                extent = stored(bytes(each.frame)).extent
                written.setdefault((extent.first, extent.last), []).append(each.bookie)
        for (first, last), bookies in written.items():
            span = f"{first}" if first == last else f"{first}..{last}"
            self.world.say(f"{self.name} writes {span} back to {braced(bookies)}")
        super()._tell_requests(effects)

    def _failed(self) -> tuple[str, ...]:
        return self.machine.failed_bookies

    def _on_back_off(self, effect: ev.BackOff) -> None:
        self.world.say(f"{self.name} waits for another recoverer")
        self._on_set_timer(ev.SetTimer("again", 0))

    def _on_finish_recovery(self, effect: ev.FinishRecovery) -> None:
        self.world.say(f"{self.name} is done: {describe(effect.metadata)}")
        self.on_finished(effect)


class Reader(Client):
    """Reads entries first to last, which it knows to exist."""

    machine: RangeRead

    def __init__(self, world: World, name: str, ledger_id: LedgerId, first: int, last: int) -> None:
        super().__init__(world, name, ledger_id)
        record = world.records[ledger_id].value
        self.machine = RangeRead(record, self.digester, first, last, bytes_max=1 << 20)
        self.begin(self.machine.start())

    def _on_deliver_batch(self, effect: ev.DeliverBatch) -> None:
        ids, payloads = effect.batch.entry_ids().tolist(), effect.batch.to_list()
        text = " ".join(f"{i}={bytes(payload).decode()}" for i, payload in zip(ids, payloads, strict=True))
        self.world.say(f"{self.name} gets {text}")

    def _on_finish_read(self, effect: ev.FinishRead) -> None:
        self.world.say(f"{self.name} has read everything")


class Follower(Client):
    """Follows the LAC of a ledger that others write."""

    machine: LedgerFollower

    def __init__(self, world: World, name: str, ledger_id: LedgerId) -> None:
        super().__init__(world, name, ledger_id)
        self.machine = LedgerFollower(world.records[ledger_id], -1, self.digester)
        self._told = ""
        self.begin(self.machine.start())

    def _on_watch_metadata(self, effect: ev.WatchMetadata) -> None:
        def watched(feed: Callable[[Any], None]) -> Any:
            self.world.watchers.setdefault(self.ledger_id, []).append((self.name, feed))
            return ev.MetadataWatched()

        self.world.ask_store(self.name, lambda: watched(self.feed), self.feed)

    def _on_send_watch_lac(self, effect: ev.SendWatchLac) -> None:
        self._lac_request(
            effect.index,
            effect.bookie,
            lambda request: mev.WatchLacRequested(request, self.ledger_id, effect.above, 60_000),
        )

    def _on_confirm(self, effect: ev.Confirm) -> None:
        closed = self.machine.metadata.value.is_closed
        told = f"{self.name} sees the end: {self.machine.lac}" if closed else f"{self.name} sees lac={self.machine.lac}"
        if told != self._told:
            self.world.say(told)
        self._told = told


def with_options(config: Any, options: dict[str, str]) -> Any:
    """The configuration with what the story sets; unknown names are the story's mistake."""
    known = {f.name: getattr(config, f.name) for f in fields(config)}
    unknown = set(options) - set(known)
    if unknown:
        raise StoryError(f"no option {', '.join(sorted(unknown))}")
    return replace(config, **{name: _converted(known[name], text) for name, text in options.items()})


def _converted(default: Any, text: str) -> Any:
    if isinstance(default, bool):
        return text in ("yes", "true", "1")
    return type(default)(text)
