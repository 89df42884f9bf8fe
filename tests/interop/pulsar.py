# SPDX-License-Identifier: Apache-2.0
"""``scripts/trial interop pulsar``: an Apache Pulsar broker, unchanged, keeps its topics on our bookies.

The broker's jars come from Maven Central. Its client is ``pulsar-client`` of PyPI, in a venv that lasts as long as this
trial (tests/interop/pulsar_calls.py). Message N has sequence id N, and the broker drops doubles. So the trial checks
that each acknowledged message is there, in order, once, byte for byte. The broker keeps no messages in its own memory,
so all reads come from the bookies. Exit code 0 means that nothing was lost.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from bk_cli.access import Access
from bk_cli.local.children import child_environment, free_ports
from bk_cli.local.cluster import LocalCluster
from tests.interop.jars import PULSAR, KitError, toolchain
from tests.interop.java_process import QUICK, Daemon, Program, run_main
from tests.interop.pattern import Pattern
from tests.interop.steps import Steps, parser, run

CLIENT = "pulsar-client"
TOPIC = "persistent://public/default/events"
SUBSCRIPTION = "reports"
PATTERN = Pattern(seed=6, size_min=8, size_max=4000)
WITHIN_S = 240.0
INSTALL_S = 300.0
_POLL_S = 0.2

BROKER = """\
clusterName=ours
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
metadataStoreSessionTimeoutMillis=5000
managedLedgerDefaultEnsembleSize=3
managedLedgerDefaultWriteQuorum=3
managedLedgerDefaultAckQuorum=2
managedLedgerCacheSizeMB=0
managedLedgerMaxEntriesPerLedger=5000
managedLedgerMinLedgerRolloverTimeMinutes=0
managedLedgerMaxLedgerRolloverTimeMinutes=1
# A killed broker's subscription goes on from what was written last: here it is written at each step, not once a while.
managedLedgerDefaultMarkDeleteRateLimit=0
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
brokerDeduplicationEnabled=true
forceDeleteNamespaceAllowed=true
functionsWorkerEnabled=false
webSocketServiceEnabled=false
transactionCoordinatorEnabled=false
loadBalancerEnabled=false
systemTopicEnabled=false
topicLevelPoliciesEnabled=false
numHttpServerThreads=8
"""


def broker_settings(changed: Mapping[str, str]) -> str:
    """Return the configuration of a broker, with these settings changed or added."""
    lines = [line for line in BROKER.splitlines() if line.partition("=")[0] not in changed]
    return "\n".join([*lines, *(f"{name}={value}" for name, value in changed.items())]) + "\n"


SMALL = ("-Xmx768m", "-XX:MaxDirectMemorySize=768m", "-XX:TieredStopAtLevel=1")
"""Java's flags for a broker whose speed is not measured."""


class Site(Protocol):
    """The cluster of the bookies, and a folder for the files of a broker and its clients."""

    @property
    def uri(self) -> str: ...

    @property
    def data_dir(self) -> Path: ...


