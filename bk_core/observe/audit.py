# SPDX-License-Identifier: Apache-2.0
"""Writes the audit log. Each event is a JSON object with the actor, the action, the object of the action and the
outcome, on a separate logger.

A bookie logs the requests to its ports (``bookie_server/audit.py``). No bookie takes part in a change that is made only
in the metadata store, so the process that makes the change logs it here, on the logger ``bk_core.audit``. No event has
a secret, because passwords, keys, tokens and grants are never fields.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from bk_core.errors import BookKeeperError, InvalidArgumentError, Outcome

logger = logging.getLogger("bk_core.audit")
_file_logger = logging.getLogger("bk_core.audit_file")  # not below ``bk_core.audit``, whose lines may go to the file

DONE, REFUSED, UNKNOWN = "done", "refused", "unknown"

TEXT_MAX = 500
"""The maximum number of characters in a text field. Longer texts are cut, because other clients choose some of them."""

LEDGERS_MAX = 20
"""The maximum number of ledgers that one event names. The event counts all of them."""


_QUEUE_MAX = 10_000
"""The maximum number of lines that wait for the file. Further lines are dropped and counted."""
_CLOSE_S = 3.0
"""The seconds for which closing waits until the queued lines are written."""


def line_of(time_s: float, did: str, outcome: str, **about: object) -> str:
    """Return an event as one line of JSON. Fields without a value are left out."""
    at = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
    shown = {name: _shown(value) for name, value in about.items() if value not in (None, "")}
    return json.dumps({"time": at, "did": did, "outcome": outcome, **shown})


def _shown(value: object) -> object:
    return value[:TEXT_MAX] if isinstance(value, str) else value


@contextlib.contextmanager
def audited(did: str, **about: object) -> Iterator[None]:
    """Log a change of the metadata store when the block ends. If the block raises a BookKeeperError, the outcome is
    "refused" if nothing was changed, otherwise "unknown"."""
    try:
        yield
    except BookKeeperError as error:
        _say(did, REFUSED if error.outcome is Outcome.NOT_APPLIED else UNKNOWN, why=error.code, **about)
        raise
    _say(did, DONE, **about)


def _say(did: str, outcome: str, **about: object) -> None:
    if logger.isEnabledFor(logging.INFO):
        now_s = datetime.now(UTC).timestamp()
        who = {"user": os.getuid(), "host": socket.gethostname(), "pid": os.getpid()}
        logger.info("%s", line_of(now_s, did, outcome, **about, **who))


class AuditFile:
    """Writes lines to a file that only this user can read. When the file has ``bytes_max`` bytes, a new file is begun,
    and ``files_max`` old files are kept. A separate thread writes, because a disk may hang. Lines that do not fit into
    the queue of the thread are lost and counted. The constructor raises InvalidArgumentError if the file cannot be
    written."""

    def __init__(self, path: Path, bytes_max: int, files_max: int) -> None:
        try:
            self._file = _PrivateFile(path, maxBytes=bytes_max, backupCount=files_max, encoding="utf-8")
        except OSError as error:
            raise InvalidArgumentError(
                "the audit log cannot be written",
                value=f"audit_path={path}: {error.strerror or error}",
                remedy="make its directory, writable for this user, or name another file",
            ) from error
        self._lines: queue.Queue[str | None] = queue.Queue(_QUEUE_MAX)
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="bookie-audit", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._lost += 1

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            self._file.emit(_record(line))
            if self._lost:
                lost, self._lost = self._lost, 0
                self._file.emit(_record(line_of(time.time(), "audit", "lost", again=lost)))

    def close(self) -> None:
        """Close the file once all lines are written. If that takes longer than some seconds, log an error and
        return."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_CLOSE_S)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            _file_logger.error("the last lines of the audit log could not be written: the disk hangs")
            return
        try:
            self._file.close()
        except OSError as error:
            _file_logger.error("the last lines of the audit log could not be written: %s", error)


class _PrivateFile(RotatingFileHandler):
    def _open(self) -> Any:
        def private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=private)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name in logging
        _file_logger.error("the audit log misses a line: %s", record.getMessage())


def _record(line: str) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.INFO, __file__, 0, line, None, None)
