# SPDX-License-Identifier: Apache-2.0
"""Runs each of Apache's own tools on our bookies, and compares what it prints with the truth.

``scripts/trial interop tools`` runs all of them and prints a table. tests/interop/test_tools.py runs most of them. They
share one cluster of our bookies, and run in the order of :data:`TOOLS`, because the last ones take bookies away.
"""

from __future__ import annotations

import functools
import itertools
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bk_cli.access import Access
from bk_cli.local.children import child_environment, last_lines
from bk_cli.local.cluster import BookieProcess, LocalCluster
from bk_cli.local.cluster_layout import free_bookie_ports
from bk_core.blocking import connect
from bk_core.cluster.bookie_answers import ask_bookies
from bk_core.errors import BookKeeperError
from bk_core.metadata.codec import decode_ledger
from bk_core.metadata.port import MetadataStore
from bk_core.model import LedgerMetadata, LedgerState
from bk_core.transport.caller import Caller
from tests.interop.jars import MAIN, KitError, toolchain
from tests.interop.pattern import Pattern, checksum
from tests.interop.peer_client import PASSWORD, JavaClient, PeerClient
from tests.interop.peers import APACHE_WAITS, ApacheCluster
from tests.interop.steps import Steps, parser, run

BOOKIES = 6
WITHIN_S = 200.0  # on a machine that also runs other programs
REPAIRED_WITHIN_S = 60.0
"""The seconds from ``kill -9`` of a bookie until a closed and an open ledger are whole again. A session ends within 11
s, the auditor waits for 1 s, and the worker waits half a minute for the writer of the open ledger. On Apache's bookies
this takes 42 s too."""
TRIES = 3  # for calls of Apache's client that sometimes fail
PATTERN = Pattern(seed=12, size_min=8, size_max=2000)
ENTRIES = 30
HINTED_S = 0.5  # the seconds until an idle writer's LAC is on its bookies' disks
_POLL_S = 0.1


@dataclass(slots=True)
class World:
    """A cluster of our bookies, Apache's tools against it, and a Java client."""

    ours: LocalCluster
    apache: ApacheCluster
    peer: PeerClient
    java: JavaClient
    store: MetadataStore
    turns: Iterator[int] = field(default_factory=itertools.count)
    """The numbers of the runs of a tool that is repeated."""

    @property
    def uri(self) -> str:
        return self.ours.uri

    @property
    def ids(self) -> list[str]:
        return sorted(bookie.bookie_id for bookie in self.ours.bookies)

    def of_java(self, *, count: int = ENTRIES, close: bool = True, **create: int) -> int:
        """Let Java write a ledger of the pattern. If it is not closed, its writer does nothing more. Return its id."""
        ledger = self.java.create(**{"ensemble_size": 3, "write_quorum_size": 2, **create})
        ledger.add(count, PATTERN)
        if close:
            ledger.close()
        return ledger.ledger_id

    def of_ours(self, *, count: int = ENTRIES, close: bool = True, ensemble_size: int = 3) -> int:
        """Let our client write a ledger of the pattern. If it is not closed, its writer sends its LAC to its bookies
        before it ends. Return its id."""
        with connect(self.uri) as bookkeeper:
            writer = bookkeeper.create_ledger(
                ensemble_size=ensemble_size, write_quorum_size=2, ack_quorum_size=2, password=PASSWORD
            )
            for payload in PATTERN.payloads(0, count - 1):
                writer.append_nowait(payload)
            writer.flush()
            if close:
                writer.close()
            else:
                time.sleep(HINTED_S)
                writer.abandon()
            return writer.ledger_id

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        return self.store.read_ledger(ledger_id).value

    def members(self, ledger_id: int) -> set[str]:
        """Return all bookies that the ledger names."""
        return {member for fragment in self.metadata(ledger_id).fragments for member in fragment.ensemble}

    def check_whole(self, ledger_id: int, count: int = ENTRIES) -> None:
        """Check that both clients read every entry."""
        wanted = PATTERN.checksum(0, count - 1)
        assert self.java.open(ledger_id, recover=False).read(0, count - 1).checksum == wanted
        with connect(self.uri) as bookkeeper:
            reader = bookkeeper.open_ledger(ledger_id, password=PASSWORD, recover=False)
            assert reader.last_add_confirmed == count - 1
            found = [bytes(payload) for batch in reader.read(0, count - 1) for payload in batch.to_list()]
        assert checksum(found) == wanted

    def shell(self, *arguments: str, port: int = 0) -> str:
        """Run a command of the BookieShell, which must succeed. Return its output."""
        return self.apache.shell(*arguments, port=port, within_s=WITHIN_S).checked()


