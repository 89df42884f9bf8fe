# SPDX-License-Identifier: Apache-2.0
"""``bk log compact | trim | vacuum | set | txn | delete`` on both kinds of clusters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

from bk_cli.data import log_upkeep
from bk_core import blocking
from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError
from bk_core.logs.machines.publication import PublishOptions, Transaction
from bk_core.logs.model import schemas
from bk_core.logs.model.head import PublishId, custom_metadata_for
from tests.kit.canaries import PASSWORD
from tests.kit.extents import new_extent


@pytest.fixture
def bk(bk_served: Any) -> Any:
    return bk_served


@pytest.fixture
def name() -> str:
    """A log of the test's own."""
    return f"log-{uuid4()}"


def publish(
    bookkeeper: blocking.BookKeeper,
    name: str,
    values: Sequence[bytes],
    transaction: Transaction | None = None,
    **schema: Any,
) -> int:
    """One closed ledger at the end of the log, as a job writes it; its id."""
    log = bookkeeper.log(name, password=PASSWORD)
    head, _ = log.open_or_create()
    publish_id = PublishId.job(str(uuid4()))
    keys = custom_metadata_for(head.value.uuid, publish_id, partition=0, attempt=0, codec="raw")
    with bookkeeper.create_ledger(password=PASSWORD, custom_metadata=keys) as writer:
        writer.append_batch(EntryBatch.from_list(list(values)))
    new = new_extent(
        writer.ledger_id,
        len(values),
        sum(map(len, values)),
        int(time.time() * 1000),
        fragments=writer.metadata.fragments,
    )
    log.publish([new], publish_id, PublishOptions(transaction=transaction, **schema))
    return writer.ledger_id


def values(first: int, count: int) -> list[bytes]:
    return [b"value %d" % n for n in range(first, first + count)]


def fill(served: Any, name: str, ledgers: int, each: int = 5) -> list[int]:
    with blocking.connect(served.uri) as bookkeeper:
        return [publish(bookkeeper, name, values(n * each, each)) for n in range(ledgers)]


def texts(bk: Any, name: str) -> dict[int, str]:
    """Offset → text of every entry of the log."""
    return {
        each["offset"]: each["text"] for each in bk.json("log", "read", name, "--ledger-password", PASSWORD.decode())
    }


def expected(first: int, stop: int) -> dict[int, str]:
    return {n: f"value {n}" for n in range(first, stop)}


SECRET = ("--ledger-password", PASSWORD.decode())


@pytest.mark.rule("N7")
def test_compact_merges_ledgers_and_every_offset_means_the_same(bk: Any, served: Any, name: str) -> None:
    fill(served, name, 20)
    (planned,) = bk.json("log", "compact", name, "--dry-run", *SECRET)
    assert planned == {
        "log": name,
        "baseOffset": 0,
        "extents": 20,
        "entries": 100,
        "bytes": sum(map(len, values(0, 100))),
        "dryRun": True,
    }
    (shown,) = bk.json("log", "show", name)
    assert len(shown["extents"]) == 20
    (done,) = bk.json("log", "compact", name, *SECRET)
    assert (done["extents"], done["entries"], len(done["ledgers"])) == (20, 100, 1)
    (shown,) = bk.json("log", "show", name, "--extents")
    assert [each["ledgerId"] for each in shown["extents"]] == done["ledgers"]
    assert texts(bk, name) == expected(0, 100)
    assert bk("log", "compact", name, *SECRET) == 0
    assert "nothing to compact" in bk.out
    assert bk("log", "compact", name, "--ledger-password", "wrong") == 2
    assert bk("log", "compact", name, "--max-ledger-bytes", "many", *SECRET) == 2


@pytest.mark.rule("K8")
def test_show_lists_the_schemas_of_a_log_and_which_extent_has_which(bk: Any, served: Any, name: str) -> None:
    with blocking.connect(served.uri) as bookkeeper:
        for number, kinds in enumerate((("a",), ("a", "b"))):
            fields = [{"name": kind, "type": {"name": "utf8"}, "nullable": True, "children": []} for kind in kinds]
            publish(bookkeeper, name, values(number, 1), schema=schemas.encode(fields), merge_schema=True)
    (shown,) = bk.json("log", "show", name)
    assert shown["schemas"] == {"1": {"a": "utf8"}, "2": {"a": "utf8", "b": "utf8"}}
    assert [extent["schema"] for extent in shown["extents"]] == [1, 2]
    assert bk("log", "show", name) == 0
    assert "a utf8, b utf8" in bk.out