class Broker:
    """One broker. Its state outlives it in ledgers and ZooKeeper. ``settings`` are lines of its configuration, and
    ``environment`` has variables of its process."""

    def __init__(
        self,
        cluster: Site,
        settings: str = BROKER,
        *,
        flags: Sequence[str] = SMALL,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._cluster, self._settings, self._flags = cluster, settings, tuple(flags)
        self._environment = environment
        self._tools = toolchain(PULSAR)
        self.port, self.web_port = free_ports(2)
        self._daemon: Daemon | None = None
        self._conf = cluster.data_dir / "broker.conf"
        self._zookeeper = cluster.uri.removeprefix("zk://").partition("/")[0]
        self._ledgers_uri = f"zk+hierarchical://{self._zookeeper}/ledgers"
        self.url, self._web_url = f"pulsar://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.web_port}"

    def initialize(self) -> None:
        """Make Pulsar's records on the ledgers root that our bookies have."""
        self._conf.write_text(
            f"{self._settings}brokerServicePort={self.port}\nwebServicePort={self.web_port}\n"
            f"metadataStoreUrl=zk:{self._zookeeper}\nconfigurationMetadataStoreUrl=zk:{self._zookeeper}\n"
            f"bookkeeperMetadataServiceUri={self._ledgers_uri}\n",
            encoding="utf-8",
        )
        store = f"zk:{self._zookeeper}"
        arguments = ["--cluster", "ours", "--metadata-store", store, "--configuration-metadata-store", store]
        arguments += ["--web-service-url", self._web_url, "--broker-service-url", self.url]
        arguments += ["--existing-bk-metadata-service-uri", self._ledgers_uri]
        arguments += ["--initial-num-stream-storage-containers", "0"]
        main = "org.apache.pulsar.PulsarClusterMetadataSetup"
        run_main(self._tools, main, arguments, within_s=WITHIN_S, flags=QUICK).checked()

    def initialize_transactions(self) -> None:
        """Make the topics of one coordinator of transactions. The broker needs transactionCoordinatorEnabled."""
        main = "org.apache.pulsar.PulsarTransactionCoordinatorMetadataSetup"
        arguments = ["--cluster", "ours", "--configuration-store", f"zk:{self._zookeeper}"]
        arguments += ["--initial-num-transaction-coordinators", "1"]
        run_main(self._tools, main, arguments, within_s=WITHIN_S, flags=QUICK).checked()

    @property
    def web_url(self) -> str:
        return self._web_url

    def start(self) -> None:
        """Start the broker, and wait until it serves."""
        main = "org.apache.pulsar.PulsarBrokerStarter"
        flags = (
            *self._flags,
            "--add-opens=java.base/sun.net=ALL-UNNAMED",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
        )
        flags += ("--add-opens=java.management/sun.management=ALL-UNNAMED",)
        arguments = ["--broker-conf", str(self._conf)]
        self._daemon = Daemon(
            self._tools, main, arguments, self._cluster.data_dir / "broker.log", flags, self._environment
        )
        deadline = time.monotonic() + WITHIN_S
        while not self._answers():
            if not self._daemon.is_running or time.monotonic() > deadline:
                raise KitError("the broker did not start", value=str(self._daemon.log_path))
            time.sleep(_POLL_S)

    def kill(self) -> None:
        if self._daemon:
            self._daemon.kill()

    def _answers(self) -> bool:
        try:
            return self.admin("GET", "brokers/ready") == "ok"
        except (OSError, urllib.error.HTTPError):
            return False

    def admin(self, method: str, path: str, body: bytes | None = None) -> str:
        """Send a request to the broker's admin port, and return the answer. ``body`` is JSON."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        request = urllib.request.Request(f"{self._web_url}/admin/v2/{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text: bytes = answer.read()
        return text.decode()


def install_client(path: Path, wanted: str = CLIENT) -> tuple[Path, str]:
    """Make a venv with Pulsar's client and the extras that ``wanted`` names. Return its Python and the client's
    version."""
    uv, python = str(Path(sys.executable).with_name("uv")), path / "bin" / "python"
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, str(path)],
        [uv, "pip", "install", "--quiet", "--python", str(python), wanted],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        if done.returncode:
            raise KitError(f"uv could not install {wanted}", value=done.stdout + done.stderr)
    say = f"from importlib.metadata import version; print(version({CLIENT!r}))"
    said = subprocess.run([str(python), "-c", say], capture_output=True, text=True, timeout=60, check=True)
    return python, said.stdout.strip()


class Client(Program):
    """A process with Pulsar's client."""

    def __init__(
        self, python: Path, cluster: Site, broker: Broker, name: str, calls: str = "tests.interop.pulsar_calls"
    ) -> None:
        command = ["env", f"PYTHONPATH={child_environment()['PYTHONPATH']}"]
        command += [str(python), "-m", calls]
        super().__init__(name, command, cluster.data_dir / f"{name}.log")
        self.call("connect", url=broker.url)

    def submit_produce(self, first: int, count: int) -> Future[dict[str, Any]]:
        return self.submit(
            "produce", topic=TOPIC, name="writer", first=first, count=count, window=2000, pattern=PATTERN.arguments()
        )

    def produced(self, future: Future[dict[str, Any]], end: int) -> int:
        """Wait until all messages are acknowledged. Return the next number."""
        said = self.result(future, WITHIN_S, "produce")
        assert (said["acked"], said["failures"]) == (end, []), said
        return end

    def wait_acked(self, number: int) -> int:
        deadline = time.monotonic() + WITHIN_S
        while (acked := int(self.call("acked")["acked"])) < number:
            assert time.monotonic() < deadline, f"{acked} messages acknowledged, not {number}"
            time.sleep(0.02)
        return acked

    def read_all(self, end: int) -> None:
        """Read the topic with a reader. It must have all messages and no others."""
        said = self.call("read", within_s=WITHIN_S, topic=TOPIC, count=end, give_up_s=60)
        check(said, 0, end)
        assert not said["more"], "the topic has more messages than were produced"

    def consume(self, first: int, count: int) -> None:
        """Consume and acknowledge the next messages of the subscription."""
        said = self.call("consume", within_s=WITHIN_S, subscription=SUBSCRIPTION, count=count, give_up_s=60)
        check(said, first, first + count)


def check(said: dict[str, Any], first: int, end: int) -> None:
    assert said["wrong"] == -1, f"message {said['wrong']} is out of order"
    assert (said["first"], said["first"] + said["count"]) == (first, end), said
    assert said["checksum"] == PATTERN.checksum(first, end - 1)


def trial(steps: Steps, path: Path) -> None:
    with steps.step("jars and client") as step:
        tools = toolchain(PULSAR)
        python, version = install_client(path / "venv")
        step.found = f"{PULSAR}, {len(tools.jars)} jars; {CLIENT} {version}"
    with LocalCluster(path / "cluster", bookies=4, port=0, zookeeper_port=0) as cluster:
        broker, clients = Broker(cluster), list[Client]()
        try:
            with steps.step("the broker starts") as step:
                broker.initialize()
                broker.start()
                clients += [Client(python, cluster, broker, name) for name in ("producer", "consumer")]
                step.found = f"ledgers {_ledgers(cluster)}"
            _story(steps, cluster, broker, *clients)
        finally:
            for client in clients:
                client.kill()
            broker.kill()


def _story(steps: Steps, cluster: LocalCluster, broker: Broker, producer: Client, consumer: Client) -> None:
    with steps.step("produce and read") as step:
        consumer.call("subscribe", topic=TOPIC, subscription=SUBSCRIPTION)
        end = producer.produced(producer.submit_produce(0, 20_000), 20_000)
        consumer.read_all(end)
        step.found = f"{end} messages in {len(_of_topic(broker))} ledgers"
    with steps.step("a durable subscription, half of it") as step:
        consumer.consume(0, 10_000)
        consumer.call("leave", subscription=SUBSCRIPTION)
        step.found = "10000 messages received and acknowledged"
    with steps.step("a bookie is killed while messages come") as step:
        producing = producer.submit_produce(end, 20_000)
        producer.wait_acked(end + 2000)
        members = _members(cluster, _of_topic(broker)[-1])
        victim = next(bookie for bookie in cluster.bookies if bookie.bookie_id in members[-1])
        victim.kill()
        end = producer.produced(producing, end + 20_000)
        consumer.read_all(end)
        changed = [ledger for ledger in _of_topic(broker) if len(_members(cluster, ledger)) > 1]
        assert changed, "no ensemble changed"
        step.found = f"{end} messages, all read without it; ledgers {changed} have another ensemble"
    with steps.step("the broker is killed while messages come") as step:
        producing = producer.submit_produce(end, 20_000)
        acked = producer.wait_acked(end + 2000)
        broker.kill()
        killed = time.monotonic()
        broker.start()
        end = producer.produced(producing, end + 20_000)
        step.found = f"after {acked} of {end} messages; all acknowledged {time.monotonic() - killed:.0f} s later"
    with steps.step("the subscription goes on where it was") as step:
        consumer.call("subscribe", topic=TOPIC, subscription=SUBSCRIPTION, within_s=WITHIN_S)
        consumer.consume(10_000, end - 10_000)
        step.found = f"messages 10000 to {end - 1}, each once, in order"
    with steps.step("everything is read") as step:
        consumer.read_all(end)
        ledgers = _of_topic(broker)
        victim.start()
        cluster.wait_ready([victim])
        step.found = f"{end} messages in {len(ledgers)} ledgers"
    with steps.step("the topic is deleted, and its ledgers with it") as step:
        producer.kill()
        consumer.kill()
        broker.admin("DELETE", "persistent/public/default/events?force=true")
        deadline = time.monotonic() + 60
        while left := set(ledgers) & set(_ledgers(cluster)):
            assert time.monotonic() < deadline, f"ledgers {sorted(left)} are left"
            time.sleep(_POLL_S)
        step.found = f"{len(ledgers)} ledgers deleted; left: {_ledgers(cluster)}"


def _ledgers(cluster: LocalCluster) -> list[int]:
    with Access(cluster.uri).store() as store:
        return list(store.list_ledgers())


def _of_topic(broker: Broker) -> list[int]:
    said = json.loads(broker.admin("GET", "persistent/public/default/events/internalStats"))
    return [int(ledger["ledgerId"]) for ledger in said["ledgers"]]


def _members(cluster: LocalCluster, ledger_id: int) -> list[tuple[str, ...]]:
    """Return the ensembles of a ledger."""
    with Access(cluster.uri).store() as store:
        return [fragment.ensemble for fragment in store.read_ledger(ledger_id).value.fragments]


def main(words: Sequence[str]) -> int:
    """Run all steps, and return the exit code."""
    return run(parser("scripts/trial interop pulsar", "A Pulsar broker on our bookies.").parse_args(words), trial)
