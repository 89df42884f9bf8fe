# SPDX-License-Identifier: Apache-2.0
"""The place of the trial: our bookies, a Pulsar broker, its client, one topic, and two readers."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bk_cli.access import Access
from bk_cli.local.cluster import LocalCluster
from bk_core.pulsar.cluster import PulsarAccess
from tests.interop.pulsar import Broker, Client, broker_settings, install_client
from tests.kit.waiting import comes_true
from tests.trials.topics.judge import Content, Id, Seen, differing
from tests.trials.topics.readers import Stream, Tail

TOPIC = "persistent://public/default/followed"
SUBSCRIPTION = "keeper"
"""A subscription that keeps what the readers have not read. A trim deletes only what lies before it."""
BOOKIES = 4
PARTITIONS, PARTITIONS_MAX = 2, 6
KEYS = 20
RETENTION = '{{"retentionTimeInMinutes":{0},"retentionSizeInMB":{0}}}'
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "200",
    # so that no cursor of the broker's own keeps ledgers from being trimmed
    "brokerDeduplicationEntriesInterval": "50",
    "brokerDeleteInactiveTopicsEnabled": "false",
}
ASK_S = 0.1
"""The seconds between two looks at what readers or the broker have done."""
CATCH_UP_S = 90.0
"""How many seconds after the last acknowledgement a reader may take. Half of it is for a restart of Spark."""


@dataclass(slots=True)
class Session:
    """A session of a producer, and the file of its acknowledged messages."""

    number: int
    acks: Path

    def acked(self) -> dict[Content, tuple[int, Id] | None]:
        """Return the acknowledged messages, with partition and id if the broker returned these."""
        found = dict[Content, tuple[int, Id] | None]()
        for line in self.acks.read_text(encoding="utf-8").splitlines():
            number, partition, ledger, entry, index = map(int, line.split())
            place = None if ledger < 0 else (partition, Id(ledger, entry, index))
            found[Content(self.number, number)] = place
        return found


class Place:
    """The place, as a context manager. Both readers follow the topic from its first message on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partitions = PARTITIONS
        self._stack = ExitStack()
        self._sessions = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            python, _ = install_client(self.path / "venv")
            self.cluster = stack.enter_context(
                LocalCluster(self.path / "cluster", bookies=BOOKIES, port=0, zookeeper_port=0)
            )
            self.broker = Broker(self.cluster, broker_settings(SETTINGS))
            stack.callback(self.broker.kill)
            self.broker.initialize()
            self.broker.start()
            self._client = Client(python, self.cluster, self.broker, "producer", "tests.trials.topics.producer")
            stack.callback(self._client.kill)
            self.admin("PUT", f"{self._topic()}/partitions", str(PARTITIONS))
            self.admin("PUT", f"{self._topic()}/subscription/{SUBSCRIPTION}")
            self._follow(stack)
            self._stack = stack.pop_all()
        return self

    def _follow(self, stack: ExitStack) -> None:
        bookkeeper = stack.enter_context(Access(self.cluster.uri).client())
        options = {"metadataServiceUri": self.cluster.uri, "pulsarAdminUrl": self.broker.web_url, "topic": TOPIC}
        self.stream = Stream(
            self.path / "stream", {**options, "startingOffsets": "earliest", "includeMetadata": "true"}
        )
        stack.callback(self.stream.kill)
        self.stream.start()
        self.tail = Tail(bookkeeper.topic(TOPIC, access=PulsarAccess(admin_url=self.broker.web_url)))
        stack.callback(self.tail.close)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- the topic ---

    def _topic(self, partition: int | None = None) -> str:
        return "persistent/public/default/followed" + ("" if partition is None else f"-partition-{partition}")

    def admin(self, method: str, path: str, body: str | None = None) -> str:
        return self.broker.admin(method, path, None if body is None else body.encode())

    def ledgers(self, partition: int) -> list[int]:
        """Return the ledgers that the broker names."""
        said = json.loads(self.admin("GET", f"{self._topic(partition)}/internalStats"))
        return [int(each["ledgerId"]) for each in said["ledgers"]]

    def add_partition(self) -> None:
        self.partitions += 1
        self.admin("POST", f"{self._topic()}/partitions", str(self.partitions))

    def trim(self) -> int:
        """Trim the ledgers that both readers have read to their ends. Return how many ledgers are gone."""
        before = {partition: self.ledgers(partition) for partition in range(self.partitions)}
        for partition in before:
            read = [each.get(partition) for each in (self.stream.safe, self.tail.seen.last)]
            if (last := min((id for id in read if id is not None), default=None)) is not None and None not in read:
                position = {"ledgerId": last.ledger_id, "entryId": last.entry_id, "partitionIndex": partition}
                path = f"{self._topic(partition)}/subscription/{SUBSCRIPTION}/resetcursor"
                self.admin("POST", path, json.dumps(position))
        self.admin("POST", "namespaces/public/default/retention", RETENTION.format(0))

        def trimmed() -> int:
            """Ask for a trim again, because the broker takes over the retention a moment later. Return how many ledgers
            are gone."""
            for partition in before:
                self.admin("POST", f"{self._topic(partition)}/trim")
            return sum(len(set(ledgers) - set(self.ledgers(partition))) for partition, ledgers in before.items())

        comes_true(lambda: trimmed() > 0, 5, ASK_S)
        self.admin("POST", "namespaces/public/default/retention", RETENTION.format(-1))
        return trimmed()

    # --- producing ---

    def begin(self, kind: str, per_second: float, size: int) -> Session:
        """Begin a session of a producer."""
        self._sessions += 1
        session = Session(self._sessions, self.path / f"acks-{self._sessions}")
        self._call(
            "begin", topic=TOPIC, session=session.number, keys=KEYS, per_second=per_second, size=size, kind=kind,
            acks=str(session.acks),
        )  # fmt: skip
        return session

    def end(self, session: Session) -> list[str]:
        """End a session. Return a problem if some messages were not acknowledged."""
        said = self._call("end", session=session.number)
        left = said["sent"] - said["acked"]
        return [f"session {session.number}: {left} messages were not acknowledged: {said['failures']}"] if left else []

    def _call(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self._client.call(command, within_s=CATCH_UP_S * 2, **arguments)

    # --- judging ---

    def take(self) -> None:
        self.stream.take()
        self.tail.take()

    @property
    def readers(self) -> tuple[Seen, Seen]:
        return self.stream.seen, self.tail.seen

    def judge(self, session: Session) -> list[str]:
        """Wait until both readers have all acknowledged messages of an ended session. Return the problems."""
        acked = session.acked()

        def is_there() -> bool:
            self.take()
            return not any(each.missing(acked) for each in self.readers)

        comes_true(is_there, CATCH_UP_S, ASK_S)
        for each in self.readers:
            each.check(acked)
        return [problem for each in self.readers for problem in each.take_problems()]

    def finish(self) -> list[str]:
        """Return the problems with all messages, after the last session has ended."""
        time.sleep(2)  # doubles may still come
        self.take()
        found = [problem for each in self.readers for problem in each.take_problems()]
        return found + differing(*self.readers)
