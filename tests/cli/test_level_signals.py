# SPDX-License-Identifier: Apache-2.0
"""The log level of a server that runs: signals, and what is set back."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest

from bk_core.errors import InvalidArgumentError
from bk_core.observe import log_level


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    monkeypatch.setattr(log_level, "_before", {})  # another test may have set a level and not set it back
    logger, level = logging.getLogger(), logging.getLogger().level
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield logger
    logger.setLevel(level)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_signals_make_a_server_tell_more_and_then_as_before(root: logging.Logger) -> None:
    root.setLevel(logging.ERROR)
    log_level.log_as_server()
    assert root.level == logging.INFO
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert root.level == logging.DEBUG
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGUSR2)
        assert root.level == logging.INFO
    assert log_level.levels()["level"] == "INFO"


def test_levels_and_loggers_that_there_are_not_are_refused(root: logging.Logger) -> None:
    for level, name in (("LOUD", ""), ("", ""), ("INFO", "no.such.logger")):
        with pytest.raises(InvalidArgumentError, match="there is no such"):
            log_level.set_level(level, name)
