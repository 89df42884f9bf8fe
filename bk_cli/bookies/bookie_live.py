# SPDX-License-Identifier: Apache-2.0
"""``bk bookie inspect ID``: prints what a running bookie reports at its admin port."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from bk_cli import output
from bk_cli.access import Access
from bk_core.cluster.admin_ports import AdminPorts, Numbers, admin_endpoint, quantile_since
from bk_core.errors import InvalidArgumentError, RemoteProtocolError
from bk_core.model import BookieId, Endpoint

DEADLINE_S = 5.0
"""The seconds that the bookie's admin port has for its answer."""


def inspect(access: Access, bookie_id: BookieId, *, as_json: bool) -> int:
    """Print what the bookie reports. Return 1 if it is not ready, otherwise 0."""
    with access.store() as store:
        info = store.bookie_info(bookie_id)
        known = sorted({*store.known_bookies(), *store.writable_bookies(), *store.read_only_bookies()})
    if info is None:
        near = f"this cluster has {', '.join(known[:10]) or 'no bookies'}"
        raise InvalidArgumentError(
            "this is neither a data directory nor a bookie that is registered", value=bookie_id, remedy=near
        )
    ports = access.admin_ports(DEADLINE_S)
    numbers = ports.scrape([info])[info.bookie_id]
    if not isinstance(numbers, Numbers):
        raise numbers
    endpoint = admin_endpoint(info)
    assert endpoint is not None, "a bookie without one raises above"
    settings = _settings(ports, endpoint)
    facts = facts_of(numbers)
    if as_json:
        output.print_json({"bookieId": info.bookie_id, **facts, "settings": settings})
    else:
        shown = {"bookie": info.bookie_id, "admin port": endpoint.url}
        output.print_facts(shown | {name: _shown(name, value) for name, value in facts.items()})
        _note_settings(settings)
    return 0 if facts["ready"] else 1


def _settings(ports: AdminPorts, endpoint: Endpoint) -> dict[str, Any]:
    text = asyncio.run(ports.get(endpoint, "/config"))
    try:
        found = json.loads(text)
    except ValueError as error:
        raise RemoteProtocolError("the settings are not JSON", value=text[:80]) from error
    if not isinstance(found, dict):
        raise RemoteProtocolError("the settings are not an object", value=text[:80])
    return found


def facts_of(numbers: Numbers) -> dict[str, object]:
    """Return the most useful numbers by name. A number that the bookie does not report is None."""
    total = numbers.total
    started, status = total("process_start_time_seconds"), total("bookkeeper_server_SERVER_STATUS")
    return {
        "version": numbers.label("bookie_info", "version"),
        "ready": total("bookie_ready") == 1,
        "status": None if status is None else {1: "writable", 0: "read-only"}.get(int(status), "starting"),
        "startedMs": None if started is None else int(started * 1000),
        "ledgers": total("bookie_ledgers_count"),
        "sessions": total("bookie_sessions"),
        "streams": total("bookie_streams"),
        "addsInFlightBytes": total("bookie_adds_in_flight_bytes"),
        "addsWaitingBytes": total("bookie_adds_waiting_bytes"),
        "readsActive": total("bookie_reads_active"),
        "entriesAdded": total("bookkeeper_server_ADD_ENTRY_REQUEST_count"),
        "commitP50Ms": _ms(quantile_since(None, numbers, "bookie_commit_seconds", 0.5)),
        "commitP99Ms": _ms(quantile_since(None, numbers, "bookie_commit_seconds", 0.99)),
        "totalBytes": total("bookie_directory_total_bytes"),
        "usableBytes": total("bookie_directory_usable_bytes"),
        "liveBytes": total("bookie_storage_live_bytes"),
        "deadBytes": total("bookie_storage_dead_bytes"),
        "segmentsSealed": total("bookie_storage_segments_sealed"),
        "ledgersInLimbo": total("bookie_ledgers_in_limbo"),
        "repairsRunning": total("bookie_replication_running"),
        "isAuditor": None if (auditor := total("bookie_auditor")) is None else auditor == 1,
        "loopSilentS": total("bookie_loop_silent_seconds"),
        "memoryBytes": total("process_resident_memory_bytes"),
        "openFiles": total("process_open_fds"),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None or seconds == float("inf") else round(seconds * 1000, 3)


def _shown(name: str, value: object) -> object:
    if name == "startedMs" and isinstance(value, int):
        return output.moment(value)
    if name.endswith("Bytes") and isinstance(value, float):
        return output.in_words(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"
    return "-" if value is None else value


def _note_settings(settings: dict[str, Any]) -> None:
    if sys.stdout.isatty():
        output.print_note(f"{len(settings)} settings: --json shows them")
