# SPDX-License-Identifier: Apache-2.0
"""Connections of Apache's wire over the real machine, without sockets: what is answered, when, and what ends it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bk_core.entries.apache_frame import check_apache
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import FrameKind, check_frame, encode_frame, split_frames
from bk_core.errors import AuthenticationError
from bk_core.model import DigestType
from bk_core.wire.bookie_rpc import connection as reader_module
from bk_core.wire.bookie_rpc.runs import LONE_ADDS_MAX, AddAnswers, ReadAnswers
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.reasons import AttachMode, Reason
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from bookie_server.machine import events as ev
from bookie_server.ports.access.principal import Principal
from bookie_server.ports.bookie_rpc import adds as adds_module
from bookie_server.ports.bookie_rpc import entries as entries_module
from tests.kit import bookie_requests as make
from tests.kit.apache_frames import entry_bytes
from tests.kit.availability import decode_availability
from tests.kit.bookie_wire import KEY
from tests.kit.canaries import PASSWORD
from tests.kit.memory_holdings import stored
from tests.kit.rpc_bookie import RpcBookie, RpcClient, answers

EOK, EBADREQ, ENOENTRY, ENOLEDGER = 0, int(Status.EBADREQ), int(Status.ENOENTRY), int(Status.ENOLEDGER)


@pytest.fixture(autouse=True, params=["one by one", "columns"])
def how_adds_are_handled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with adds one by one where that is cheaper, and with adds always as columns."""
    if request.param == "columns":
        monkeypatch.setattr(adds_module, "LONE_ADDS_MAX", 0)
        monkeypatch.setattr(reader_module, "LONE_ADDS_MAX", 0)


def entry(ledger_id: int, entry_id: int, payload: bytes = b"x", lac: int = -1) -> bytes:
    return make.entry(ledger_id, entry_id, payload, lac=lac, length=10 * entry_id + len(payload))


def add(
    ledger_id: int, entry_id: int, payload: bytes = b"x", *, wire: int = 3, txn: int = 0, lac: int = -1, **more: Any
) -> bytes:
    body = more.pop("body", entry(ledger_id, entry_id, payload, lac))
    return make.add(wire, txn, (ledger_id, entry_id), body, **more)


def read(ledger_id: int, *ids: int, wire: int = 3) -> bytes:
    return b"".join(make.read(wire, txn, (ledger_id, each)) for txn, each in enumerate(ids))


def fence(ledger_id: int, entry_id: int = -1, key: bytes = KEY, *, wire: int = 3) -> bytes:
    return make.read(wire, 1, (ledger_id, entry_id), fence_key=key)


def long_poll(previous: int, wait_ms: int | None = None) -> bytes:
    """A read of ledger 7 that waits for a greater LAC, and wants its entry."""
    return make.read(3, 1, (7, -1), poll=(previous, wait_ms), piggyback=True)


def statuses(data: bytes, version: int = 3) -> dict[int, int]:
    """Status by entry id, of adds and reads."""
    found: dict[int, int] = {}
    for item in answers(data, version):
        assert isinstance(item, (AddAnswers, ReadAnswers))
        found.update(zip(item.entry_ids.tolist(), item.statuses.tolist(), strict=True))
    return found


def found(data: bytes) -> dict[int, bytes | None]:
    out: dict[int, bytes | None] = {}
    for item in answers(data, 3):
        for row in range(len(item)):
            one = item.slice(row, row + 1)
            out[int(one.entry_ids[0])] = bytes(next(iter(one.bodies().pieces()))) if not one.statuses[0] else None
    return out


def story() -> tuple[RpcBookie, RpcClient]:
    bookie = RpcBookie()
    return bookie, bookie.connect()


# --- adds ---


@pytest.mark.rule("P1")
def test_an_add_is_answered_once_it_is_durable_and_not_before() -> None:
    bookie, client = story()
    bookie.hold = True
    assert client.ask(add(7, 0) + add(7, 1)) == b""
    bookie.commit()
    assert statuses(client.take()) == {0: EOK, 1: EOK}


