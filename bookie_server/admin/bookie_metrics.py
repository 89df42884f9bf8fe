# SPDX-License-Identifier: Apache-2.0
"""All metrics of a bookie, and the code that reads each for a scrape. docs/bookie.md explains them; a test compares.

Names are Apache's if the meaning is the same. The other names begin with ``bookie_``, or are Prometheus's names for the
metrics of any process.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields

from bk_core.errors import BookKeeperError
from bk_core.metadata.unreadable import NodeKind
from bk_core.observe.metrics import Metric, Scrape
from bookie_server.admin.bookie_view import BookieView
from bookie_server.admin.health import STALLED_S
from bookie_server.engine.engine import BookieEngine
from bookie_server.machine import events
from bookie_server.ports.bounds.hang_up import files_open
from bookie_server.ports.bounds.memory_bounds import resident_bytes
from bookie_server.storage.maintenance.index_port import Stopping
from bookie_server.storage.maintenance.storage_stats import StorageStats

REQUESTS: dict[str, type[events.Event]] = {
    "attach": events.SessionAttached,
    "add": events.FramesArrived,
    "read": events.ReadRequested,
    "fence": events.FenceRequested,
    "read_lac": events.ReadLacRequested,
    "write_lac": events.WriteLacRequested,
    "watch_lac": events.WatchLacRequested,
    "delete_hint": events.DeleteHintRequested,
}
"""The event of each value of the label ``kind``. An ``add`` is a message with frames of any number of entries."""

_STORAGE_GAUGES = frozenset(
    {
        *("segments_sealed", "segments_unsealed", "segments_drained", "segments_kept_free", "segments_spare"),
        *("live_bytes", "dead_bytes", "checkpoint_number", "checkpoint_bytes", "checkpoint_age_s"),
        "index_memory_bytes",
    }
)
_D = ("directory",)

METRICS: tuple[Metric, ...] = (
    Metric("bookie_info", "gauge", "1; its labels name this bookie", ("bookie", "version")),
    Metric("bookkeeper_server_SERVER_STATUS", "gauge", "1: writable, 0: read-only, -1: not registered", apache=True),
    Metric("bookie_ready", "gauge", "1 if the bookie is ready, as at /ready"),
    Metric("bookie_loop_silent_seconds", "gauge", "How long the loop has not run, 0 if it runs"),
    Metric("bookie_loop_late_max_seconds", "gauge", "The longest time that the loop did not run, since the start"),
    Metric("bookie_loop_stalls_total", "counter", f"How often the loop did not run for {STALLED_S:.0f} s"),
    # requests of clients
    Metric("bookie_requests_total", "counter", "Requests of all lanes that reached the machine", ("kind",)),
    Metric(
        "bookkeeper_server_ADD_ENTRY_REQUEST_count", "counter", "Entries added and durable", ("success",), apache=True
    ),
    Metric("bookie_WRITE_BYTES", "counter", "Bytes of added frames that are durable", apache=True),
    Metric("bookie_READ_BYTES", "counter", "Bytes of frames in answers to reads", apache=True),
    Metric("bookie_read_parts_total", "counter", "Parts of answers to reads"),
    Metric("bookie_adds_refused_total", "counter", "Sessions of writers ended by a refusal", ("reason",)),
    # work in progress
    Metric("bookie_adds_in_flight_frames", "gauge", "Frames that wait for a group commit"),
    Metric("bookie_adds_in_flight_bytes", "gauge", "Bytes of the frames that wait for a group commit"),
    Metric("bookie_adds_waiting_bytes", "gauge", "Bytes of messages held up because too much is in flight"),
    Metric("bookie_sessions", "gauge", "Open sessions of writers and recoveries"),
    Metric("bookie_reads_active", "gauge", "Parts of answers that are planned, read or sent"),
    Metric("bookie_reads_bytes", "gauge", "Bytes of the parts that were read"),
    Metric("bookie_ledgers_active", "gauge", "Ledgers with sessions, requests or frames on their way"),
    # clients
    Metric("bookie_streams", "gauge", "Streams of clients over all lanes"),
    Metric("bookie_connections_most", "gauge", "Most connections at once, counted from one address's share upwards"),
    Metric("bookie_connections_full_total", "counter", "Seconds in which all connections were taken"),
    Metric("bookie_connections_ended_total", "counter", "Connections ended because they were beyond a bound"),
    Metric("bookie_limit_held_total", "counter", "Times that a client was not read for a while", ("limit",)),
    Metric("bookie_limit_refused_total", "counter", "Refusals because of a client's limit", ("limit",)),
    Metric("bookie_limited_clients", "gauge", "Identities and addresses whose use is counted"),
    # commits
    Metric("bookie_commit_seconds", "histogram", "Time of a group commit: write and sync", _D),
    Metric("bookie_commit_groups_total", "counter", "Group commits", _D),
    Metric("bookie_commit_frames_total", "counter", "Frames in group commits, with copies of compaction", _D),
    Metric(
        "bookie_commit_frame_bytes_total", "counter", "Bytes of frames in group commits, with copies of compaction", _D
    ),
    Metric("bookie_commit_written_bytes_total", "counter", "Bytes written for group commits: groups and headers", _D),
    Metric("bookie_slow_operations_total", "counter", "Commits and reads that took slow_operation_ms or longer"),
    # ledgers and disks
    Metric("bookie_ledgers_count", "gauge", "Ledgers held", apache=True),
    Metric("bookie_directory_ledgers", "gauge", "Ledgers held", _D),
    Metric("bookie_ACTIVE_ENTRY_LOG_TOTAL", "gauge", "Sealed segments with live frames", apache=True),
    Metric("bookie_ledgers_forgotten_total", "counter", "Deleted ledgers that the bookie has forgotten"),
    Metric("bookie_copies_given_up_total", "counter", "Copies given up because their ledgers live on other bookies"),
    Metric("bookie_directory_total_bytes", "gauge", "Size of the file system at the last check", _D),
    Metric("bookie_directory_usable_bytes", "gauge", "Bytes that can still be written, at the last check", _D),
    Metric("bookie_directory_writable", "gauge", "0 if it takes no new entries", _D),
    *(
        Metric(
            f"bookie_storage_{field.name}",
            "gauge" if field.name in _STORAGE_GAUGES else "counter",
            f"{field.name} of the line storage:",
            _D,
        )
        for field in fields(StorageStats)
    ),
    # own copies
    Metric("scrubber_detectedScrubErrors", "counter", "Bad frames and index blocks that scrubbing found", apache=True),
    Metric("bookie_ledgers_in_limbo", "gauge", "Ledgers whose copies here are incomplete because of limbo"),
    Metric("bookie_ledgers_damaged", "gauge", "Ledgers whose copies here are incomplete for another reason"),
    Metric("bookie_ledgers_suspected", "gauge", "Ledgers whose copies here are checked now and then"),
    Metric("bookie_own_copies_marked_total", "counter", "Marks that this bookie made for its own copies"),
    Metric("bookie_own_copies_healed_total", "counter", "Copies here that were incomplete and are whole again"),
    # auto-recovery
    Metric(
        "replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED", "counter", "Ledgers repaired here", apache=True
    ),
    Metric("bookie_replication_entries_total", "counter", "Entries copied by repairs here"),
    Metric("bookie_replication_bytes_total", "counter", "Bytes copied by repairs here"),
    Metric("bookie_replication_running", "gauge", "Repairs under way here"),
    Metric("bookie_replication_blocked", "gauge", "Blocked repairs here; the log says why"),
    Metric("bookie_auditor", "gauge", "1 if this process is the cluster's auditor"),
    Metric("bookie_auditor_marked_total", "counter", "Ledgers that the auditor here marked"),
    # the metadata store
    Metric("bookie_metadata_unreadable_nodes", "gauge", "Nodes that this process found and could not read", ("kind",)),
    # upkeep of logs
    Metric("bookie_upkeep", "gauge", "1 if this process keeps the logs of the cluster"),
    Metric("bookie_upkeep_deleted_ledgers_total", "counter", "Ledgers that upkeep here deleted"),
    Metric("bookie_upkeep_copied_bytes_total", "counter", "Bytes that upkeep here copied into merged ledgers"),
    Metric("bookie_upkeep_failures_total", "counter", "Steps of upkeep that failed here; the log says why"),
    # the process
    Metric("process_cpu_seconds_total", "counter", "CPU time, of user and system"),
    Metric("process_resident_memory_bytes", "gauge", "Memory in use"),
    Metric("process_open_fds", "gauge", "Open files"),
    Metric("process_start_time_seconds", "gauge", "The time of the start, in seconds since 1970"),
)


def scrape(view: BookieView) -> str:
    """Return the text of all metrics. Do not call this on the bookie's loop, because it waits for the loop's answer
    about the indexes."""
    found = Scrape(METRICS)
    for put in (_state, _clients, _process, _metadata, _disks, _garbage, _own_copies, _healing, _upkeep):
        put(found, view)
    if view.engine is not None:
        _machine(found, view.engine)
        _logs(found, view, view.engine)
    return found.text()


def _state(found: Scrape, view: BookieView) -> None:
    health = view.health()
    found.put("bookie_info", 1, view.bookie_id, view.version)
    status = -1 if not view.serves() else 0 if view.why_read_only() else 1
    found.put("bookkeeper_server_SERVER_STATUS", status)
    found.put("bookie_ready", int(not health.not_ready()))
    found.put("bookie_loop_silent_seconds", round(view.pulse.silent_s, 3))
    found.put("bookie_loop_late_max_seconds", round(view.pulse.late_max_s, 3))
    found.put("bookie_loop_stalls_total", view.pulse.stalls)


def _clients(found: Scrape, view: BookieView) -> None:
    connections = view.clients.connections
    found.put("bookie_connections_most", connections.most)
    found.put("bookie_connections_full_total", connections.looks_full)
    found.put("bookie_connections_ended_total", connections.ended)
    limits = view.clients.limits
    for limit, count in list(limits.held_count.items()):
        found.put("bookie_limit_held_total", count, limit)
    for limit, count in list(limits.refused_count.items()):
        found.put("bookie_limit_refused_total", count, limit)
    found.put("bookie_limited_clients", len(limits))


def _metadata(found: Scrape, view: BookieView) -> None:
    """Put the number of unreadable nodes of each kind. It is 0 if there are none, so that an alert has a series."""
    nodes = {(node.kind, node.path) for each in tuple(view.unreadable) for node in each.nodes()}
    counts = Counter(kind for kind, _ in nodes)
    for kind in NodeKind:
        found.put("bookie_metadata_unreadable_nodes", counts[kind], kind.value)


def _process(found: Scrape, view: BookieView) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    found.put("process_cpu_seconds_total", round(used.ru_utime + used.ru_stime, 3))
    found.put("process_resident_memory_bytes", resident_bytes())
    found.put("process_open_fds", files_open())
    found.put("process_start_time_seconds", round(view.started_s, 3))


def _disks(found: Scrape, view: BookieView) -> None:
    for path, usage, read_only in view.availability.usages if view.availability is not None else ():
        found.put("bookie_directory_total_bytes", usage.total_bytes, path)
        found.put("bookie_directory_usable_bytes", usage.usable_bytes, path)
        found.put("bookie_directory_writable", int(not read_only), path)


def _garbage(found: Scrape, view: BookieView) -> None:
    if view.garbage is not None:
        found.put("bookie_ledgers_forgotten_total", view.garbage.forgotten)
        found.put("bookie_copies_given_up_total", view.garbage.given_up)


def _own_copies(found: Scrape, view: BookieView) -> None:
    own = view.own_copies
    if own is not None:
        in_limbo, damaged = own.counts()
        found.put("bookie_ledgers_in_limbo", in_limbo)
        found.put("bookie_ledgers_damaged", damaged)
        found.put("bookie_ledgers_suspected", len(own.suspects))
        found.put("bookie_own_copies_marked_total", own.marked)
        found.put("bookie_own_copies_healed_total", own.healed)


def _healing(found: Scrape, view: BookieView) -> None:
    if view.healing is None:
        return
    counts = view.healing()
    found.put("replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED", counts.repaired)
    found.put("bookie_replication_entries_total", counts.copied_entries)
    found.put("bookie_replication_bytes_total", counts.copied_bytes)
    found.put("bookie_replication_running", counts.running)
    found.put("bookie_replication_blocked", counts.blocked)
    found.put("bookie_auditor", int(counts.elected))
    found.put("bookie_auditor_marked_total", counts.marked)


def _upkeep(found: Scrape, view: BookieView) -> None:
    if view.upkeep is None:
        return
    counts = view.upkeep()
    found.put("bookie_upkeep", int(counts.elected))
    found.put("bookie_upkeep_deleted_ledgers_total", counts.deleted_ledgers)
    found.put("bookie_upkeep_copied_bytes_total", counts.copied_bytes)
    found.put("bookie_upkeep_failures_total", counts.failures)


def _machine(found: Scrape, engine: BookieEngine) -> None:
    numbers, counts = engine.numbers(), engine.numbers().counts
    found.put("bookie_streams", engine.streams)
    found.put("bookie_slow_operations_total", engine.slow.count)
    for kind, event in REQUESTS.items():
        found.put("bookie_requests_total", engine.taken[event], kind)
    found.put("bookkeeper_server_ADD_ENTRY_REQUEST_count", counts.added_entries, "true")
    found.put("bookie_WRITE_BYTES", counts.added_bytes)
    found.put("bookie_READ_BYTES", counts.read_bytes)
    found.put("bookie_read_parts_total", counts.read_parts)
    if counts.held:
        found.put("bookie_limit_held_total", counts.held, "in_flight_bytes")
    for reason, count in list(counts.refused.items()):
        found.put("bookie_adds_refused_total", count, reason.name)
    found.put("bookie_adds_in_flight_frames", numbers.frames_in_flight)
    found.put("bookie_adds_in_flight_bytes", numbers.bytes_in_flight)
    found.put("bookie_adds_waiting_bytes", numbers.bytes_waiting)
    found.put("bookie_sessions", numbers.sessions)
    found.put("bookie_reads_active", numbers.parts)
    found.put("bookie_reads_bytes", numbers.parts_bytes)
    found.put("bookie_ledgers_active", numbers.ledgers)


def _logs(found: Scrape, view: BookieView, engine: BookieEngine) -> None:
    ledgers = view.ledgers()
    found.put("bookie_ledgers_count", sum(ledgers))
    for path, count, log in zip(view.paths, ledgers, engine.logs, strict=True):
        stats = log.commit_stats
        found.put("bookie_directory_ledgers", count, path)
        found.put("bookie_commit_seconds", log.committer.times, path)
        found.put("bookie_commit_groups_total", stats.groups, path)
        found.put("bookie_commit_frames_total", stats.frames, path)
        found.put("bookie_commit_frame_bytes_total", stats.frame_bytes, path)
        found.put("bookie_commit_written_bytes_total", stats.written_bytes, path)
    if not view.pulse.stands:  # a loop that stands still would not answer
        _storage(found, [(path, log.storage) for path, log in zip(view.paths, engine.logs, strict=True)])


def _storage(found: Scrape, ask: Iterable[tuple[str, Callable[[], StorageStats]]]) -> None:
    sealed = errors = 0
    for path, storage in ask:
        try:
            stats = storage()
        except (BookKeeperError, Stopping):  # the bookie stops, or is too busy: a missing value must not read as 0
            return
        sealed += stats.segments_sealed
        errors += stats.detected_scrub_errors
        for field in fields(stats):
            value = getattr(stats, field.name)
            if value is not None:
                found.put(f"bookie_storage_{field.name}", value, path)
    found.put("bookie_ACTIVE_ENTRY_LOG_TOTAL", sealed)
    found.put("scrubber_detectedScrubErrors", errors)
