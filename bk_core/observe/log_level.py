# SPDX-License-Identifier: Apache-2.0
"""Shows and sets the levels of loggers in a running process, and sets them back to their first levels."""

from __future__ import annotations

import logging
import signal

from bk_core.errors import InvalidArgumentError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
BACK = "BACK"
"""The level name that sets a logger back to the level that it had before this module first set it."""

logger = logging.getLogger(__name__)
_before: dict[str, int] = {}  # logger → its level before it was first set here


def set_level(level: str, name: str = "") -> None:
    """Set the level of a logger and of the loggers below it. With an empty ``name``, set the level of the root, and so
    of all loggers. Raises InvalidArgumentError for an unknown level or logger."""
    level = level.upper()
    if level not in (*LEVELS, BACK):
        raise InvalidArgumentError(
            "there is no such level", value=f"level={level[:40]!r}", remedy=f"one of {', '.join(LEVELS)}, or {BACK}"
        )
    if name and name not in logging.Logger.manager.loggerDict:
        known = sorted({each.partition(".")[0] for each in logging.Logger.manager.loggerDict if each.startswith("bk")})
        raise InvalidArgumentError(
            "there is no such logger", value=f"logger={name[:80]!r}", remedy=f"write for example {', '.join(known)}"
        )
    found = logging.getLogger(name or None)
    if level == BACK:
        found.setLevel(_before.pop(name, found.level))
    else:
        _before.setdefault(name, found.level)
        found.setLevel(level)
    logger.warning("the level of %s is now %s", name or "all loggers", logging.getLevelName(found.level))


def log_as_server() -> None:
    """Log from INFO on, because operators read a server's log later. SIGUSR1 sets the root's level to DEBUG, and
    SIGUSR2 sets it back (decision 0058). The caller must be the main thread."""
    root = logging.getLogger()
    root.setLevel(min(root.level, logging.INFO))
    signal.signal(signal.SIGUSR1, lambda *_: set_level("DEBUG"))
    signal.signal(signal.SIGUSR2, lambda *_: set_level(BACK))


def levels() -> dict[str, object]:
    """Return the root's level, and by logger the levels that :func:`set_level` has set."""
    set_here = {name: logging.getLevelName(logging.getLogger(name).level) for name in _before if name}
    return {"level": logging.getLevelName(logging.getLogger().level), "loggers": set_here}
