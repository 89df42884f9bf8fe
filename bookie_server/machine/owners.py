# SPDX-License-Identifier: Apache-2.0
"""The owners of a bookie's streams, and the bytes that all streams of one owner have in flight.

An *owner* is a name that the driver chooses: a client's identity, or its address. A stream has none until it is told,
and then as many as it is told. Three amounts are bounded, each by ``bytes_max``: frames of normal adds that wait for a
commit, frames of recovery adds, and parts of answers that the client has not taken. So no flood of an owner's adds or
reads holds up its own recoveries. An owner is remembered while it has a stream or a byte in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookie_server.machine.events import StreamId


class Owner:
    __slots__ = ("answers", "bytes_max", "name", "normal", "recovery", "streams")

    def __init__(self, name: str, bytes_max: int) -> None:
        self.name, self.bytes_max = name, bytes_max
        self.streams = 0
        self.normal = self.recovery = self.answers = 0  # bytes

    def full(self, *, normal: bool, recovery: bool) -> bool:
        """Whether a stream that has just sent adds of these kinds is paused."""
        return (normal and self.normal > self.bytes_max) or (recovery and self.recovery > self.bytes_max)

    def has_room(self, *, normal: bool, recovery: bool) -> bool:
        """Whether such a stream goes on."""
        enough = self.bytes_max // 2
        return not ((normal and self.normal > enough) or (recovery and self.recovery > enough))


class Owners:
    __slots__ = ("_by_name", "_of")

    def __init__(self) -> None:
        self._by_name: dict[str, Owner] = {}
        self._of: dict[StreamId, tuple[Owner, ...]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def of(self, stream: StreamId) -> tuple[Owner, ...]:
        return self._of.get(stream, ())

    def own(self, stream: StreamId, owners: Sequence[tuple[str, int]]) -> tuple[Owner, ...]:
        """Say whose a stream is. It stays theirs: what is said later does not count."""
        if stream not in self._of:
            found = tuple(self._by_name.setdefault(name, Owner(name, bytes_max)) for name, bytes_max in owners)
            for owner in found:
                owner.streams += 1
            self._of[stream] = found
        return self._of[stream]

    def close(self, stream: StreamId) -> None:
        for owner in self._of.pop(stream, ()):
            owner.streams -= 1
            self.settled(owner)

    def settled(self, owner: Owner) -> None:
        """Something of it is not in flight any more: forget it if that was all."""
        if not (owner.streams or owner.normal or owner.recovery or owner.answers):
            self._by_name.pop(owner.name, None)