@pytest.mark.parametrize("behind", [b"", make.read(3, 1, (9, 0))], ids=["adds", "adds and a read"])
@pytest.mark.parametrize("most", [5, LONE_ADDS_MAX, LONE_ADDS_MAX + 1])
def test_many_adds_of_a_ledger_are_one_frame_few_are_a_frame_each_and_all_keep_their_transactions(
    most: int, behind: bytes
) -> None:
    bookie, client = story()
    client.ask(add(9, 0))  # the first frame of a connection is taken by itself
    wanted = [(ledger, k) for k in range(most) for ledger in (3, 1, 2) if ledger == 3 or k < 5]
    burst = b"".join(add(ledger, k, txn=100 * ledger + k) for ledger, k in wanted)
    made = [item for item in answers(client.ask(burst + behind), 3) if isinstance(item, AddAnswers)]
    answered = [(row[3], row[4], row[2]) for item in made for row in item.rows()]
    assert sorted(answered) == sorted((ledger, k, 100 * ledger + k) for ledger, k in wanted)
    frames = [len(bookie.store.ledgers[ledger].frames) for ledger in (1, 2, 3)]
    assert frames == [each if each <= adds_module.LONE_ADDS_MAX else 1 for each in (5, 5, most)]


def bursts(ledgers: int, least: int) -> st.SearchStrategy[list[tuple[int, int, str]]]:
    """At least this many adds: the ledger, the entry id, and what is wrong with it."""
    kinds = st.sampled_from(["good"] * 8 + ["id", "short"])
    one = st.tuples(st.integers(0, ledgers - 1), st.integers(0, 20), kinds)
    return st.lists(one, min_size=least, max_size=least + 28)


@pytest.mark.rule("L5")
@pytest.mark.parametrize("wire", [2, 3])
@given(burst=bursts(ledgers=6, least=2) | bursts(ledgers=2, least=2 * LONE_ADDS_MAX + 1))
def test_frames_of_a_burst_that_the_machine_does_not_check_would_pass_all_checks(
    wire: int, burst: list[tuple[int, int, str]]
) -> None:
    bookie, client = story()
    client.ask(add(9, 0, wire=wire))
    fed, step = list[ev.FramesArrived](), bookie.machine.step

    def watched(event: ev.Event) -> list[ev.Effect]:
        if isinstance(event, ev.FramesArrived):
            fed.append(event)
        return step(event)

    bookie.machine.step = watched
    wrong: dict[str, dict[str, Any]] = {"good": {}, "id": {"body": entry(1, 99)}, "short": {"body": b"x"}}
    asked = [each for each in burst if wire == 3 or each[2] != "short"]  # version 2 has no frame that is so short
    adds = [add(ledger, k, b"v" * k, wire=wire, **wrong[kind]) for ledger, k, kind in asked]
    answered = [row for item in answers(client.ask(b"".join(adds)), wire) for row in item.rows()]
    assert len(answered) == len(asked)
    for event in fed:
        frames = split_frames(event.frames)
        assert [header for header, _ in frames] == list(event.made or ())
        for header, frame in frames:
            check_frame(frame, header)
            check_apache(header, frame)
    good = {(ledger, k) for ledger, k, kind in asked if kind == "good"}
    held = {ledger: found.frames for ledger, found in bookie.store.ledgers.items() if ledger != 9}
    assert good == {(ledger, k) for ledger in held for frame in held[ledger] for k in range(21) if frame.holds(k)}


@pytest.mark.rule("L5")
def test_a_burst_is_cut_where_ids_do_not_ascend_and_where_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_module, "FRAME_BYTES", 500)
    bookie, client = story()
    ids = [5, 6, 9, 7, 8, *range(10, 60)]
    assert statuses(client.ask(b"".join(add(7, k, b"y" * 50) for k in ids))) == dict.fromkeys(ids, EOK)
    frames = bookie.store.ledgers[7].frames
    assert len(frames) > 7
    assert found(client.ask(read(7, *sorted(ids)))) == {k: entry(7, k, b"y" * 50) for k in ids}


@pytest.mark.parametrize(
    "wrong",
    [
        {"body": entry(7, 4)},
        {"body": entry(8, 3)},
        {"body": b"short"},
        {"body": b""},
        {"key": b"short"},
    ],
    ids=["another id", "another ledger", "short", "empty", "key"],
)
def test_an_add_that_cannot_be_is_refused_alone(wrong: dict[str, Any]) -> None:
    _, client = story()
    got = statuses(client.ask(add(7, 2) + add(7, 3, **wrong) + add(7, 4)))
    assert got == {2: EOK, 3: EBADREQ, 4: EOK}


@pytest.mark.rule("L2")
def test_another_key_is_refused_and_the_right_one_goes_on() -> None:
    _, client = story()
    got = statuses(client.ask(add(7, 0) + add(7, 1, key=make.OTHER_KEY) + add(7, 2)))
    assert got == {0: EOK, 1: int(Status.EUA), 2: EOK}