@pytest.mark.rule("N6")
def test_trim_unlinks_and_only_vacuum_deletes(bk: Any, served: Any, name: str) -> None:
    ledgers = fill(served, name, 4)
    assert bk("log", "trim", name, *SECRET) == 2
    assert bk("log", "trim", name, "--before", "7", "--expired", *SECRET) == 2
    wanted = {"log": name, "startOffset": 12, "entries": 12, "unlinkedExtents": 2, "unlinkedBytes": 72}
    wanted["unlinkedBytes"] = sum(map(len, values(0, 10)))
    assert bk.json("log", "trim", name, "--before", "12", "--dry-run", *SECRET) == [{**wanted, "dryRun": True}]
    assert len(texts(bk, name)) == 20
    assert bk.json("log", "trim", name, "--before", "12", *SECRET) == [{**wanted, "dryRun": False}]
    assert texts(bk, name) == expected(12, 20)
    assert bk("log", "trim", name, "--before", "3", *SECRET) == 0
    assert "nothing to trim" in bk.out

    nothing = {"log": name, "ledgers": [], "remaining": [], "pages": [], "transactions": [], "dryRun": False}
    assert bk.json("log", "vacuum", name, *SECRET) == [nothing]  # all are too young
    assert bk("log", "vacuum", name, "--delete-delay-ms", "0", *SECRET) == 2
    assert "7 days" in bk.err
    (planned,) = bk.json("log", "vacuum", name, "--delete-delay-ms", "0", "--force", "--dry-run", *SECRET)
    assert planned == {**nothing, "ledgers": ledgers[:2], "dryRun": True}
    assert set(ledgers) <= {each["ledgerId"] for each in bk.json("ledger", "list", "--ids")}
    (done,) = bk.json("log", "vacuum", name, "--delete-delay-ms", "0", "--force", *SECRET)
    assert done == {**planned, "dryRun": False}
    assert not set(ledgers[:2]) & {each["ledgerId"] for each in bk.json("ledger", "list", "--ids")}
    assert texts(bk, name) == expected(12, 20)

    assert bk("log", "trim", name, "--before", "20", *SECRET) == 0
    assert bk("log", "show", name) == 0
    assert "none; the next is 20" in bk.out
    assert bk("log", "read", name, "--from", "3", *SECRET) == 2
    assert "at these offsets: none; the next is 20" in bk.err
    assert "--from is 3" in bk.err


@pytest.mark.rule("N6")
def test_a_log_keeps_what_its_settings_say(bk: Any, served: Any, name: str) -> None:
    fill(served, name, 4)
    settings = {"log": name, "retentionMs": 0, "retentionBytes": 0, "dryRun": False}
    assert bk.json("log", "set", name, *SECRET) == [settings]
    wanted = {**settings, "retentionMs": 7 * 86_400_000, "retentionBytes": 80}
    arguments = ("log", "set", name, "retentionMs=7d", "retention-bytes=80", *SECRET)
    assert bk.json(*arguments, "--dry-run") == [{**wanted, "dryRun": True}]
    assert bk.json("log", "set", name, *SECRET) == [settings]
    assert bk.json(*arguments) == [wanted]
    assert bk.json("log", "set", name, "retentionMs=0", *SECRET) == [{**wanted, "retentionMs": 0}]
    (shown,) = bk.json("log", "show", name)
    assert (shown["retentionMs"], shown["retentionBytes"]) == (0, 80)
    (dry,) = bk.json("log", "trim", name, "--expired", "--dry-run", *SECRET)
    assert dry["startOffset"] == 10  # 40 bytes each: two extents are enough
    (done,) = bk.json("log", "trim", name, "--expired", *SECRET)
    assert done["startOffset"] == 10
    assert texts(bk, name) == expected(10, 20)
    for wrong in ("retentionMs", "retentionMs=x", "retentions=1", "retentionMs=-1"):
        assert bk("log", "set", name, wrong, *SECRET) == 2
        assert "retentionMs=7d" in bk.err
    assert bk("log", "set", name, "retentionMs=0", "--ledger-password", "wrong") == 2
    assert bk("log", "set", "no-such-log", "retentionMs=0") == 3