@contextmanager
def world(path: Path, *, apache: bool = False) -> Iterator[World]:
    """Run six of our bookies in ``path``, whose files are removed at the end. With ``apache`` they are Apache's, for
    comparison."""
    with ExitStack() as stack:
        cluster = LocalCluster(path / "ours", bookies=BOOKIES, port=0, zookeeper_port=0, apache=apache)
        ours = stack.enter_context(cluster)
        stack.callback(shutil.rmtree, path / "ours", ignore_errors=True)
        uri = ours.uri.replace("zk://", "zk+hierarchical://")
        servers = ours.uri.removeprefix("zk://").partition("/")[0]
        apache = stack.enter_context(ApacheCluster(toolchain(MAIN), servers, path / "apache", uri=uri))
        peer = apache.peer_client()
        store = stack.enter_context(Access(ours.uri).store())
        yield World(ours, apache, peer, peer.client(uri), store)


# --- the shell: what is there ---


def simpletest(world: World) -> str:
    said = world.shell("simpletest", "-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2", "-numEntries", "500")
    assert "500 entries written to ledger" in said, said
    (ledger_id,) = {int(found) for found in re.findall(r"entries written to ledger (\d+)", said)}
    # the tool has read and compared them, and deletes the ledger at its end
    assert ledger_id not in set(world.store.list_ledgers())
    return f"500 entries written to ledger {ledger_id} and read"


def bookiesanity(world: World) -> str:
    for bookie in world.ours.bookies:
        said = world.shell("bookiesanity", port=bookie.port)
        assert "Read 10 entries" in said, said
        assert "Bookie sanity test succeeded" in said, said
    return f"succeeded on {len(world.ours.bookies)} bookies"


def listbookies(world: World) -> str:
    with _read_only_bookie(world) as read_only:
        writable = world.shell("listbookies", "-rw")
        assert "ReadWrite Bookies" in writable
        assert _ids_in(writable) == set(world.ids)
        assert _ids_in(world.shell("listbookies", "-ro")) == {read_only}
        assert _ids_in(world.shell("listbookies", "-a")) == {*world.ids, read_only}  # these come from the cookies
    return f"{len(world.ids)} read-write, 1 read-only"


def _ids_in(said: str) -> set[str]:
    return set(re.findall(r"BookieID:\s*([^\s,]+)", said))


@contextmanager
def _read_only_bookie(world: World) -> Iterator[str]:
    """Run another bookie of ours, which is read-only from its start because its disk counts as full. Yield its id."""
    (port,) = free_bookie_ports(1)
    conf = world.ours.data_dir / "read-only.toml"
    conf.write_text("disk_usage_threshold = 1e-6\ndisk_usage_low_water = 1e-6\n", encoding="ascii")
    with _bookie(world, world.ours.data_dir / "read-only", port, "--config", str(conf)) as log:
        bookie_id = f"127.0.0.1:{port}"
        _until(lambda: bookie_id in world.store.read_only_bookies(), lambda: last_lines(log))
        yield bookie_id


@contextmanager
def _bookie(world: World, data: Path, port: int, *options: str) -> Iterator[Path]:
    """Run a bookie of ours with options of its own. Yield its log."""
    command = [sys.executable, "-m", "bk_cli.main", "bookie", "run", "--lifeline-fd", "0", "--allow-loopback"]
    command += ["--data", str(data), "--port", str(port), "--metadata-service-uri", world.uri]
    command += ["--listen-address", "127.0.0.1", "--advertised-address", "127.0.0.1", *options]
    log_path = world.ours.data_dir / f"bookie-{port}.log"
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=child_environment()
        )
    try:
        yield log_path
    finally:
        process.terminate()
        process.wait(WITHIN_S)
        assert process.stdin is not None
        process.stdin.close()


