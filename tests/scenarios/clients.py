# SPDX-License-Identifier: Apache-2.0
"""What all clients of a scenario share: a production machine whose effects become messages on links and lines of the
trace. The kinds of clients are in :mod:`tests.scenarios.actors`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bk_core.entries.digest import Digester, ledger_key
from bk_core.model import DigestType, LedgerId
from bk_core.protocol import events as ev
from bk_core.wire.lane.reasons import EntryRange
from bookie_server.machine import events as mev
from tests.kit.memory_holdings import stored
from tests.scenarios.bookies import Answer, Bookie, Connection
from tests.scenarios.world import Message, StoryError, World, braced, error_text

PASSWORD = b""


class Client:
    """One machine and its ways out. Subclasses make the machine and say what they tell the trace."""

    def __init__(self, world: World, name: str, ledger_id: LedgerId) -> None:
        self.world, self.name, self.ledger_id = world, name, ledger_id
        self.digester = Digester(DigestType.CRC32C, PASSWORD, ledger_id)
        self.gone = False
        self.timers: list[str] = []
        self.machine: Any = None
        self._adds: dict[str, Connection] = {}
        self._sessions: dict[tuple[str, int], int] = {}  # (bookie, session) → index
        self._quarantine: list[str] = []

    # --- the machine ---

    def begin(self, effects: list[Any]) -> None:
        self._carry_out(effects)

    def feed(self, event: Any) -> None:
        if not self.gone:
            self._carry_out(self.machine.step(event))

    def fire(self, name: str) -> None:
        if name not in self.timers:
            running = ", ".join(self.timers) or "none"
            raise StoryError(f"{self.name} has no timer {name!r} running (running: {running})")
        self.timers.remove(name)
        self.feed(ev.TimerFired(name))

    def vanish(self) -> None:
        """The process dies: nothing of it is heard again, what it has sent may still arrive."""
        self.gone = True

    def status(self) -> str:
        """The line that ends a block, if it has changed."""
        return ""

    def _carry_out(self, effects: list[Any]) -> None:
        self._tell_requests(effects)
        for effect in effects:
            handler: Callable[[Any], None] | None = getattr(self, f"_on_{_snake(type(effect).__name__)}", None)
            if handler is None:
                raise StoryError(f"{self.name} wants {effect}, which no scenario knows")
            handler(effect)

    def _tell_requests(self, effects: list[Any]) -> None:
        """One line for what goes to several bookies at once."""
        fenced = [e.bookie for e in effects if isinstance(e, ev.SendFence)]
        if fenced:
            self.world.say(f"{self.name} fences {braced(fenced)}")
        asked: dict[tuple[int, str], list[str]] = {}
        for each in effects:
            if isinstance(each, ev.SendRead):
                how = ", fencing" if each.fence else f"..{each.last}"
                asked.setdefault((each.first, how), []).append(each.bookie)
        for (first, how), bookies in asked.items():
            text = f"reads from {first} on{how}:" if how.startswith(",") else f"reads {first}{how}:"
            self.world.say(f"{self.name} {text} {braced(bookies)}")

    # --- sessions ---

    def _connection(self, name: str) -> Connection:
        known = self._adds.get(name)
        if known is not None and known.open:
            return known
        bookie = self._bookie(name)
        connection = bookie.connect(
            self.name,
            lambda answer: self._session_answer(name, connection, answer),
            lambda: self.world.send(name, self.name, Message(lambda: self._broken(name, connection))),
        )
        self._adds[name] = connection
        return connection

    def _bookie(self, name: str) -> Bookie:
        if name not in self.world.bookies:
            raise StoryError(f"there is no bookie {name}")
        return self.world.bookies[name]

    def _on_attach_session(self, effect: ev.AttachSession) -> None:
        self._sessions[effect.bookie, effect.session] = effect.index
        key = ledger_key(PASSWORD)
        self._to_session(
            effect.bookie,
            lambda c: c.feed(mev.SessionAttached(c.stream, effect.session, self.ledger_id, key, effect.mode)),
        )

    def _on_send_frame(self, effect: ev.SendFrame) -> None:
        frame = bytes(effect.frame)
        extent = stored(frame).extent
        self._to_session(
            effect.bookie,
            lambda c: c.feed(mev.FramesArrived(c.stream, memoryview(frame))),
            entries=(extent.first, extent.last),
        )

    def _on_detach_session(self, effect: ev.DetachSession) -> None:
        connection = self._adds.get(effect.bookie)
        if connection is not None and connection.usable:
            connection.feed(mev.SessionsDetached(connection.stream, [effect.session]))

    def _to_session(self, name: str, do: Callable[[Connection], None], entries: tuple[int, int] | None = None) -> None:
        connection = self._connection(name)

        def lost() -> None:
            connection.close()
            self._broken(name, connection)

        self.world.send(
            self.name, name, Message(lambda: do(connection) if connection.usable else lost(), lost, entries)
        )

    def _broken(self, name: str, connection: Connection) -> None:
        if self._adds.get(name) is not connection:
            return
        del self._adds[name]
        for (bookie, session), index in list(self._sessions.items()):
            if bookie == name:
                self.feed(ev.SessionBroken(index, session, f"the connection to {name} broke"))

    def _session_answer(self, name: str, connection: Connection, answer: Answer) -> None:
        assert isinstance(answer, mev.SendAcks), answer
        said: list[ev.SessionEvent] = [
            ev.FramesAcked(self._sessions[name, session], session, frames)
            for session, frames in zip(answer.sessions, answer.frames, strict=True)
        ]
        said += [ev.SessionEnded(self._sessions[name, e.session], e.session, e.frames, e.reason) for e in answer.ended]

        def lost() -> None:
            connection.close()
            self._broken(name, connection)

        for event in said:
            self.world.send(name, self.name, Message(lambda event=event: self.feed(event), lost))

    # --- requests ---

    def _request(
        self,
        name: str,
        make: Callable[[mev.RequestId], mev.Event],
        answers: Callable[[Answer], ev.FramesRead | ev.ReadAnswered | ev.ReadFailed | ev.LacAnswered | ev.LacFailed],
        failure: Any,
    ) -> None:
        """One request and its answers; losing any of it is the failure, as a deadline would be."""

        def lost() -> None:
            connection.close()
            self.feed(failure)

        def heard(answer: Answer) -> None:
            event = answers(answer)
            self.world.send(name, self.name, Message(lambda: self.feed(event), lost, flip=lambda: flipped(event)))

        def flipped(event: Any) -> Message:
            self.world.say(f"a bit flips on the way from {name} to {self.name}")
            bad = _with_a_flipped_bit(event)
            return Message(lambda: self.feed(bad), lost)

        connection = self._bookie(name).connect(
            self.name, heard, lambda: self.world.send(name, self.name, Message(lost, lost))
        )

        def arrive() -> None:
            if connection.usable:
                connection.feed(make((connection.stream, 1)))
            else:
                lost()

        self.world.send(self.name, name, Message(arrive, lost))

    def _on_send_fence(self, effect: ev.SendFence) -> None:
        key = ledger_key(PASSWORD)
        self._lac_request(effect.index, effect.bookie, lambda request: mev.FenceRequested(request, self.ledger_id, key))

    def _on_send_read_lac(self, effect: ev.SendReadLac) -> None:
        self._lac_request(effect.index, effect.bookie, lambda request: mev.ReadLacRequested(request, self.ledger_id))

    def _lac_request(self, index: int, bookie: str, make: Callable[[mev.RequestId], mev.Event]) -> None:
        def answers(answer: Answer) -> ev.LacAnswered | ev.LacFailed:
            if isinstance(answer, mev.SendLac):
                said = answer.evidence
                frame, lac_frame = bytes(said.last_entry_frame), bytes(said.lac_frame)
                return ev.LacAnswered(index, frame, bytes(said.lac_body), lac_frame)
            assert isinstance(answer, mev.SendReply)
            return ev.LacFailed(index, answer.message, answer.reason)

        self._request(bookie, make, answers, ev.LacFailed(index, f"{bookie} did not answer"))

    def _on_send_read(self, effect: ev.SendRead) -> None:
        key = ledger_key(PASSWORD) if effect.fence else None

        def answers(answer: Answer) -> ev.FramesRead | ev.ReadAnswered | ev.ReadFailed:
            if isinstance(answer, mev.SendPart):
                return ev.FramesRead(effect.request, memoryview(b"".join(bytes(f) for f in answer.frames)))
            assert isinstance(answer, mev.SendTrailer)
            if answer.reason:
                return ev.ReadFailed(effect.request, answer.message, answer.reason)
            trailer = answer.trailer
            return ev.ReadAnswered(
                effect.request,
                trailer.answered_through,
                tuple(EntryRange(r.first, r.last) for r in trailer.absent),
                tuple(EntryRange(r.first, r.last) for r in trailer.unknown),
                "; ".join(sorted({r.reason.name for r in trailer.unknown})),
            )

        self._request(
            effect.bookie,
            lambda request: mev.ReadRequested(
                request, self.ledger_id, effect.first, effect.last, effect.bytes_max, key
            ),
            answers,
            ev.ReadFailed(effect.request, f"{effect.bookie} did not answer"),
        )

    def _on_cancel_read(self, effect: ev.CancelRead) -> None:
        """What still comes is ignored by the machine."""

    def _on_send_lac(self, effect: ev.SendLac) -> None:
        key, body = ledger_key(PASSWORD), bytes(effect.lac_body)
        self.world.say(f"{self.name} hints its LAC to {effect.bookie}")
        connection = self._bookie(effect.bookie).connect(self.name, lambda answer: None, lambda: None)

        def arrive() -> None:
            if connection.usable:
                connection.feed(mev.WriteLacRequested((connection.stream, 1), self.ledger_id, key, body))

        self.world.send(self.name, effect.bookie, Message(arrive))

    # --- the store, time, ends ---

    def _on_read_metadata(self, effect: ev.ReadMetadata) -> None:
        self.world.ask_store(self.name, lambda: self.world.read_record(self.ledger_id), self.feed)

    def _on_write_metadata(self, effect: ev.WriteMetadata) -> None:
        self.world.ask_store(self.name, lambda: self.world.write_record(self.name, self.ledger_id, effect), self.feed)

    def _on_read_bookies(self, effect: ev.ReadBookies) -> None:
        self.world.say(f"{self.name} looks for other bookies")
        self._quarantine += [bookie for bookie in self._failed() if bookie not in self._quarantine]
        quarantined = tuple(self._quarantine)
        self.world.ask_store(self.name, lambda: ev.BookiesRead(tuple(self.world.writable), quarantined), self.feed)

    def _failed(self) -> tuple[str, ...]:
        """The bookies that are about to be replaced: taken again only if there is no other."""
        return ()

    def _on_mark_underreplicated(self, effect: ev.MarkUnderreplicated) -> None:
        self.world.say(f"{self.name} marks the ledger: entries are missing at {braced(effect.bookies)}")

    def _on_set_timer(self, effect: ev.SetTimer) -> None:
        if effect.name not in self.timers:
            self.timers.append(effect.name)

    def _on_cancel_timer(self, effect: ev.CancelTimer) -> None:
        if effect.name in self.timers:
            self.timers.remove(effect.name)

    def _on_fail(self, effect: ev.Fail) -> None:
        self.world.say(f"{self.name} fails: {error_text(effect.error)}")


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def _with_a_flipped_bit(event: Any) -> Any:
    if isinstance(event, ev.LacAnswered):
        if event.lac_body:
            body = bytearray(event.lac_body)
            body[10] ^= 1  # a high byte of the LAC: 8 bytes of ledger id come before it
            return replace(event, lac_body=bytes(body))
        frame = bytearray(event.last_entry_frame)
        frame[-1] ^= 1
        return replace(event, last_entry_frame=bytes(frame))
    if isinstance(event, ev.FramesRead):
        frames = bytearray(event.frames)
        frames[-1] ^= 1
        return replace(event, frames=memoryview(bytes(frames)))
    raise StoryError(f"no bit to flip in {event}")
