# SPDX-License-Identifier: Apache-2.0
"""``bk bookie read-only``, ``drain`` and ``remove``: what is refused, and that nothing is changed by it. A drain from
its begin to its end: ``tests/bookie_server/autorecovery/test_autorecovery.py``, ``tests/e2e/test_drain.py``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest

from bk_cli import exit_codes, main
from bk_cli.bookies import bookie_leaving
from bk_core.errors import InvalidArgumentError
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import BookieOrder, Order
from bk_core.model import INCARNATION_PROPERTY, BookieServiceInfo, Fragment, LedgerMetadata, LedgerState
from tests.kit.memory_store import MemoryStore

DRAIN = BookieOrder(Order.DRAIN, 1)


class World:
    """Bookies b1 to b4 are registered; ``bk`` runs a command and keeps what it said."""

    def __init__(self, capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.uri, self._capture = f"memory://{uuid.uuid4().hex}", capture
        opened = open_store(self.uri)
        assert isinstance(opened, MemoryStore)
        self.store = opened
        self.store.initialize_cluster()
        monkeypatch.setattr(bookie_leaving, "POLL_S", 0.02)
        monkeypatch.setattr(bookie_leaving, "TAKEN_WITHIN_S", 0.2)
        for number in range(1, 5):
            self.join(f"b{number}")

    def join(self, name: str, *, read_only: bool = False, ours: bool = True) -> None:
        properties = {INCARNATION_PROPERTY: name} if ours else {}
        self.store.register_bookie(BookieServiceInfo(name, (), properties), read_only=read_only)
        if self.store.read_cookie(name) is None:
            self.store.write_cookie(name, b"cookie", None)
            if ours:
                self.store.write_bookie_state(name, b"{}", None)

    def ledger(self, *ensemble: str, closed: bool = True) -> int:
        value = LedgerMetadata(
            ensemble_size=len(ensemble),
            write_quorum_size=len(ensemble),
            ack_quorum_size=1,
            fragments=(Fragment(0, ensemble),),
            state=LedgerState.CLOSED if closed else LedgerState.OPEN,
            last_entry_id=9 if closed else -1,
            length=1_000 if closed else 0,
        )
        return self.store.create_ledger(value)[0]

    def bk(self, *arguments: str) -> tuple[int, str]:
        code = main.run(["bookie", *arguments, "--metadata-service-uri", self.uri])
        captured = self._capture.readouterr()
        return code, captured.out + captured.err

    def untouched(self) -> bool:
        return not self.store.bookie_orders() and not list(self.store.list_underreplicated())


@pytest.fixture
def world(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(capfd, monkeypatch)
    yield made
    made.store.close()


@pytest.mark.parametrize("command", [["drain", "b9"], ["remove", "b9"], ["read-only", "b9", "on"]])
def test_unknown_bookie_is_answered_with_those_that_are_known(world: World, command: list[str]) -> None:
    code, said = world.bk(*command)
    assert (code, world.untouched()) == (exit_codes.NOT_FOUND, True)
    assert "BK_NO_SUCH_BOOKIE" in said
    assert "known are: b1, b2, b3, b4" in said


def test_drain_that_no_other_bookie_could_take_over_is_refused_before_anything_changes(world: World) -> None:
    free, needed = world.ledger("b1", "b2"), [world.ledger("b1", "b2", "b3", "b4") for _ in range(12)]
    code, said = world.bk("drain", "b1")
    assert (code, world.untouched()) == (exit_codes.CONFLICT, True)
    assert "12 ledgers would not find another bookie" in said
    assert all(f"ledger {ledger_id}:" in said for ledger_id in needed[:10])
    assert "and 2 more" in said
    assert f"ledger {free}:" not in said


def test_dry_run_says_whether_a_bookie_may_leave_and_changes_nothing(world: World) -> None:
    code, said = world.bk("drain", "b1", "--dry-run")
    assert (code, "no ledger names it; it may be stopped now" in said) == (0, True)
    open_one, _ = world.ledger("b1", "b2", closed=False), world.ledger("b1", "b3")
    code, said = world.bk("drain", "b1", "--dry-run")
    assert code == 0
    assert "2 ledgers, 1000 B, would move to other bookies; then it may be stopped: bk bookie drain b1" in said
    assert "no auto-recovery runs" in said
    assert f"1 wait ({open_one}): it is open" in said
    assert "has not obeyed its order" not in said, "there is none"
    told = json.loads(world.bk("drain", "b1", "--dry-run", "--json")[1].splitlines()[0])
    assert (told["mayLeave"], told["ledgersLeft"], told["bytesLeft"]) == (True, 2, 1_000)
    needed = world.ledger("b1", "b2", "b3", "b4")
    code, said = world.bk("drain", "b1", "--dry-run")
    assert (code, f"ledger {needed}:" in said) == (exit_codes.CONFLICT, True)
    assert world.untouched()


def test_drain_of_the_last_copy_is_refused_and_names_the_ledger(world: World) -> None:
    alone = world.ledger("b1")
    world.store.unregister_bookie("b1")
    code, said = world.bk("drain", "b1")
    assert (code, world.untouched()) == (exit_codes.CONFLICT, True)
    assert f"lose their last copy; ledger {alone}" in said
    world.join("b1", read_only=True)
    assert world.bk("drain", "b1", "--wait", "0")[0] == exit_codes.UNAVAILABLE, "it is a source as long as it is up"
    assert dict(world.store.list_underreplicated()) == {alone: ("b1",)}


def test_drain_says_what_it_waits_for_and_goes_on_when_it_is_run_again(world: World) -> None:
    open_one, closed = world.ledger("b1", "b2", closed=False), world.ledger("b1", "b3")
    world.ledger("b2", "b3")
    code, said = world.bk("drain", "b1", "--wait", "0", "--json")
    assert code == exit_codes.UNAVAILABLE
    told = json.loads(said.splitlines()[0])
    assert (told["ledgersLeft"], told["bytesLeft"], told["drained"]) == (2, 1_000, False)
    assert [each["ledgerId"] for each in told["blocked"]] == [open_one]
    assert [word in str(told["obstacles"]) for word in ("no auto-recovery", "has not obeyed its order")] == [True, True]
    assert dict(world.store.list_underreplicated()) == {open_one: ("b1",), closed: ("b1",)}
    begun = world.store.read_bookie_order("b1")
    assert begun is not None
    assert not begun.fences
    world.store.enable_replication(False)
    code, said = world.bk("drain", "b1", "--wait", "0", "--fence")
    assert "replication is paused" in said
    assert f"1 wait ({open_one}): it is open" in said
    assert "bk bookie read-only b1 off" in said
    assert world.store.read_bookie_order("b1") == BookieOrder(Order.DRAIN, begun.since_ms, fences=True)
    for ledger_id in (open_one, closed):
        world.store.delete_ledger(ledger_id)
    world.join("b1", read_only=True)
    code, said = world.bk("drain", "b1")
    assert (code, "bookie b1 is drained: no ledger names it" in said) == (0, True)
    told = json.loads(world.bk("drain", "b1", "--json")[1].splitlines()[-1])
    assert (told["drained"], told["ledgersLeft"]) == (True, 0)


def test_interrupted_drain_goes_on_without_its_command(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ledger("b1", "b2")

    def interrupted(_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(bookie_leaving.DrainWatch, "look", interrupted)
    code, said = world.bk("drain", "b1")
    assert (code, "the drain goes on without this command" in said) == (exit_codes.INTERRUPTED, True)
    assert [order.order for order in world.store.bookie_orders().values()] == [Order.DRAIN]
    assert world.bk("read-only", "b1", "off")[0] == 0
    assert world.store.bookie_orders() == {}


def test_mark_that_apaches_worker_removed_is_made_again(world: World) -> None:
    ledger_id = world.ledger("b1", "b2")
    world.bk("drain", "b1", "--wait", "0")
    assert world.store.lock_underreplicated(ledger_id, "apache")
    mark = world.store.read_underreplicated(ledger_id)
    assert mark is not None
    assert world.store.remove_underreplicated(ledger_id, mark.version)
    world.bk("drain", "b1", "--wait", "0")
    assert dict(world.store.list_underreplicated()) == {ledger_id: ("b1",)}


def test_two_bookies_that_are_drained_at_once_do_not_count_on_each_other(world: World) -> None:
    world.ledger("b1", "b2", "b3")
    assert world.bk("drain", "b4", "--wait", "0")[0] == exit_codes.UNAVAILABLE
    code, said = world.bk("drain", "b1", "--wait", "0")
    assert (code, "would not find another bookie" in said) == (exit_codes.CONFLICT, True)
    assert list(world.store.bookie_orders()) == ["b4"]


def test_read_only_waits_for_the_bookie_and_says_if_it_does_not_obey(world: World) -> None:
    code, said = world.bk("read-only", "b1", "on")
    assert (code, "has not obeyed the order yet" in said) == (exit_codes.UNAVAILABLE, True)
    world.join("b1", read_only=True)
    assert world.bk("read-only", "b1", "on")[0] == 0
    world.join("b5", ours=False)
    code, said = world.bk("read-only", "b5", "on")
    assert (code, "PUT /api/v1/bookie/state/readonly" in said) == (exit_codes.USAGE, True)
    world.join("b1")
    assert world.bk("read-only", "b1", "off")[0] == 0
    assert world.store.bookie_orders() == {}


def test_list_tells_read_only_by_hand_from_a_full_disk_and_from_a_drain(world: World) -> None:
    for name in ("b1", "b2", "b3"):
        world.join(name, read_only=True)
    world.store.write_bookie_order("b1", BookieOrder(Order.READ_ONLY, 1))
    world.store.write_bookie_order("b2", DRAIN)
    rows = [json.loads(line) for line in world.bk("list", "--json")[1].splitlines() if line.startswith("{")]
    assert [(row["state"], row["order"]) for row in rows] == [
        ("read-only", "read-only"),
        ("read-only", "drain"),
        ("read-only", None),
        ("writable", None),
    ]
    said = world.bk("list")[1]
    assert ("read-only, set by hand" in said, "read-only, drains" in said) == (True, True)


def test_remove_is_refused_while_the_bookie_runs_or_any_fragment_names_it(world: World) -> None:
    ledgers = [world.ledger("b1", "b2", closed=bool(number % 2)) for number in range(12)]
    code, said = world.bk("remove", "b1")
    assert (code, "is running" in said) == (exit_codes.CONFLICT, True)
    world.store.unregister_bookie("b1")
    code, said = world.bk("remove", "b1")
    assert (code, "12 ledgers name it" in said) == (exit_codes.CONFLICT, True)
    assert f"ledgers {', '.join(map(str, ledgers[:10]))} …" in said
    assert world.store.read_cookie("b1") is not None
    for ledger_id in ledgers[1:]:
        world.store.delete_ledger(ledger_id)
    record = world.store.read_ledger(ledgers[0])
    world.store.write_ledger(ledgers[0], record.value.with_ensemble(5, ("b3", "b2")), record.version)
    code, said = world.bk("remove", "b1")
    assert (code, "1 ledgers name it" in said) == (exit_codes.CONFLICT, True), "an older fragment names it"


def test_bookie_that_was_removed_is_no_bookie_of_the_cluster_any_more(world: World) -> None:
    world.store.write_bookie_order("b1", DRAIN)
    world.store.unregister_bookie("b1")
    assert world.bk("remove", "b1")[0] == 0
    assert world.store.read_cookie("b1") is None
    assert world.store.read_bookie_state("b1") is not None, "its directory is known if it comes back"
    assert world.store.known_bookies() == ["b2", "b3", "b4"]
    assert world.bk("remove", "b1")[0] == 0, "again"
    world.join("b5", ours=False)
    world.store.unregister_bookie("b5")
    assert world.bk("remove", "b5")[0] == 0
    assert "b5" not in world.store.bookie_orders()


@pytest.mark.parametrize("name", ["rack=1@host", r"a;b<c>d?e\f^g", "[fd00::1]:3181"])
def test_apaches_bookie_of_any_id_that_apache_permits_is_drained_and_removed(world: World, name: str) -> None:
    world.join(name, read_only=True, ours=False)
    ledger_id = world.ledger(name, "b1")
    code, said = world.bk("remove", name)
    assert (code, "is running" in said) == (exit_codes.CONFLICT, True)
    code, said = world.bk("drain", name, "--wait", "0s")
    assert code == exit_codes.UNAVAILABLE, said
    assert world.store.read_bookie_order(name) == world.store.bookie_orders()[name]
    assert world.store.bookie_orders()[name].order is Order.DRAIN
    assert dict(world.store.list_underreplicated()) == {ledger_id: (name,)}
    world.store.delete_ledger(ledger_id)
    world.store.unregister_bookie(name)
    code, said = world.bk("remove", name)
    assert code == 0, said
    assert name not in world.store.known_bookies()
    assert world.store.read_cookie(name) is None


@pytest.mark.parametrize("name", ["READONLY", "ReadOnly"])
def test_id_that_stops_every_java_client_is_refused(world: World, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="readonly"):
        world.join(name)


def test_read_only_says_the_state_that_the_bookie_has(world: World) -> None:
    world.join("b1", read_only=True)
    told = json.loads(world.bk("read-only", "b1", "on", "--json")[1].splitlines()[-1])
    assert told == {"bookieId": "b1", "state": "read-only", "readOnlyByOrder": True}
    said = world.bk("read-only", "b1", "off")[1]
    assert "bookie b1 is read-only: it has no order. It has no room, or has not read the change yet" in said
    assert "drain is cancelled" not in said
    world.store.unregister_bookie("b1")
    assert "bookie b1 is away: it has the order to be read-only." in world.bk("read-only", "b1", "on")[1]
    world.bk("read-only", "b1", "off")
    world.join("b1", read_only=True)
    world.ledger("b1", "b2")
    world.bk("drain", "b1", "--wait", "0")
    assert "The drain is cancelled: the other copies stay." in world.bk("read-only", "b1", "off")[1]


def test_bookie_that_comes_back_while_the_ledgers_are_read_is_not_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.store.unregister_bookie("b1")
    scan = bookie_leaving.scan_ledgers

    def comes_back(store: MetadataStore) -> object:
        world.join("b1")
        return scan(store)

    monkeypatch.setattr(bookie_leaving, "scan_ledgers", comes_back)
    code, said = world.bk("remove", "b1")
    assert (code, "is running" in said) == (exit_codes.CONFLICT, True)
    assert world.store.read_cookie("b1") is not None