def bookieinfo(world: World) -> str:
    said = world.shell("bookieinfo")
    told = {who: (int(free), int(total)) for who, free, total in re.findall(_INFO, said)}
    assert set(told) == set(world.ids), said
    disk = shutil.disk_usage(world.ours.data_dir)
    for free, total in told.values():
        assert total == disk.used + disk.free  # the bytes that a bookie can use at most
        assert abs(free - disk.free) < 0.1 * total
    return f"{len(told)} bookies, each with the size of its disk"


_INFO = r"BookieID:([^\s,]+), .*: \tFree: (\d+)\S*\tTotal: (\d+)"


def whatisinstanceid(world: World) -> str:
    said = world.shell("whatisinstanceid")
    assert f"InstanceId: {world.store.instance_id()}" in said, said
    return world.store.instance_id()


def endpointinfo(world: World) -> str:
    bookie = world.ours.bookies[0]
    said = world.shell("endpointinfo", "-b", bookie.bookie_id)
    assert f"127.0.0.1 : {bookie.port}" in said, said
    assert "bookie-rpc" in said
    return f"{bookie.bookie_id} serves bookie-rpc"


# --- the shell: ledgers ---


def listledgers(world: World) -> str:
    world.of_java()
    world.of_ours()
    listed = _ledgers_in(world.shell("listledgers"))
    assert listed == set(world.store.list_ledgers())
    of_one = _ledgers_in(world.shell("listledgers", "-bookieid", world.ids[0]))
    assert of_one == {ledger for ledger in listed if world.ids[0] in world.members(ledger)}
    return f"{len(listed)} ledgers, {len(of_one)} of them on {world.ids[0]}"


def _ledgers_in(said: str) -> set[int]:
    return {int(found) for found in re.findall(r"ledgerID: (\d+)", said)}


def ledgermetadata(world: World) -> str:
    ledger_id = world.of_ours()
    said = world.shell("ledgermetadata", "-ledgerid", str(ledger_id))
    wanted = ("ensembleSize=3", "writeQuorumSize=2", "ackQuorumSize=2", "state=CLOSED", "digestType=CRC32C")
    for text in (*wanted, f"lastEntryId={ENTRIES - 1}", f"length={world.metadata(ledger_id).length}"):
        assert text in said, (text, said)
    dumped = world.ours.data_dir / "metadata"
    world.shell("ledgermetadata", "-ledgerid", str(ledger_id), "-dumptofile", str(dumped))
    assert decode_ledger(dumped.read_bytes()) == world.metadata(ledger_id)
    version = world.store.read_ledger(ledger_id).version
    world.shell("ledgermetadata", "-ledgerid", str(ledger_id), "-restorefromfile", str(dumped), "-update")
    restored = world.store.read_ledger(ledger_id)
    assert (restored.value, restored.version != version) == (decode_ledger(dumped.read_bytes()), True)
    return f"ledger {ledger_id} of our client printed, dumped and restored"


def readledger(world: World) -> str:
    for ledger_id in (world.of_ours(), world.of_java()):
        read = ["readledger", "-ledgerid", str(ledger_id), "-firstentryid", "3", "-lastentryid", "9"]
        said = world.shell(*read, "-msg")
        assert _entries_in(said, ledger_id) == list(range(3, 10)), said
        members = world.metadata(ledger_id).fragments[0].ensemble
        asked = _of_one_bookie(
            world, "readledger", "-ledgerid", str(ledger_id), "-fe", "0", "-le", "1", "-b", members[0]
        )
        assert _entries_in(asked, ledger_id) == [0], asked  # with -b the last entry is excluded
    unclosed = world.of_ours(close=False)
    said = world.shell("readledger", "-ledgerid", str(unclosed), "-r")
    assert _entries_in(said, unclosed) == list(range(ENTRIES)), said
    assert (world.metadata(unclosed).state, world.metadata(unclosed).last_entry_id) == (LedgerState.CLOSED, ENTRIES - 1)
    return "entries of both clients, of one bookie too; an unclosed ledger recovered"


def _of_one_bookie(world: World, *arguments: str) -> str:
    """Run a command with ``-b``. Such a command of Apache's has a race: it closes its client once the answer was
    handled, perhaps before the client has removed the request from its list. It then fails with this error after it has
    printed everything."""
    asked = world.apache.shell(*arguments, port=0, within_s=WITHIN_S)
    raced = asked.code and "RejectedExecutionException: Executor is shutting down" in asked.output
    return asked.output if raced else asked.checked()


