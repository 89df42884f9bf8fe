# SPDX-License-Identifier: Apache-2.0
"""Checks whether a Python was built with optimizations (PGO). Without them, an add costs a bookie at least 1.5 times
the processor time, and nothing tells the user. pyenv builds without them unless it is asked for them.

It needs only the standard library, so that ``scripts/bootstrap`` can run it (``python3 -m bk_cli.local.python_build``)
before anything is installed. The exit code is 0 if the Python was built with optimizations.
"""

from __future__ import annotations

import os
import sys
import sysconfig

REMEDY = (
    "use the Python of a distribution, of the official images or of uv; "
    "with pyenv: PYTHON_CONFIGURE_OPTS='--enable-optimizations --with-lto' pyenv install"
)


def built_with_optimizations(executable: str | None = None, configured: str | None = None) -> bool:
    """Return whether a Python was built with optimizations. ``executable`` is its path and ``configured`` are the
    arguments of its ``configure``; both default to those of this Python. A Python in ``/usr/bin`` or ``/bin`` counts as
    optimized, because distributions build it so, and Debian's does not record the argument."""
    path = os.path.realpath(executable or getattr(sys, "_base_executable", "") or sys.executable)
    arguments = sysconfig.get_config_var("CONFIG_ARGS") if configured is None else configured
    return "--enable-optimizations" in (arguments or "") or os.path.dirname(path) in ("/usr/bin", "/bin")


if __name__ == "__main__":
    sys.exit(not built_with_optimizations())
