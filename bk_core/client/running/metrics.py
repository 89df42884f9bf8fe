# SPDX-License-Identifier: Apache-2.0
"""The counters of a client, as a plain snapshot and as Prometheus' text.

Drivers add to plain numbers, once a frame or less often. The protocol's machines do not count. The client opens no
port. A program that serves metrics adds this text, or the numbers, to its own metrics.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from time import monotonic

from bk_core.errors import BookKeeperError
from bk_core.model import LedgerId
from bk_core.observe.metrics import Histogram, Metric, Scrape
from bk_core.observe.slow_log import SlowLog

logger = logging.getLogger("bk_core.client.slow")

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


def _counter(help_text: str) -> int:
    """Return a field that counts from 0."""
    counter: int = field(default=0, metadata={"help": help_text})
    return counter


def _histogram() -> Histogram:
    return Histogram(SECONDS)


@dataclass(slots=True)
class ClientMetrics:
    """The counters of one client since it was made.

    ``appended_*`` count the entries that writers sent, and ``confirmed_entries`` those that were confirmed.
    ``append_seconds`` is the time from sending the oldest frame of a burst to its confirmation. ``sessions_broken``
    counts the connections to bookies that broke while a writer used them, and ``sessions_refused`` the sessions of
    writers that a bookie ended. ``ensemble_changes`` and ``underreplicated_marks`` count those of writers.
    ``writers_failed`` counts failed writers by the code of the error. ``read_seconds`` is the time from the call until
    the first entries came. ``slow_operations`` counts operations that took ``slow_operation_ms`` or longer.
    """

    ledgers_created: int = _counter("Ledgers created")
    ledgers_opened: int = _counter("Ledgers opened for reading")
    ledgers_deleted: int = _counter("Ledgers deleted")
    appended_entries: int = _counter("Entries sent to bookies")
    appended_bytes: int = _counter("Payload bytes of entries sent to bookies")
    appended_frames: int = _counter("Frames in which entries were sent")
    confirmed_entries: int = _counter("Entries confirmed by an ack quorum")
    append_seconds: Histogram = field(
        default_factory=_histogram,
        metadata={"help": "Seconds from sending the oldest frame of a burst to its confirmation"},
    )
    sessions_broken: int = _counter("Connections to bookies that broke while a writer used them")
    sessions_refused: int = _counter("Sessions of writers that a bookie ended")
    ensemble_changes: int = _counter("Times that a writer replaced bookies of its ledger")
    underreplicated_marks: int = _counter("Ledgers marked as lacking copies")
    writers_failed: dict[str, int] = field(default_factory=dict, metadata={"help": "Writers that ended with an error"})
    read_entries: int = _counter("Entries read")
    read_bytes: int = _counter("Bytes of the entries, or parts of entries, that were read")
    read_seconds: Histogram = field(
        default_factory=_histogram, metadata={"help": "Seconds from the call of a read to its first entries"}
    )
    reads_failed: int = _counter("Reads that ended with an error")
    recoveries: int = _counter("Recoveries of ledgers that began")
    recoveries_failed: int = _counter("Recoveries that ended with an error")
    recovered_entries: int = _counter("Entries written back by recoveries")
    slow_operations: int = _counter("Operations that took slow_operation_ms or longer")

    def snapshot(self) -> ClientMetrics:
        """Return a copy of the counters, which does not change."""
        twin = copy.copy(self)
        twin.append_seconds, twin.read_seconds = self.append_seconds.copy(), self.read_seconds.copy()
        twin.writers_failed = dict(self.writers_failed)
        return twin

    def text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the counters in Prometheus' text format. Each sample gets ``labels``."""
        names = tuple(labels or ())
        found = Scrape([metric._replace(labels=(*names, *metric.labels)) for metric in METRICS])
        said = tuple((labels or {}).values())
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, dict):
                for code, count in value.items():
                    found.put(_name(each.name), count, *said, code)
            else:
                found.put(_name(each.name), value, *said)
        return found.text()


class Observer:
    """The counters of a client, and its log of slow operations."""

    __slots__ = ("counts", "slow", "slow_s")

    def __init__(self, slow_operation_ms: float = 0) -> None:
        self.counts = ClientMetrics()
        self.slow = SlowLog(logger, slow_operation_ms / 1000)
        self.slow_s = self.slow.threshold_s

    @contextmanager
    def recovery(self, ledger_id: LedgerId) -> Iterator[Callable[[int], None]]:
        """Count a recovery, and log it if it is slow. Yields a function to call with the number of entries written
        back."""
        counts, began = self.counts, monotonic()
        counts.recoveries += 1

        def written(entries: int) -> None:
            counts.recovered_entries += entries

        try:
            yield written
        except BookKeeperError:
            counts.recoveries_failed += 1
            raise
        finally:
            if (took_s := monotonic() - began) >= self.slow_s:
                self.was_slow(lambda: f"recovery of ledger {ledger_id} took {took_s * 1000:,.0f} ms")

    def was_slow(self, text: Callable[[], str]) -> None:
        self.counts.slow_operations += 1
        self.slow.say(text)


def _name(field_name: str) -> str:
    return f"bookkeeper_client_{field_name}{'' if field_name.endswith('_seconds') else '_total'}"


METRICS: tuple[Metric, ...] = tuple(
    Metric(
        _name(each.name),
        "histogram" if each.name.endswith("_seconds") else "counter",
        each.metadata["help"],
        ("code",) if each.name == "writers_failed" else (),
    )
    for each in fields(ClientMetrics)
)