def _entries_in(said: str, ledger_id: int) -> list[int]:
    return [int(found) for found in re.findall(rf"Lid={ledger_id}, Eid=(\d+)", said)]


def deleteledger(world: World) -> str:
    for ledger_id in (world.of_ours(), world.of_java()):
        world.shell("deleteledger", "-ledgerid", str(ledger_id), "-force")
        assert ledger_id not in set(world.store.list_ledgers())
    return "a ledger of each client"


# --- bookies that are lost ---


def recover(world: World) -> str:
    """Recover a stopped bookie by hand. Its ledgers go to other bookies, and it comes back without them."""
    lost = world.ours.bookies[-1]
    ledgers = _ledgers_on(world, lost.bookie_id)
    lost.stop()
    asked = world.shell("recover", "-force", "-query", lost.bookie_id)
    assert {int(found) for found in re.findall(r"ledger (\d+) : ", asked)} >= ledgers, asked
    world.shell("recover", "-force", lost.bookie_id)
    for ledger_id in ledgers:
        assert lost.bookie_id not in world.members(ledger_id)
        world.check_whole(ledger_id)
    lost.start()
    world.ours.wait_ready([lost])
    return f"{len(ledgers)} ledgers copied from {lost.bookie_id}, which came back"


def listunderreplicated(world: World) -> str:
    """List a mark of ours, made as by a writer that closes with a copy missing. Autorecovery removes the mark
    afterwards."""
    ledger_id = world.of_ours()
    (missing, *_) = world.metadata(ledger_id).fragments[0].ensemble
    world.store.mark_underreplicated(ledger_id, [missing])
    assert "Under replicated ledger count: 1" in world.shell("listunderreplicated", "-c")
    said = world.shell("listunderreplicated", "-pmr", "-mr", missing)
    assert re.search(rf"- {ledger_id}$", said, re.MULTILINE), said
    assert f"MissingReplica : {missing}" in said, said
    return f"ledger {ledger_id}, which lacks {missing}"


def autorecovery_of_ours(world: World) -> str:
    """Kill a bookie of ours. Its ledgers are copied to others of ours, and open ones are recovered."""
    lost = world.ours.bookies[0]
    ledgers = _ledgers_on(world, lost.bookie_id)
    with _autorecovery(world):
        lost.kill()
        took = _wait_replicated(world, lost.bookie_id, ledgers)
        assert "Auditor: " in world.shell("whoisauditor")
        assert "Under replicated ledger count: 0" in world.shell("listunderreplicated", "-c")
    for ledger_id in ledgers:
        assert world.metadata(ledger_id).state is LedgerState.CLOSED
        world.check_whole(ledger_id)
        _check_copies(world, ledger_id)
    lost.start()
    world.ours.wait_ready([lost])
    return f"{len(ledgers)} ledgers copied in {took:.0f} s"


def autorecovery_in_time(world: World) -> str:
    """Start Apache's AutoRecovery with its own waits when a bookie is killed. A closed ledger of one client and an open
    one of the other must be whole again within :data:`REPAIRED_WITHIN_S`. The open ledger of our client has one entry,
    which only two of its four bookies hold. The answers of the other two must not keep the worker from opening it."""
    for ledger_id in list(world.store.list_ledgers()):  # Apache's worker pauses for 5 s after each open ledger
        world.java.delete(ledger_id)
    turn = next(world.turns)
    lost = world.ours.bookies[turn % len(world.ours.bookies)]
    striped: Callable[..., int] = functools.partial(world.of_ours, count=1, ensemble_size=4)
    closed, left, count = (world.of_ours, world.of_java, ENTRIES) if turn % 2 else (world.of_java, striped, 1)
    ledgers = {
        "closed": _ledger_on(world, lost.bookie_id, closed),
        "open": _ledger_on(world, lost.bookie_id, left, close=False),
    }
    world.store.set_lost_bookie_recovery_delay_s(1)
    began = time.monotonic()
    lost.kill()
    with world.apache.autorecovery(APACHE_WAITS) as daemon:
        took = {
            kind: _seconds_until(began, functools.partial(_left, world, lost.bookie_id, ledger_id))
            for kind, ledger_id in ledgers.items()
        }
        took["no mark"] = _seconds_until(began, lambda: not list(world.store.list_underreplicated()))
        assert daemon.is_running, (
            f"AutoRecoveryMain ended, as it does when its session ends: {last_lines(daemon.log_path)}"
        )
    world.store.set_lost_bookie_recovery_delay_s(0)
    lost.start()
    world.ours.wait_ready([lost])
    found = ", ".join(f"{kind} after {seconds:.0f} s" for kind, seconds in took.items())
    assert max(took.values()) <= REPAIRED_WITHIN_S, (found, str(world.apache.path))
    world.check_whole(ledgers["closed"])
    world.check_whole(ledgers["open"], count)
    for ledger_id in ledgers.values():
        _check_copies(world, ledger_id)
    return found


