# SPDX-License-Identifier: Apache-2.0
"""The checker of histories finds every kind of lie, and no lie in what is true."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.history import Broken, Kind, Operation, Outcome, check_ledger

A, B, C, D, E, F = (b"%d" % number for number in range(6))
History = list[Operation]


def append(
    first: int, *digests: bytes, at: int, entry_id: int | None = None, outcome: Outcome | None = None
) -> Operation:
    """Acknowledged under ``entry_id``, or with that outcome."""
    said = outcome or (Outcome.UNKNOWN if entry_id is None else Outcome.OK)
    return Operation(
        kind=Kind.APPEND,
        client="writer",
        invoked=at,
        returned=at + 5,
        outcome=said,
        first=first,
        digests=digests,
        entry_id=-1 if entry_id is None else entry_id,
    )


def read(client: str, first: int, *digests: bytes, at: int, last: int | None = None) -> Operation:
    asked = first + len(digests) - 1 if last is None else last
    return Operation(
        kind=Kind.READ, client=client, invoked=at, returned=at + 5, first=first, last=asked, digests=digests
    )


def told(kind: Kind, client: str, entry_id: int, *, at: int) -> Operation:
    return Operation(kind=kind, client=client, invoked=at, returned=at + 5, entry_id=entry_id)


def honest() -> History:
    """A writer appends A B | C | D (refused) | E F and dies; the reader follows; recovery finds A B C E."""
    return [
        append(0, A, B, at=0, entry_id=0),
        append(2, C, at=20, entry_id=2),
        append(3, D, at=30, outcome=Outcome.FAILED),
        append(4, E, F, at=40),
        told(Kind.LAC, "tail", 1, at=25),
        read("tail", 0, A, B, at=31),
        told(Kind.LAC, "tail", 2, at=37),
        told(Kind.END, "recoverer", 3, at=60),
        read("recoverer", 0, A, B, C, E, at=70),
        told(Kind.END, "other", 3, at=80),
    ]


FINAL = [A, B, C, E]


def add(*operations: Operation) -> Callable[[History], History]:
    return lambda history: [*history, *operations]


def change(at: int, **values: object) -> Callable[[History], History]:
    return lambda history: [*history[:at], replace(history[at], **values), *history[at + 1 :]]


FORGERIES: dict[str, tuple[Broken, Callable[[History], History], list[bytes]]] = {
    "the last acknowledged entry is missing": (Broken.LOST, change(3), [A, B]),
    "a ledger with acknowledged entries is empty": (Broken.LOST, change(3), []),
    "an entry of a returned LAC is missing": (Broken.LOST, add(told(Kind.LAC, "x", 4, at=50)), FINAL),
    "an entry that was read is missing": (Broken.LOST, add(read("x", 3, E, F, at=50)), FINAL),
    "an acknowledged entry in the middle is missing": (Broken.CHANGED, change(3), [A, C, E]),
    "an acknowledged entry has other bytes": (Broken.CHANGED, change(3), [A, B, F, E]),
    "a reader saw other bytes": (Broken.CHANGED, change(5, digests=(A, C)), FINAL),
    "two readers saw different bytes of an unknown entry": (Broken.CHANGED, add(read("x", 3, F, at=50)), FINAL),
    "an entry came from nowhere": (Broken.INVENTED, change(3), [A, B, C, b"never"]),
    "an unknown append is there twice": (Broken.DOUBLED, change(3), [A, B, C, E, E]),
    "an acknowledged append is there again": (Broken.DOUBLED, change(3), [A, B, C, C]),
    "unknown appends changed places": (Broken.REORDERED, change(3), [A, B, C, F, E]),
    "acknowledged appends changed places": (
        Broken.MISNUMBERED,
        lambda history: change(1, entry_id=0)(change(0, entry_id=1)(history)),
        [C, A, B, E],
    ),
    "an unknown append went before an acknowledged one": (
        Broken.REORDERED,
        lambda _: [append(0, A, B, at=0, entry_id=0), append(2, C, at=20, entry_id=3), append(3, D, at=30)],
        [A, B, D, C],
    ),
    "an append that was refused is there": (Broken.REFUSED_PRESENT, change(3), [A, B, C, D, E]),
    "two appends got the same id": (Broken.MISNUMBERED, change(1, entry_id=1), FINAL),
    "an id leaves room for what nobody appended": (Broken.MISNUMBERED, change(1, entry_id=4), FINAL),
    "an append that began after the recovery was acknowledged": (
        Broken.LATE_ACK,
        change(3, invoked=90, outcome=Outcome.OK, entry_id=3),
        [A, B, C, D],
    ),
    "the closed end moved up": (Broken.END_MOVED, change(9, entry_id=4), FINAL),
    "the closed end moved down": (Broken.END_MOVED, change(7, entry_id=2), FINAL),
    "the writer closed elsewhere": (Broken.END_MOVED, add(told(Kind.END, "writer", 2, at=55)), FINAL),
    "a read skipped an entry": (Broken.SKIPPED, change(8, digests=(A, B, C)), FINAL),
    "a read gave too much": (Broken.SKIPPED, change(5, last=0), FINAL),
    "an entry of the ledger was called lost": (
        Broken.DENIED,
        change(8, outcome=Outcome.FAILED, digests=(A, B), denied=2),
        FINAL,
    ),
    "a reader saw what was not appended yet": (Broken.TOO_EARLY, change(5, returned=-1, invoked=-2), FINAL),
    "a LAC named what was not appended yet": (Broken.TOO_EARLY, change(6, returned=19, invoked=18), FINAL),
    "a LAC went back": (Broken.WENT_BACK, change(6, entry_id=0), FINAL),
}


def test_an_honest_history_passes() -> None:
    assert check_ledger(honest(), FINAL) == []
    assert check_ledger([op for op in honest() if op.kind is not Kind.END], None) == []


@pytest.mark.parametrize("lie", FORGERIES)
def test_a_forged_history_is_found_out(lie: str) -> None:
    broken, forge, final = FORGERIES[lie]
    assert broken in [violation.broken for violation in check_ledger(forge(honest()), final)]


def test_the_forgeries_cover_every_promise() -> None:
    assert {broken for broken, _, _ in FORGERIES.values()} == set(Broken)


def test_readers_are_compared_where_the_ledger_was_never_closed() -> None:
    history = [append(0, A, B, at=0), read("x", 0, A, at=10), read("y", 0, B, at=20)]
    assert [violation.broken for violation in check_ledger(history, None)] == [Broken.CHANGED]


def test_equal_payloads_are_told_apart_by_what_was_acknowledged() -> None:
    """The greedy match must not give an unknown append's place to an acknowledged one of the same bytes."""
    history = [append(0, A, at=0), append(1, A, at=10, entry_id=0), append(2, A, at=20), append(3, B, at=30)]
    assert check_ledger(history, [A, B]) == []
    assert check_ledger(history, [A, A, B]) == []
    assert [v.broken for v in check_ledger(history, [A, A, A, B])] == [Broken.DOUBLED]