@pytest.mark.rule("MUST2")
def test_a_fence_ends_normal_adds_and_not_those_of_recovery() -> None:
    _, client = story()
    client.ask(add(7, 0))
    client.ask(fence(7))
    assert statuses(client.ask(add(7, 1))) == {1: int(Status.EFENCED)}
    assert statuses(client.ask(add(7, 1, recovery=True))) == {1: EOK}
    assert statuses(client.ask(add(7, 2))) == {2: int(Status.EFENCED)}


@pytest.mark.rule("P1")
def test_adds_in_flight_are_refused_with_the_reason_and_durable_ones_are_acked() -> None:
    bookie, client = story()
    bookie.hold = True
    client.ask(add(7, 0))
    client.ask(add(7, 1))
    bookie.connect().ask(fence(7))
    client.ask(add(7, 2))
    bookie.commit()
    assert statuses(client.take()) == {0: EOK, 1: EOK, 2: int(Status.EFENCED)}


@pytest.mark.rule("P1")
@pytest.mark.parametrize("wire", [3, 2])
def test_adds_one_at_a_time_are_acked_each_for_itself(wire: int) -> None:
    bookie, client = story()
    for k in range(3):
        assert statuses(client.ask(add(7, k, wire=wire)), wire) == {k: EOK}
    bookie.hold = True
    client.ask(add(7, 3, wire=wire))
    client.ask(add(7, 4, wire=wire))
    for k in (3, 4):
        assert client.take() == b""
        bookie.feed(ev.GroupCommitted([stored(bookie.uncommitted.pop(0))]))
        assert statuses(client.take(), wire) == {k: EOK}


def test_an_add_that_comes_when_its_connection_ends_is_not_taken() -> None:
    bookie, client = story()
    client.ask(add(7, 0))
    client.connection.close("the bookie stops")
    assert client.ask(add(7, 1)) == b""
    assert statuses(bookie.connect().ask(read(7, 1))) == {1: ENOENTRY}


@pytest.mark.rule("S6")
def test_a_failed_sync_answers_eio_and_no_space_is_read_only() -> None:
    for reason, final, status in (
        (Reason.STORAGE_FAILED, True, Status.EIO),
        (Reason.NO_SPACE, False, Status.EREADONLY),
    ):
        bookie, client = story()
        bookie.hold = True
        client.ask(add(7, 0) + add(7, 1))
        bookie.fail(ev.CommitFailed(reason, "made to fail", final))
        assert statuses(client.take()) == {0: int(status), 1: int(status)}
        bookie.hold = False
        assert statuses(client.ask(add(7, 2))) == {2: int(Status.EIO) if final else EOK}


@pytest.mark.rule("P6")
def test_only_entries_that_differ_from_what_stands_are_refused_and_those_behind_are_taken() -> None:
    bookie, client = story()
    client.ask(b"".join(add(7, k) for k in range(6)))
    bookie.hold = True
    other = bookie.connect()
    burst = add(7, 1) + add(7, 2, b"other") + add(7, 3) + add(7, 5, b"other") + add(7, 6)
    assert other.ask(burst) == b""
    assert other.ask(add(7, 9) + make.force(1, 7)) == b""
    for _ in range(3):
        bookie.commit()
    got = other.take()
    (forced,) = [item for item in answers(got, 3) if not isinstance(item, AddAnswers)]
    assert forced.status is Status.EOK
    runs = [item for item in answers(got, 3) if isinstance(item, AddAnswers)]
    assert {int(e): int(s) for run in runs for e, s in zip(run.entry_ids, run.statuses, strict=True)} == {
        1: EOK,
        2: EBADREQ,
        3: EOK,
        5: EBADREQ,
        6: EOK,
        9: EOK,
    }
    assert found(client.ask(read(7, 2, 5, 6))) == {2: entry(7, 2), 5: entry(7, 5), 6: entry(7, 6)}


@pytest.mark.rule("P6", "P6")
def test_a_comparison_is_no_request_of_the_client() -> None:
    """Both are under way on one stream, and each has a number."""
    bookie, client = story()
    bookie.hold = True
    client.ask(add(7, 0))
    client.ask(add(7, 0, txn=1))  # it is compared once the first one is durable
    client.send(read(7, 0))
    assert client.take() == b""
    bookie.hold = False
    bookie.commit()
    told = [row[7:8] for item in answers(client.take(), 3) for row in item.rows()]
    assert told == [(EOK,)] * 3