@pytest.mark.rule("N5")
def test_transactions_are_listed_shown_and_forgotten_by_force(bk: Any, served: Any, name: str) -> None:
    with blocking.connect(served.uri) as bookkeeper:
        for version in (1, 2, 7):
            publish(bookkeeper, name, values(0, version), Transaction("nightly import", version))
        publish(bookkeeper, name, values(0, 1), Transaction("other", 0))
    listed = bk.json("log", "txn", "list", name)
    assert [(each["appId"], each["lastVersion"], each["rows"], each["remembered"]) for each in listed] == [
        ("other", 0, 1, 1),
        ("nightly import", 7, 7, 3),
    ]
    assert bk("log", "txn", "list", name) == 0
    assert "nightly import" in bk.out
    (shown,) = bk.json("log", "txn", "show", name, "nightly import")
    assert [(each["version"], each["rows"]) for each in shown["versions"]] == [(1, 1), (2, 2), (7, 7)]
    assert bk("log", "txn", "show", name, "nightly") == 2
    assert "nightly import" in bk.err
    assert bk("log", "txn", "forget", name, "nightly import", *SECRET) == 2
    assert "--force" in bk.err
    (dry,) = bk.json("log", "txn", "forget", name, "nightly import", "--dry-run", *SECRET)
    assert not dry["forgotten"]
    (done,) = bk.json("log", "txn", "forget", name, "nightly import", "--force", *SECRET)
    assert (done["forgotten"], done["lastVersion"]) == (True, 7)
    assert [each["appId"] for each in bk.json("log", "txn", "list", name)] == ["other"]
    with blocking.connect(served.uri) as bookkeeper:
        publish(bookkeeper, name, values(0, 3), Transaction("nightly import", 1))  # it begins anew


def test_settings_are_read_as_people_write_them() -> None:
    assert log_upkeep.parse_settings(["retentionMs=90s", "retention_bytes=10 GiB"]) == {
        "retentionMs": 90_000,
        "retentionBytes": 10 << 30,
    }
    with pytest.raises(InvalidArgumentError, match="once"):
        log_upkeep.parse_settings(["retentionMs=1", "retention-ms=2"])


def ledgers_of(served: Any) -> set[int]:
    with blocking.connect(served.uri) as bookkeeper:
        return set(bookkeeper.list_ledgers())


@pytest.mark.rule("N6")
def test_a_log_is_deleted_only_when_asked_twice_and_its_ledgers_wait(bk: Any, served: Any, name: str) -> None:
    made = set(fill(served, name, 3))
    assert bk("log", "delete", name, *SECRET) == 2
    assert "would delete log" in bk.err
    assert "offsets 0 to 14, 3 extents" in bk.err
    assert "--yes" in bk.err
    (found,) = bk.json("log", "delete", name, "--yes", *SECRET)
    assert (found["log"], found["deleted"], found["ledgers"]) == (name, True, [])
    assert made <= ledgers_of(served)
    assert name not in [each["log"] for each in bk.json("log", "list")]
    waiting = [each for each in bk.json("log", "list", "--deleted") if each["log"] == name]
    assert [each["uuid"] for each in waiting] == [found["uuid"]]
    for command in (("show",), ("read",), ("explain",), ("delete", "--yes")):
        assert bk("log", *command, name) == 3, command
        assert "it was deleted at 20" in bk.err
    (nothing,) = bk.json("log", "vacuum", name, *SECRET)
    assert nothing["ledgers"] == []
    (planned,) = bk.json("log", "vacuum", name, "--delete-delay-ms", "0", "--force", "--dry-run", *SECRET)
    assert set(planned["ledgers"]) == made <= ledgers_of(served)
    plan = bk.json("upkeep", "--dry-run", *SECRET)
    assert [each["why"] for each in plan if each.get("log") == name and "deleted less than 7 days ago" in each["why"]]
    (done,) = bk.json("log", "vacuum", name, "--delete-delay-ms", "0", "--force", *SECRET)
    assert set(done["ledgers"]) == made
    assert not made & ledgers_of(served)
    assert bk("log", "vacuum", name, *SECRET) == 3


def test_at_once_deletes_the_ledgers_too_unless_somebody_writes(bk: Any, served: Any, name: str) -> None:
    made = set(fill(served, name, 2))
    with blocking.connect(served.uri) as bookkeeper:
        leader = bookkeeper.log(name, password=PASSWORD).lead()
        assert bk("log", "delete", name, "--yes", *SECRET) == 4
        assert "BK_LOG_HAS_LEADER" in bk.err
        assert bk("log", "delete", name, "--yes", "--now", *SECRET) == 4
        assert "BK_LOG_IN_USE" in bk.err
        leader.append(b"last")
        leader.close()
    (found,) = bk.json("log", "delete", name, "--yes", "--now", *SECRET)
    assert made < set(found["ledgers"])
    assert not made & ledgers_of(served)


def test_a_wrong_password_deletes_nothing(bk: Any, served: Any, name: str) -> None:
    fill(served, name, 1)
    assert bk("log", "delete", name, "--yes") == 2
    assert "BK_WRONG_PASSWORD" in bk.err
    assert name in [each["log"] for each in bk.json("log", "list")]