def true_history(rng: random.Random) -> tuple[History, list[bytes]]:
    """What an honest cluster may do: a prefix acknowledged, LACs and reads within it, some end at or beyond it."""
    history: History = []
    entries: list[tuple[bytes, int]] = []  # (digest, when its append began) of what was queued, by id
    number = now = 0
    for _ in range(rng.randint(0, 12)):
        now += 10
        digests = tuple(rng.choice([A, B, C, b"%d" % rng.getrandbits(64)]) for _ in range(rng.randint(1, 4)))
        if rng.random() < 0.15:
            history.append(append(number, *digests, at=now, outcome=Outcome.FAILED))
        else:
            history.append(append(number, *digests, at=now, entry_id=len(entries)))
            entries += [(digest, now) for digest in digests]
        number += len(digests)
    confirmed = rng.randint(-1, len(entries) - 1)
    end = rng.randint(confirmed, len(entries) - 1)
    for at, op in enumerate(history):
        if op.outcome is Outcome.OK and op.entry_id + len(op.digests) - 1 > confirmed:
            history[at] = replace(op, outcome=Outcome.UNKNOWN, entry_id=-1)
    final = [digest for digest, _ in entries[: end + 1]]
    for client in ("tail", "other"):
        at, lac = now, -1
        for _ in range(rng.randint(0, 4)):
            at, lac = at + 20, rng.randint(lac, confirmed)
            history.append(told(Kind.LAC, client, lac, at=at))
            first = rng.randint(0, lac + 1)
            history.append(read(client, first, *final[first : lac + 1], at=at + 6))
    for client in ("recoverer", "closer"):
        if rng.random() < 0.7:
            history += [told(Kind.END, client, end, at=500), read(client, 0, *final, at=510)]
    rng.shuffle(history)
    return history, final


@given(st.randoms(use_true_random=False))
def test_true_histories_pass(rng: random.Random) -> None:
    history, final = true_history(rng)
    assert check_ledger(history, final) == []


@given(st.randoms(use_true_random=False))
def test_a_true_history_with_another_end_of_the_ledger_does_not_pass(rng: random.Random) -> None:
    history, final = true_history(rng)
    ids = [op.entry_id + len(op.digests) for op in history if op.kind is Kind.APPEND and op.outcome is Outcome.OK]
    if ids:
        assert check_ledger(history, final[: max(ids) - 1])
    assert check_ledger(history, [*final, b"never appended"])