def test_frames_behind_a_refused_one_are_offered_again_in_order() -> None:
    bookie, client = story()
    client.ask(add(7, 0))
    bookie.hold = True
    client.ask(add(7, 1))  # pending: what comes over it waits for its commit
    client.ask(add(7, 1, b"other"))
    client.ask(add(7, 2) + make.force(1, 7))
    client.ask(add(7, 3))
    for _ in range(5):
        bookie.commit()
    got = client.take()
    runs = [item for item in answers(got, 3) if isinstance(item, AddAnswers)]
    rows = [(row[4], row[7]) for run in runs for row in run.rows()]
    assert sorted(rows) == [(1, EOK), (1, EBADREQ), (2, EOK), (3, EOK)]
    assert sum(not isinstance(item, AddAnswers) for item in answers(got, 3)) == 1


def test_a_force_waits_for_the_adds_before_it_of_its_ledger_alone() -> None:
    bookie, client = story()
    bookie.hold = True
    client.ask(add(7, 0) + add(7, 1, recovery=True))
    (other,) = answers(client.ask(make.force(1, 8)), 3)
    assert other.response.forceLedgerResponse.ledgerId == 8
    assert client.ask(make.force(1, 7)) == b""
    bookie.commit()
    items = answers(client.take(), 3)
    assert [type(item).__name__ for item in items][-1] == "WireAnswer"
    assert {row[4] for item in items[:-1] for row in item.rows()} == {0, 1}


def test_sessions_that_are_not_used_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adds_module, "IDLE_SESSIONS_MAX", 3)
    bookie, client = story()
    for ledger_id in range(20):
        assert statuses(client.ask(add(ledger_id, 0))) == {0: EOK}
    assert bookie.machine._handlers[ev.SessionAttached].__self__._sessions <= 4
    assert statuses(client.ask(add(0, 1))) == {1: EOK}
    client.connection.end()
    assert bookie.machine._handlers[ev.SessionAttached].__self__._sessions == 0


# --- reads ---


@pytest.mark.rule("MUST3")
@pytest.mark.parametrize("entry_id", [-1, 0, 5])
def test_no_answer_to_a_fencing_read_leaves_before_the_fence_is_durable(entry_id: int) -> None:
    bookie, client = story()
    client.ask(add(7, 0))
    bookie.hold = True
    for ledger_id in (7, 8):
        assert client.ask(fence(ledger_id, entry_id)) == b""
        bookie.commit()
        expected = EOK if ledger_id == 7 and entry_id < 1 else ENOENTRY
        assert statuses(client.take()) == {entry_id: expected}


def test_a_fence_needs_a_key_and_the_right_one() -> None:
    _, client = story()
    client.ask(add(7, 0))
    for key in (b"", b"short", make.OTHER_KEY):
        assert statuses(client.ask(fence(7, key=key))) == {-1: int(Status.EUA)}
    assert statuses(client.ask(add(7, 1))) == {1: EOK}


@pytest.mark.rule("MUST4")
def test_absent_is_enoentry_of_a_known_ledger_and_enoledger_of_another() -> None:
    _, client = story()
    client.ask(add(7, 0) + add(7, 2))
    assert statuses(client.ask(read(7, 0, 1, 2, 3))) == {0: EOK, 1: ENOENTRY, 2: EOK, 3: ENOENTRY}
    assert statuses(client.ask(read(8, 0, 1))) == {0: ENOLEDGER, 1: ENOLEDGER}
    assert statuses(client.ask(read(8, -1))) == {-1: ENOLEDGER}
    assert statuses(client.ask(read(-8, 0))) == {0: ENOLEDGER}
    assert statuses(client.ask(read(7, -2))) == {-2: ENOENTRY}
    assert statuses(client.ask(read(8, -2))) == {-2: ENOLEDGER}


def test_no_ledger_has_an_id_below_0() -> None:
    """Statuses of Apache's bookies, found by scripts/prove differ."""
    bookie, client = story()
    lac, listed, poll = answers(
        client.ask(make.read_lac(1, -5) + make.list_entries(1, -5) + make.read(3, 1, (-5, 0), poll=(0, None))),
        3,
    )
    assert (lac.status, listed.status, poll.statuses[0]) == (Status.ENOENTRY, Status.ENOLEDGER, ENOLEDGER)
    (got,) = answers(bookie.connect().ask(make.batch(9, (-5, 0), 3, 100)), 2)
    assert got.status is Status.ENOLEDGER


