# SPDX-License-Identifier: Apache-2.0
"""Commands that change a whole cluster, and the page's window on entries, on bookies of this process."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from bk_cli import main
from bk_cli.access import Access
from bk_cli.operate.entry_window import NEWEST, TEXT_MAX, EntryWindow
from bk_core import blocking
from bk_core.entries.batch import EntryBatch
from bk_core.errors import NoSuchLedgerError, NoSuchLogError
from tests.kit.served_cluster import ServedCluster
from tests.kit.waiting import in_thread

LISTENS_TO = (signal.SIGUSR1, signal.SIGUSR2)
SHAPE = {"ensemble_size": 2, "write_quorum_size": 2, "ack_quorum_size": 2}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ServedCluster]:
    with ServedCluster(tmp_path, 3) as running:
        yield running


def bk(capfd: pytest.CaptureFixture[str], uri: str, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, JSON objects, errors."""
    capfd.readouterr()
    code = main.run([*arguments, "--metadata-service-uri", uri, "--json"])
    out, err = capfd.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def copies(client: blocking.BookKeeper) -> Counter[str]:
    """The bytes that records assign to each bookie."""
    found: Counter[str] = Counter()
    for ledger_id in client.list_ledgers():
        record = client.read_metadata(ledger_id).value
        for name in record.last_fragment.ensemble:
            found[name] += record.length
    return found


def test_rebalance_moves_copies_to_a_new_bookie_and_every_entry_stays(
    cluster: ServedCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = [b"%04d" % n * 200 for n in range(100)]
    with blocking.connect(cluster.uri) as client:
        for _ in range(12):
            with client.create_ledger(**SHAPE) as writer:
                writer.append_batch(EntryBatch.from_list(wanted))
        added = cluster.add()
        before = copies(client)
        assert added not in before
        code, planned, err = bk(capfd, cluster.uri, "rebalance", "--tolerance", "0", "--dry-run")
        assert code == 0, err
        assert copies(client) == before, "a dry run changes nothing"
        moves = [each for each in planned if each.get("to") == added]
        assert moves, planned
        assert {each["from"] for each in moves} <= set(before)
        assert all((each["fragments"], each["bytes"]) == ([0], 80_000) for each in moves), moves
        code, done, err = bk(capfd, cluster.uri, "rebalance", "--tolerance", "0")
        assert code == 0, err
        after = copies(client)
        assert after.total() == before.total()
        assert after[added] > 0
        assert max(after.values()) - min(after.values()) < max(before.values())
        for ledger_id in client.list_ledgers():
            with client.open_ledger(ledger_id, recover=False) as reader:
                assert [entry for batch in reader.read(0, 99) for entry in batch.to_list()] == wanted
        code, again, err = bk(capfd, cluster.uri, "rebalance", "--tolerance", "0", "--dry-run")
        assert code == 0, err
        assert not [each for each in again if "ledgerId" in each], "what is balanced stays"
        assert done


@pytest.fixture
def _signals_and_level() -> Iterator[None]:
    """A server listens to signals and lowers the level of the root's log; both are set back."""
    level, handlers = logging.getLogger().level, {each: signal.getsignal(each) for each in LISTENS_TO}
    yield
    logging.getLogger().setLevel(level)
    for each, handler in handlers.items():
        signal.signal(each, handler)


@pytest.mark.long  # a worker looks for marks every five seconds
@pytest.mark.rule("D23")
@pytest.mark.usefixtures("_signals_and_level")
def test_autorecovery_waits_and_copies_as_its_command_line_says(
    cluster: ServedCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    lost, times = cluster.add(), list[float]()
    with blocking.connect(cluster.uri) as client:
        while copies(client)[lost] < 4 << 20:
            with client.create_ledger(**SHAPE) as writer:
                writer.append(bytes(1 << 20))
        assert cluster.stop_one() == lost
        stopped = time.monotonic()

        def end_it() -> None:
            """End the command once every copy has moved, or after a while."""
            while signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, before):
                time.sleep(0.01)
            while (left := copies(client)[lost]) and time.monotonic() < stopped + 40:
                if left < 4 << 20 and not times:
                    times.append(time.monotonic())
                time.sleep(0.02)
            times.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)

        before = signal.getsignal(signal.SIGTERM)
        ending = in_thread(end_it)
        command = ["autorecovery", "--lost-bookie-delay", "1s", "--rate", "1m", "--repairs", "1", "--name", "healer"]
        assert main.run([*command, "--metadata-service-uri", cluster.uri]) == 0
        ending.result(60)
        assert copies(client)[lost] == 0
        assert capfd.readouterr().out.splitlines()[0] == "ready healer"
        assert times[1] - times[0] > 1, "copies of some megabytes, of which one is paid for in a second"


