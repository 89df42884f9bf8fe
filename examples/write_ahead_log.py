# SPDX-License-Identifier: Apache-2.0
"""A key-value store with a write-ahead log, snapshots and a warm standby: ``python -m examples.write_ahead_log URI``.

The leader logs each change before it applies it, and keeps snapshots. A standby tails the log without disturbing the
leader. When the leader is gone, the standby takes over by fencing, reads the changes that it had not seen, and
continues. The old leader, if it is still alive, cannot append to the log.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from pathlib import Path

from bk_core.blocking import BookKeeper, connect
from bk_core.blocking.logs import NamedLog
from bk_core.errors import BookKeeperError

LOG = "wal-example"


class Store:
    """The state after all changes were applied, in order, to an empty dict."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.next_offset = 0  # log offset of the next change to apply

    def apply(self, offset: int, change: bytes) -> None:
        if offset < self.next_offset:
            return  # the snapshot has it already
        key, value = json.loads(change)
        self.values[key] = value
        self.next_offset = offset + 1

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"values": self.values, "next_offset": self.next_offset}))

    @classmethod
    def load(cls, path: Path) -> Store:
        store = cls()
        if path.exists():
            saved = json.loads(path.read_text())
            store.values, store.next_offset = saved["values"], saved["next_offset"]
        return store


class Leader:
    """The process that logs each change and then applies it."""

    def __init__(self, log: NamedLog, store: Store) -> None:
        self.leader, self.store = log.lead(), store  # fences the previous leader
        for offset, batch in log.read(store.next_offset, self.leader.next_offset):  # the changes that the store lacks
            for k, change in enumerate(batch.to_list()):
                store.apply(offset + k, change)

    def put(self, key: str, value: str) -> None:
        change = json.dumps([key, value]).encode()
        self.store.apply(self.leader.append(change), change)  # on disk on two bookies before it is applied


class Standby(threading.Thread):
    """A thread that follows the log without fencing, so that it is nearly up to date when it has to take over."""

    def __init__(self, bookkeeper: BookKeeper, snapshot: Path) -> None:
        super().__init__(daemon=True)
        self.log = bookkeeper.log(LOG)
        self.store = Store.load(snapshot)
        self._tail = self.log.tail(self.store.next_offset)
        self._done = False

    def run(self) -> None:
        for offset, batch in self._tail:
            for k, change in enumerate(batch.to_list()):
                self.store.apply(offset + k, change)
            if self._done:
                return

    def take_over(self) -> Leader:
        """Stop following and lead."""
        self._done = True
        return Leader(self.log, self.store)


def main(uri: str) -> None:
    with connect(uri) as first, connect(uri) as second, tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder) / "snapshot.json"
        log = first.log(LOG)
        log.create()
        leader = Leader(log, Store())
        for i in range(100):
            leader.put(f"key {i % 10}", f"value {i}")
        leader.store.save(snapshot)

        standby = Standby(second, snapshot)
        standby.start()
        for i in range(100, 150):
            leader.put(f"key {i % 10}", f"value {i}")

        successor = standby.take_over()  # the first leader is alive and does not know about it
        assert successor.store.values == leader.store.values, "the standby saw every change"
        try:
            leader.put("key 0", "from the past")
        except BookKeeperError as error:
            print("the old leader gets:", error)
        successor.put("key 0", "from the new leader")
        print("changes logged:", successor.store.next_offset, "key 0 =", successor.store.values["key 0"])
        successor.leader.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