@pytest.mark.rule("MUST4", "MUST4")
def test_the_greatest_id_is_absent_as_any_other() -> None:
    """It is the storage's own, so no entry has it."""
    bookie, client = story()
    client.ask(add(7, 0))
    last = (1 << 63) - 1
    assert statuses(client.ask(read(7, 0, last))) == {0: EOK, last: ENOENTRY}
    assert statuses(client.ask(read(7, last - 9, last - 1, last))) == dict.fromkeys(
        (last - 9, last - 1, last), ENOENTRY
    )
    assert statuses(client.ask(fence(7, last))) == {last: ENOENTRY}
    assert statuses(client.ask(read(8, last))) == {last: ENOLEDGER}
    other = bookie.connect()
    (got,) = answers(other.ask(batch(5, 1000, first=last)), 2)
    assert got.status is Status.ENOENTRY


@pytest.mark.rule("MUST4")
def test_unknown_is_neither_absent_nor_there() -> None:
    bookie, client = story()
    client.ask(read(7, 0))
    client.ask(add(7, 0) + add(7, 1))
    client.ask(add(7, 3))
    for place in bookie.store.ledgers[7].frames[:-1]:
        bookie.store.mark_damaged(7, place)
    assert statuses(client.ask(read(7, 0, 1, 2, 3))) == {0: int(Status.EIO), 1: int(Status.EIO), 2: ENOENTRY, 3: EOK}


@pytest.mark.rule("S8")
def test_a_ledger_in_limbo_denies_nothing() -> None:
    bookie, client = story()
    client.ask(add(7, 0))
    client.connection.end()
    bookie.store.fold(7, FrameKind.LIMBO)
    client = bookie.connect()
    limbo = int(Status.EUNKNOWNLEDGERSTATE)
    assert statuses(client.ask(read(7, 0, 1))) == {0: EOK, 1: limbo}
    assert statuses(client.ask(read(7, -1))) == {-1: limbo}
    assert statuses(client.ask(add(7, 1))) == {1: int(Status.EIO)}
    (said,) = answers(client.ask(make.read_lac(1, 7)), 3)
    assert said.status is Status.EUNKNOWNLEDGERSTATE
    (said,) = answers(client.ask(make.list_entries(1, 7)), 3)
    assert said.status is Status.EUNKNOWNLEDGERSTATE


@pytest.mark.rule("S4")
def test_a_deleted_ledger_is_fenced_for_adds_and_unknown_for_reads() -> None:
    bookie, client = story()
    client.ask(add(7, 0))
    bookie.feed(ev.LedgersDeleted([7]))
    client.take()
    assert statuses(client.ask(add(7, 1))) == {1: int(Status.EFENCED)}
    assert statuses(client.ask(read(7, 0))) == {0: ENOLEDGER}
    assert statuses(client.ask(read(7, -1))) == {-1: ENOLEDGER}


@pytest.mark.parametrize("kind", list(DigestType))
def test_entries_of_our_own_lane_come_in_apaches_form(kind: DigestType) -> None:
    bookie, client = story()
    batch = EntryBatch.from_list([b"a", b"", b"ccc"])
    digester = Digester(kind, PASSWORD, 7)
    one = encode_frame(batch, digester=digester, ledger_id=7, first_entry_id=0, lac=-1, length_before=0, session=1)
    stream = bookie.open_stream(client.connection)
    bookie.feed(ev.SessionAttached(stream, 1, 7, KEY, AttachMode.WRITE))
    bookie.feed(ev.FramesArrived(stream, memoryview(bytes(one))))
    client.take()
    whole = EntryBatch(
        lengths=batch.lengths, payload=batch.payload, ledger_id=7, first_entry_id=0, lac=-1, length_before=0
    )
    wanted = entry_bytes(whole, digester)
    assert found(client.ask(read(7, 0, 1, 2))) == dict(enumerate(wanted))
    assert found(client.ask(read(7, -1))) == {-1: wanted[2]}


def test_neighbouring_reads_are_one_request_and_reads_far_apart_are_not() -> None:
    bookie, client = story()
    client.ask(b"".join(add(7, k) for k in range(0, 200, 2)))
    asked: list[ev.Event] = []
    feed, bookie.feed = bookie.feed, lambda event: (asked.append(event), feed(event))[1]
    client.connection._stories._feed = bookie.feed
    ids = [*range(0, 60, 2), 100, 190, 4, 2, 2]
    got = client.ask(read(7, *ids))
    ranges = [(each.first, each.last) for each in asked if isinstance(each, ev.ReadRequested)]
    assert ranges == [(0, 58), (100, 100), (190, 190), (4, 4), (2, 2), (2, 2)]
    rows = [(row[4], row[7]) for item in answers(got, 3) for row in item.rows()]
    assert sorted(rows) == sorted((k, EOK) for k in ids)


