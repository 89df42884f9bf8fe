# SPDX-License-Identifier: Apache-2.0
"""The owners of a bookie's streams, and the bytes that all streams of one owner have in flight.

An *owner* is a name that the driver chooses: a client's identity, or its address. A stream has no owners until the
driver sends StreamOwned, which may name several. For each owner three amounts are bounded, each by ``bytes_max``:
frames of normal adds that wait for a commit, frames of recovery adds that wait, and parts of answers that the client
has not read. So a flood of an owner's adds or reads does not hold up its own recoveries. An owner is remembered while
it has a stream or a byte in flight.
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
        """Return whether a stream that has just sent adds of these kinds must be paused."""
        return (normal and self.normal > self.bytes_max) or (recovery and self.recovery > self.bytes_max)

    def has_room(self, *, normal: bool, recovery: bool) -> bool:
        """Return whether a paused stream that sends adds of these kinds may resume: the owner's amounts of these kinds
        are at most half of ``bytes_max``."""
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
        """Set the owners of a stream, as pairs of name and ``bytes_max``, and return them. A second call for the same
        stream changes nothing."""
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
        """Forget the owner if it has no stream and nothing in flight."""
        if not (owner.streams or owner.normal or owner.recovery or owner.answers):
            self._by_name.pop(owner.name, None)