def _left(world: World, bookie_id: str, ledger_id: int) -> bool:
    return bookie_id not in world.members(ledger_id)


def autorecovery_of_apaches(world: World) -> str:
    """Kill a bookie of Apache's among ours. Its ledgers are copied to ours."""
    lost = world.apache.add_bookie()
    ledgers = _ledgers_on(world, lost.bookie_id)
    with _autorecovery(world):
        lost.kill()
        took = _wait_replicated(world, lost.bookie_id, ledgers)
    for ledger_id in ledgers:
        assert world.members(ledger_id) <= set(world.ids)
        world.check_whole(ledger_id)
        _check_copies(world, ledger_id)
    return f"{len(ledgers)} ledgers copied in {took:.0f} s"


def limbo_of_ours(world: World) -> str:
    """Let a bookie of ours lose its disk and come back. It marks its ledgers, Apache's worker makes the copies, and the
    bookie finds nothing more to mark. Open ledgers are closed first: Apache's worker takes a copy of an open ledger for
    whole if its bookie is there, so the bookie would mark it again forever."""
    lost = world.ours.bookies[1]
    ledgers = _ledgers_on(world, lost.bookie_id)
    for ledger_id in world.store.list_ledgers():
        if not world.metadata(ledger_id).is_closed:
            world.shell("readledger", "-ledgerid", str(ledger_id), "-r")
    assert all(world.metadata(ledger_id).is_closed for ledger_id in ledgers)
    lost.stop()
    shutil.rmtree(lost.data_dir)
    with _bookie(world, lost.data_dir, lost.port, "--accept-loss") as log:
        _until(lambda: lost.bookie_id in world.store.writable_bookies(), lambda: last_lines(log))
        marked = {ledger_id for ledger_id, missing in world.store.list_underreplicated() if lost.bookie_id in missing}
        assert ledgers <= marked, (ledgers, marked)
        # until nothing is in limbo, because the worker may remove a mark too early, and the bookie makes it again
        with _autorecovery(world):
            _until(lambda: not list(world.store.list_underreplicated()), lambda: "still marked")
            for ledger_id in ledgers:
                world.check_whole(ledger_id)
                _check_copies(world, ledger_id)
            moved = sum(lost.bookie_id not in world.members(ledger_id) for ledger_id in ledgers)
            _until(lambda: _in_limbo(world, lost.bookie_id) == 0, lambda: last_lines(log))
            _until(lambda: not list(world.store.list_underreplicated()), lambda: "marked again")
        assert not list(world.store.list_underreplicated())
    lost.start()
    world.ours.wait_ready([lost])
    return f"{len(ledgers)} ledgers, of which {moved} went to other bookies"


def _in_limbo(world: World, bookie_id: str) -> int:
    """Return the number of ledgers of which a bookie says that its copy is incomplete."""
    info = world.store.writable_bookies()[bookie_id]
    said = ask_bookies([info], Caller(world.store.instance_id()), timeout_s=5)[bookie_id]
    assert not isinstance(said, BookKeeperError), said
    return said.info.limbo_ledgers + said.info.damaged_ledgers


def decommissionbookie(world: World) -> str:
    """Remove a bookie for good. Its next start must say that it was removed, and how it may come back."""
    lost = world.ours.bookies[-1]
    ledgers = _ledgers_on(world, lost.bookie_id)
    lost.stop()
    with _autorecovery(world):
        said = world.shell("decommissionbookie", "-bookieid", lost.bookie_id)
    assert "are properly replicated" in said, said
    assert "is deleted successfully" in said, said
    assert world.store.read_cookie(lost.bookie_id) is None
    for ledger_id in world.store.list_ledgers():
        assert lost.bookie_id not in world.members(ledger_id)
    for ledger_id in ledgers:
        world.check_whole(ledger_id)
    _check_way_back(world, lost)
    return f"{len(ledgers)} ledgers copied from {lost.bookie_id}, which refuses to start, and comes back as it says"