def test_a_connection_with_many_reads_is_not_read_until_half_are_answered() -> None:
    _, client = story()
    client.ask(add(7, 0))
    ids = list(range(0, 9 * 6000, 9))
    client.send(read(7, *ids))
    got = client.take()
    assert client.connection.flows
    assert len(statuses(got)) == 6000


@pytest.mark.rule("P9")
def test_read_lac_answers_with_what_there_is_a_lac_an_entry_or_both() -> None:
    _, client = story()
    body = make.lac_body(7, 3)
    write = make.write_lac(1, 7, 3, body)
    (said,) = answers(client.ask(write), 3)
    assert said.status is Status.EOK
    (said,) = answers(client.ask(make.read_lac(1, 7)), 3)
    assert (said.status, said.response.readLacResponse.lacBody) == (Status.EOK, body)
    assert not said.response.readLacResponse.HasField("lastEntryBody")
    client.ask(add(7, 0))
    (said,) = answers(client.ask(make.read_lac(1, 7)), 3)
    assert (said.status, said.response.readLacResponse.lastEntryBody) == (Status.EOK, entry(7, 0))
    bad = make.write_lac(1, 7, 3, body[:-1] + b"\0")
    (said,) = answers(client.ask(bad), 3)
    assert said.status is Status.EBADREQ


def test_a_list_of_entries_is_always_answered() -> None:
    _, client = story()
    client.ask(b"".join(add(7, k) for k in (0, 1, 2, 5, 6, 9)))
    client.ask(add(7, 3))
    (said,) = answers(client.ask(make.list_entries(1, 7)), 3)
    firsts, lasts = decode_availability(said.response.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger)
    assert list(zip(firsts.tolist(), lasts.tolist(), strict=True)) == [(0, 3), (5, 6), (9, 9)]
    client.ask(fence(8))
    (said,) = answers(client.ask(make.list_entries(1, 8)), 3)
    assert said.status is Status.EOK


@pytest.mark.rule("P10")
def test_a_long_poll_is_answered_by_the_add_that_raises_the_lac_or_when_its_time_is_over() -> None:
    bookie, client = story()
    client.ask(add(7, 0))
    assert client.ask(long_poll(-1, 1000)) == b""
    writer = bookie.connect()
    writer.ask(add(7, 1, lac=0))
    (run,) = answers(client.take(), 3)
    assert run.entry_ids.tolist() == [0]
    assert run.max_lacs.tolist() == [0]
    assert bytes(next(iter(run.bodies().pieces()))) == entry(7, 0)
    assert client.ask(long_poll(0, 1000)) == b""
    (timer,) = [each for each in bookie.timers if each is not None]
    bookie.fire(timer)
    (run,) = answers(client.take(), 3)
    assert (run.entry_ids.tolist(), run.max_lacs.tolist(), run.body_lengths.tolist()) == ([-1], [0], [-1])


@pytest.mark.parametrize("previous", [-(1 << 50), -2, -1, 2, 3])
def test_a_poll_with_its_entry_is_told_an_explicit_lac_where_there_is_no_entry(previous: int) -> None:
    _, client = story()
    assert statuses(client.ask(fence(7))) == {-1: ENOENTRY}
    poll = long_poll(previous)
    if previous == -2:
        assert statuses(client.ask(poll)) == {-1: ENOENTRY}
    body = make.lac_body(7, 3)
    client.ask(make.write_lac(1, 7, 3, body))
    (run,) = answers(client.ask(poll), 3)
    assert (run.statuses.tolist(), run.entry_ids.tolist(), run.max_lacs.tolist()) == ([EOK], [-1], [3])
    assert run.body_lengths.tolist() == [-1]


# --- version 2 ---


def batch(count: int, size: int, first: int = 0, **more: Any) -> bytes:
    return make.batch(99, (7, first), count, size, **more)


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [(3, 1 << 20, 3), (0, 1 << 20, 10), (-1, 1 << 20, 10), (5, 0, 1), (5, -1, 1), (5, 36 + 2 * 41, 2), (5, 36 + 81, 1)],
)
def test_batch_reads_are_bounded_by_count_and_size_and_have_at_least_one_entry(
    count: int, size: int, expected: int
) -> None:
    _, client = story()
    for k in (*range(10), 12):
        client.ask(add(7, k, wire=2))
    assert len(entry(7, 0)) == 37
    (got,) = answers(client.ask(batch(count, size)), 2)
    assert (got.status, got.request_id) == (Status.EOK, 99)
    assert list(map(bytes, got.bodies.pieces())) == [entry(7, k) for k in range(expected)]