def test_upkeep_runs_one_round_merges_small_ledgers_and_says_what_it_did(
    cluster: ServedCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    name = f"log-{uuid4().hex}"
    with blocking.connect(cluster.uri) as client:
        for n in range(20):
            log = client.log(name)
            with log.lead(**SHAPE) as leader:
                leader.append(b"%d" % n)
        before = len(client.log(name).head().value.tail)
        code, plan, err = bk(capfd, cluster.uri, "upkeep", "--dry-run")
        assert code == 0, err
        assert [each for each in plan if each.get("log") == name]
        assert len(client.log(name).head().value.tail) == before
        code, done, err = bk(capfd, cluster.uri, "upkeep", "--once", "--name", "me")
        assert code == 0, err
        assert [each for each in done if each.get("log") == name], done
        head = client.log(name).head().value
        assert len(head.tail) < before
        found = client.log(name).read(head.start_offset, head.next_offset)
        assert [entry for _, batch in found for entry in batch.to_list()] == [b"%d" % n for n in range(20)]


def test_the_window_on_a_log_shows_the_newest_entries_cuts_long_ones_and_goes_on_from_an_offset(
    cluster: ServedCluster,
) -> None:
    name = f"log-{uuid4().hex}"
    with blocking.connect(cluster.uri) as client, EntryWindow(Access(cluster.uri)) as window:
        leader = client.log(name).lead(**SHAPE)
        for n in range(30):
            leader.append(b"entry %d" % n)
        leader.append(b"x" * (TEXT_MAX + 50))
        ends = time.monotonic() + 10
        while (newest := window.window(name, None, 100))["endOffset"] != 31:
            assert time.monotonic() < ends, "bookies hear of the last confirmed entry a moment later"
        assert (newest["log"], newest["startOffset"], newest["endOffset"], newest["next"]) == (name, 0, 31, 31)
        assert newest["live"] is True
        shown = newest["entries"]
        assert isinstance(shown, list)
        assert len(shown) == NEWEST
        assert shown[0]["offset"] == 31 - NEWEST
        assert len(str(shown[-1]["text"])) < TEXT_MAX + 50
        part = window.window(name, 3, 4)
        assert isinstance(part["entries"], list)
        assert [each["offset"] for each in part["entries"]] == [3, 4, 5, 6]
        assert part["next"] == 7
        leader.close()
        assert window.window(name, 31, 5)["entries"] == []
        assert window.window(name, 0, 1)["live"] is False
        ledger = client.create_ledger(**SHAPE)
        ledger.append(b"a")
        ledger.append(b"b")
        open_end = window.lac(ledger.ledger_id)
        assert (open_end["ledgerId"], open_end["closed"]) == (ledger.ledger_id, False)
        ledger.close()
        assert window.lac(ledger.ledger_id) == {"ledgerId": ledger.ledger_id, "lac": 1, "closed": True}
        with pytest.raises(NoSuchLogError):
            window.window("no-such-log", None, 5)
        with pytest.raises(NoSuchLedgerError):
            window.lac(999_999)
