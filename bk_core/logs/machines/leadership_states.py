# SPDX-License-Identifier: Apache-2.0
"""The states of :class:`bk_core.logs.machines.leadership.LogLeadership` and the legal moves between them. Pure."""

from __future__ import annotations

import enum


class State(enum.Enum):
    """The states of a leadership."""

    NEW = "new"
    READING = "reading"
    RECOVERING = "recovering"
    SEALING = "sealing"
    CREATING = "creating"
    LISTING = "listing"
    SERVING = "serving"
    ROLL_ASKING = "roll asking"
    ROLL_CREATING = "roll creating"
    ROLL_LISTING = "roll listing"
    ROLL_CLOSING = "roll closing"
    ROLL_SEALING = "roll sealing"
    CLOSING = "closing"
    CLOSE_SEALING = "close sealing"
    ASKING = "asking"  # whether we still lead, after a failed compare-and-set
    WAITING = "waiting"
    REREADING = "rereading"
    ENDED = "ended"
    LOST = "lost"


_SETTLING = (State.ASKING, State.WAITING)
MOVES: dict[State, tuple[State, ...]] = {
    State.NEW: (State.READING, State.ENDED),
    State.READING: (State.RECOVERING, State.CREATING, State.LOST),
    State.RECOVERING: (State.SEALING, State.CREATING, State.LISTING, State.LOST),
    State.SEALING: (State.CREATING, State.LISTING, *_SETTLING, State.LOST),
    State.CREATING: (State.LISTING, State.LOST),
    State.LISTING: (State.SERVING, State.CLOSING, *_SETTLING, State.LOST),
    State.SERVING: (State.ROLL_ASKING, State.CLOSING, State.LOST),
    State.ROLL_ASKING: (State.ROLL_CREATING, State.LOST),
    State.ROLL_CREATING: (State.ROLL_LISTING, State.SERVING, State.CLOSING, State.LOST),
    State.ROLL_LISTING: (State.ROLL_CLOSING, *_SETTLING, State.LOST),
    State.ROLL_CLOSING: (State.ROLL_SEALING, State.LOST),
    State.ROLL_SEALING: (State.SERVING, State.CLOSING, *_SETTLING, State.LOST),
    State.CLOSING: (State.CLOSE_SEALING, State.LOST),
    State.CLOSE_SEALING: (State.ENDED, *_SETTLING, State.LOST),
    State.ASKING: (State.WAITING, State.LOST),
    State.WAITING: (State.REREADING, State.LOST),
    State.REREADING: (
        State.RECOVERING,
        State.CREATING,
        State.LISTING,
        State.SERVING,
        State.ROLL_LISTING,
        State.ROLL_CLOSING,
        State.ROLL_SEALING,
        State.CLOSING,
        State.CLOSE_SEALING,
        State.WAITING,
        State.ENDED,
        State.LOST,
    ),
    State.ENDED: (),
    State.LOST: (),
}
"""The legal moves: every step is checked against them, and docs/protocol.md shows them."""