def test_a_batch_goes_on_where_entries_were_added_out_of_order() -> None:
    _, client = story()
    for burst in ([3, 4, 6, 8], [5, 19], [7, 10], [9]):
        client.ask(b"".join(add(7, k, wire=2) for k in burst))
    (got,) = answers(client.ask(batch(0, 1 << 20, first=3)), 2)
    assert list(map(bytes, got.bodies.pieces())) == [entry(7, k) for k in range(3, 11)]


def test_batch_reads_of_absent_entries_are_refused() -> None:
    _, client = story()
    client.ask(add(7, 0, wire=2))
    (got,) = answers(client.ask(batch(5, 1000, first=1)), 2)
    assert (got.status, got.first_entry_id) == (Status.ENOENTRY, 1)
    (got,) = answers(client.ask(batch(5, 1000, fence_key=make.OTHER_KEY)), 2)
    assert got.status is Status.EUA


def test_a_client_may_turn_to_version_2_in_the_middle_of_a_burst() -> None:
    _, client = story()
    got = client.ask(add(7, 0) + add(7, 1) + add(7, 2, wire=2) + read(7, 0, wire=2))
    assert len(got) > 0
    at = got.index(b"\x00\x00\x00\x18\x02\x01")
    assert statuses(got[:at]) == {0: EOK, 1: EOK}
    assert [type(item).__name__ for item in answers(got[at:], 2)] == ["AddAnswers", "ReadAnswers"]


# --- authentication ---


class Secret:
    """Lets those in who say the word; asks once more first."""

    def begin(self, principal: Principal) -> Any:
        return _Asked(principal)


class _Asked:
    done, rounds = False, 0

    def __init__(self, principal: Principal) -> None:
        self.principal = principal

    def take(self, message: pb.AuthMessage) -> pb.AuthMessage:
        self.rounds += 1
        if message.payload != b"word":
            raise AuthenticationError("that is not the word")
        self.done = self.rounds == 2
        return pb.AuthMessage(authPluginName="secret", payload=b"more" if self.rounds == 1 else b"")


@pytest.mark.parametrize("wire", [3, 2])
def test_who_is_not_let_in_may_do_nothing_else(wire: int) -> None:

    def say(word: bytes) -> bytes:
        return make.auth(wire, 1, "secret", word)

    bookie = RpcBookie(auth=Secret())
    client = bookie.connect()
    refused = int(Status.EUA)
    bare = -1 if wire == 3 else 0  # as Apache's bookies answer: in version 3 with a header alone
    assert statuses(client.ask(add(7, 0, wire=wire)), wire) == {bare: refused}
    assert statuses(client.ask(add(7, 0) + add(7, 1)), 3) == {-1: refused} if wire == 3 else True
    assert statuses(client.ask(read(7, 0, wire=wire)), wire) == {bare: refused}
    client.ask(say(b"word"))
    assert statuses(client.ask(add(7, 0, wire=wire)), wire) == {bare: refused}
    client.ask(say(b"word"))
    assert statuses(client.ask(add(7, 0, wire=wire)), wire) == {0: EOK}
    liar = bookie.connect()
    liar.ask(say(b"guess"))
    assert liar.closed
    if wire == 2:
        hasty = bookie.connect()
        hasty.ask(batch(1, 1))
        assert hasty.closed


# --- against a model ---

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 2), st.integers(0, 9), st.sampled_from([b"a", b"b", b""])),
        st.tuples(st.just("recover"), st.integers(1, 2), st.integers(0, 9), st.just(b"a")),
        st.tuples(st.just("read"), st.integers(1, 3), st.integers(-1, 10), st.just(b"")),
        st.tuples(st.just("fence"), st.integers(1, 3), st.integers(-1, 10), st.just(b"")),
    ),
    max_size=40,
)


class Model:
    """A bookie in a few lines: what each request gets."""

    def __init__(self) -> None:
        self.ledgers: dict[int, dict[int, bytes]] = {}
        self.fenced: set[int] = set()

    def add(self, ledger: int, at: int, payload: bytes, *, recovery: bool) -> int:
        if ledger in self.fenced and not recovery:
            return int(Status.EFENCED)
        stored = self.ledgers.setdefault(ledger, {})
        body = entry(ledger, at, payload)
        if not recovery and stored.get(at, body) != body:
            return EBADREQ
        stored.setdefault(at, body)
        return EOK

    def read(self, ledger: int, at: int) -> tuple[int, bytes | None]:
        if ledger not in self.ledgers:
            return ENOLEDGER, None
        stored = self.ledgers[ledger]
        body = stored.get(max(stored, default=-1) if at == -1 else at)
        return (ENOENTRY, None) if body is None else (EOK, body)

    def fence(self, ledger: int, at: int) -> tuple[int, bytes | None]:
        self.ledgers.setdefault(ledger, {})
        self.fenced.add(ledger)
        return self.read(ledger, at)