def _check_way_back(world: World, bookie: BookieProcess) -> None:
    """Check that the bookie does not start, and says how it may."""
    bookie.start()
    _until(lambda: not bookie.is_running, lambda: "the bookie serves though its cookie is gone")
    said = last_lines(bookie.log_path)
    assert "no cookie of this bookie" in said, said
    assert "bk bookie run --accept-loss" in said, said
    bookie.stop()
    with _bookie(world, bookie.data_dir, bookie.port, "--accept-loss") as log:
        _until(lambda: bookie.bookie_id in world.store.writable_bookies(), lambda: last_lines(log))
        assert world.store.read_cookie(bookie.bookie_id) is not None


@contextmanager
def _autorecovery(world: World) -> Iterator[None]:
    """Run an Auditor and a ReplicationWorker in a process of their own."""
    with world.apache.autorecovery() as daemon:
        _until(lambda: b"I'm starting as Auditor" in daemon.printed(), lambda: str(daemon.log_path))
        yield


def _ledgers_on(world: World, bookie_id: str) -> set[int]:
    """Return new ledgers that name this bookie: closed ones and open ones of each client."""
    makers = (world.of_java, world.of_ours)
    return {_ledger_on(world, bookie_id, make, close=close) for make in makers for close in (True, False)}


def _ledger_on(world: World, bookie_id: str, make: Callable[..., int], *, close: bool = True) -> int:
    """Return a new ledger that names this bookie. Others that are made meanwhile are deleted."""
    while True:
        ledger_id = make(close=close)
        if bookie_id in world.members(ledger_id):
            return ledger_id
        world.java.delete(ledger_id)


def _wait_replicated(world: World, bookie_id: str, ledgers: set[int]) -> float:
    """Wait until none of these ledgers names the bookie, and no ledger is marked. Return how many seconds it took."""
    began = time.monotonic()
    _until(lambda: not any(bookie_id in world.members(ledger_id) for ledger_id in ledgers), lambda: "not copied")
    _until(lambda: not list(world.store.list_underreplicated()), lambda: "still marked")
    return time.monotonic() - began


def _check_copies(world: World, ledger_id: int) -> None:
    """Check that each bookie has every entry that the metadata assign to it."""
    metadata = world.metadata(ledger_id)
    single = world.peer.bookie_client()
    size, quorum = metadata.ensemble_size, metadata.write_quorum_size
    for entry_id in range(metadata.last_entry_id + 1):
        ensemble = metadata.fragment_of(entry_id).ensemble
        for place in range(quorum):
            member = ensemble[(entry_id + place) % size]
            answer = single.call("read", member, ledger_id=ledger_id, entry_id=entry_id)
            assert answer["rc"] == 0, (ledger_id, entry_id, member, answer)
    single.close()


def _seconds_until(began: float, done: Callable[[], bool]) -> float:
    """Return how many seconds after ``began`` the condition was true, at most :data:`WITHIN_S`."""
    while not done() and time.monotonic() - began < WITHIN_S:
        time.sleep(_POLL_S)
    return time.monotonic() - began


