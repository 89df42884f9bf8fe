# SPDX-License-Identifier: Apache-2.0
"""Processes of a measurement that report their results, a line of JSON each. They end with this process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from bk_core.errors import BookKeeperError

Told = dict[str, float]


def told_by(module_and_arguments: Sequence[str], *, killed: bool = False) -> Iterator[tuple[Told, float]]:
    """Yield each line of ``python -m MODULE ARGUMENTS…`` and the seconds since the process was started.

    ``killed`` means that it must end by SIGKILL. Raises BookKeeperError if it ends otherwise. It is killed if the
    caller stops iterating. Its standard input is a pipe that closes however this process ends
    (``bk_cli.local.lifeline``).
    """
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", *module_and_arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                yield json.loads(line), time.perf_counter() - began
        except BaseException:
            child.kill()
            raise
        code = child.wait()
    if code != (-9 if killed else 0):
        raise BookKeeperError("a process of the measurement failed", value=f"{module_and_arguments[0]}: exit {code}")