@pytest.mark.long
@pytest.mark.rule("MUST2", "MUST4")
@settings(deadline=None, max_examples=150)
@given(OPERATIONS, st.integers(1, 9), st.booleans())
def test_any_requests_in_any_bursts_get_the_answers_of_a_model(
    operations: list[tuple[str, int, int, bytes]], burst: int, old: bool
) -> None:
    bookie, model = RpcBookie(), Model()
    client, wire = bookie.connect(), 2 if old else 3
    for begin in range(0, len(operations), burst):
        kind = operations[begin][0]
        part = [each for each in operations[begin : begin + burst] if each[0] == kind]  # runs overtake each other
        if kind in ("read", "fence"):
            part = [each for n, each in enumerate(part) if each[1:3] not in [other[1:3] for other in part[:n]]]
        wanted: list[tuple[int, int, int, bytes | None]] = []
        sent = b""
        for _, ledger, at, payload in part:
            if kind in ("add", "recover"):
                body = model.ledgers.get(ledger, {}).get(at, entry(ledger, at, payload))
                recovery = kind == "recover"
                sent += (
                    add(ledger, at, body=body, recovery=recovery, wire=wire)
                    if recovery
                    else add(ledger, at, payload, wire=wire)
                )
                wanted.append((ledger, at, model.add(ledger, at, payload, recovery=recovery), None))
            elif kind == "read":
                sent += read(ledger, at, wire=wire)
                wanted.append((ledger, at, *model.read(ledger, at)))
            else:
                sent += fence(ledger, at, wire=wire)
                wanted.append((ledger, at, *model.fence(ledger, at)))
        got = [
            (*row[3:5], row[7], None if row[7] or row[6] <= 0 else bytes(item.buffer[row[5] : row[5] + row[6]]))
            for item in answers(client.ask(sent), wire)
            for row in item.rows()
        ]
        assert sorted(got, key=lambda each: each[:3]) == sorted(wanted, key=lambda each: each[:3]), (kind, part)


def test_a_client_that_takes_again_after_a_stall_gets_its_answers_before_the_end() -> None:
    """A connection that ends is cut at once only if the client takes nothing at that moment."""
    _, client = story()
    client.ask(add(7, 0))
    client.send(read(7, 0))
    client.connection.stall()
    assert found(client.take()) == {0: entry(7, 0)}
    client.send(read(7, 0))
    client.connection.close("the bookie stops")
    assert not client.connection.was_cut
    assert found(client.take()) == {0: entry(7, 0)}
    client.connection.stall()
    assert client.connection.was_cut, "a client that takes nothing holds up no end"


# --- forces ---


@pytest.mark.rule("P1")
def test_a_force_waits_for_both_sessions_of_its_ledger() -> None:
    """Adds of a writer and adds of a recovery are sessions of their own, and may become durable one after the other."""
    bookie, client = story()
    client.ask(add(7, 0) + add(7, 1, recovery=True))
    bookie.hold = True
    client.ask(add(7, 2) + add(7, 3, recovery=True))
    assert client.ask(make.force(1, 7)) == b""
    first, second = bookie.uncommitted
    bookie.uncommitted = [first]
    bookie.commit()
    (added,) = answers(client.take(), 3)
    assert isinstance(added, AddAnswers), "the force is not answered: an add of the other session is not durable"
    bookie.uncommitted = [second]
    bookie.commit()
    added, forced = answers(client.take(), 3)
    assert isinstance(added, AddAnswers)
    assert forced.response.forceLedgerResponse.ledgerId == 7


@pytest.mark.rule("P1")
def test_a_force_does_not_wait_for_adds_that_come_after_it() -> None:
    bookie, client = story()
    client.ask(add(7, 0))
    bookie.hold = True
    client.ask(add(7, 1))
    client.ask(make.force(1, 7))
    client.ask(add(7, 2))
    first, later = bookie.uncommitted
    bookie.uncommitted = [first]
    bookie.commit()
    assert [isinstance(item, AddAnswers) for item in answers(client.take(), 3)] == [True, False]
    bookie.uncommitted = [later]
    bookie.commit()
    assert [isinstance(item, AddAnswers) for item in answers(client.take(), 3)] == [True]