def _until(done: Callable[[], bool], why: Callable[[], str]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not done():
        assert time.monotonic() < deadline, why()
        time.sleep(_POLL_S)


# --- benchmarks ---


def bench_throughput_latency(world: World) -> str:
    """Run the benchmark for three seconds on each wire. Apache's own reader of benchmarks reads its ledgers, and our
    client counts the entries."""
    found = []
    for wire in ((), ("-useV2",)):
        before = set(world.store.list_ledgers())
        where = ["-zookeeper", world.apache.servers, "-latencyFile", str(world.ours.data_dir / "latencies")]
        load = ["-time", "3", "-entrysize", "1000", "-ensemble", "3", "-quorum", "3", "-ackQuorum", "2"]
        load += ["-throttle", "1000", "-skipwarmup", "-timeout", "60"]
        said = world.apache.benchmark("BenchThroughputLatency", *where, *load, *wire, within_s=WITHIN_S).checked()
        (done,) = re.findall(r"(\d+) completions in \d+ milliseconds: (\d+) ops/sec", said)
        (ledger_id,) = set(world.store.list_ledgers()) - before
        found.append((ledger_id, int(done[0]), int(done[1])))
    for ledger_id, completions, _ in found:
        with connect(world.uri) as bookkeeper:
            reader = bookkeeper.open_ledger(ledger_id, password=b"benchPasswd", recover=False)
            assert reader.last_add_confirmed + 1 >= completions > 0
        world.java.delete(ledger_id)  # Apache's replication would copy it, entry by entry
    return "; ".join(f"{count} entries, {rate} a second" for _, count, rate in found)


def bench_read_throughput_latency(world: World) -> str:
    """Run the benchmark without batches. With batches it never ends, even on Apache's own bookies."""
    found = []
    for wire in ((), ("-useV2",)):
        world.of_java()  # the benchmark takes ledger 0 for none
        ledger = world.java.create(digest="CRC32", password=b"benchPasswd", write_quorum_size=3)
        ledger.add(4000, Pattern(size_min=1000, size_max=1000))
        ledger.close()
        where = ["-zookeeper", world.apache.servers, "-ledgerManagerType", "hierarchical", "-batchentries", "0"]
        asked = [*where, "-ledger", str(ledger.ledger_id), *wire]
        said = world.apache.benchmark("BenchReadThroughputLatency", *asked, within_s=WITHIN_S).checked()
        (read,) = re.findall(r"Read (\d+) in \d+ms", said)
        assert int(read) == 3999, said  # the benchmark begins at entry 1
        world.java.delete(ledger.ledger_id)
        found.append(f"{read} entries")
    return "; ".join(found)


def bench_bookie(world: World) -> str:
    bookie = world.ours.bookies[0]
    counts = ["-warmupCount", "100", "-latencyCount", "500", "-throughputCount", "5000"]
    where = ["-host", "127.0.0.1", "-port", str(bookie.port), "-zookeeper", world.apache.servers]
    for left in reversed(range(TRIES)):
        try:
            said = world.apache.benchmark("BenchBookie", *where, *counts, within_s=WITHIN_S / TRIES).checked()
        except KitError as error:  # its client, when it closes, may meet an add that is being recycled
            if not left or '"this.perChannelBookieClient" is null' not in str(error):
                raise
        else:
            break
    (latency,) = re.findall(r"Latency: (\S+)", said)
    (throughput,) = re.findall(r"Throughput: (\S+)", said)
    return f"latency {latency} ms, throughput {throughput} a second"


TOOLS: tuple[Callable[[World], str], ...] = (
    *(simpletest, bookiesanity, listbookies, bookieinfo, whatisinstanceid, endpointinfo),
    *(listledgers, ledgermetadata, readledger, deleteledger),
    *(bench_throughput_latency, bench_read_throughput_latency, bench_bookie),
    *(recover, listunderreplicated),
    *(autorecovery_of_ours, autorecovery_in_time, autorecovery_of_apaches),
    *(limbo_of_ours, decommissionbookie),
)

SLOW = (
    *(bench_throughput_latency, bench_read_throughput_latency),
    *(autorecovery_in_time, autorecovery_of_apaches, limbo_of_ours, decommissionbookie),
)
"""The tools that take up to a minute each."""


def trial(steps: Steps, path: Path, *, only: Sequence[str] = (), repeat: int = 1, apache: bool = False) -> None:
    """Run all tools, or those in ``only``, each ``repeat`` times and as a step."""
    with world(path, apache=apache) as made:
        for tool in TOOLS:
            for _ in range(repeat if not only or tool.__name__ in only else 0):
                with steps.step(tool.__name__, go_on=True) as step:
                    step.found = tool(made)


def main(words: Sequence[str]) -> int:
    """Run the tools that the options name, and return the exit code."""
    asks = parser("scripts/trial interop tools", "Apache's tools on our bookies.")
    names = [tool.__name__ for tool in TOOLS]
    asks.add_argument("--only", nargs="+", choices=names, default=(), metavar="TOOL", help=", ".join(names))
    asks.add_argument("--repeat", type=int, default=1, metavar="N", help="run each tool so often")
    asks.add_argument("--bookies", choices=("ours", "apache"), default="ours", help="apache: on Apache's, to compare")
    ask = asks.parse_args(words)
    return run(ask, functools.partial(trial, only=ask.only, repeat=ask.repeat, apache=ask.bookies == "apache"))
