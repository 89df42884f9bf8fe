# SPDX-License-Identifier: Apache-2.0
"""The answers of a connection that wait: what leaves together, what is counted, and what the machine learns."""

from __future__ import annotations

from bookie_server.machine import events as ev
from bookie_server.ports.bookie_rpc.answer_queue import COUNTED_BYTES_MAX, MESSAGE_BYTES, AnswerQueue
from bookie_server.ports.bounds.memory_bounds import AnswerRoom


class World:
    def __init__(self) -> None:
        self.room, self.fed, self.wakes = AnswerRoom(), list[ev.Event](), 0
        self.queue = AnswerQueue(self.room, self.fed.append, self._wake)

    def _wake(self) -> None:
        self.wakes += 1


def test_a_message_has_about_a_mebibyte_and_the_driver_is_woken_once() -> None:
    world = World()
    for _ in range(5):
        world.queue.send(bytes(MESSAGE_BYTES // 2))
    assert world.wakes == 1
    assert [len(world.queue.next_message()) for _ in range(4)] == [2, 2, 1, 0]


def test_the_machine_learns_of_a_part_once_its_last_buffer_has_left() -> None:
    world = World()
    world.queue.send(b"a part")
    world.queue.send(b"", (3, 1))
    world.queue.is_stalled = True
    assert len(world.queue.next_message()) == 2
    assert world.fed == []
    world.queue.message_left()
    world.queue.message_left()
    assert world.fed == [ev.PartSent((3, 1))]
    assert not world.queue.is_stalled


def test_counted_answers_fill_the_room_of_all_connections_until_they_leave() -> None:
    world = World()
    world.queue.send(bytes(COUNTED_BYTES_MAX), counted=True)
    assert not world.queue.is_full(fence=False)
    world.queue.send(b"x", counted=True)
    assert world.queue.is_full(fence=True)
    assert world.room.bytes == COUNTED_BYTES_MAX + 1
    world.queue.drop()
    assert not world.queue.is_full(fence=False)
    assert world.room.bytes == 0
