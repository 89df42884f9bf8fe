# SPDX-License-Identifier: Apache-2.0
"""Whether a Python was built with optimizations (PGO). One that was not takes half as much again of the processor for
an add of a bookie, or more, and nothing tells its user: pyenv builds so unless it is asked otherwise.

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
    """Whether this Python was, if ``executable`` and ``configured``, its arguments to ``configure``, are not given.
    What stands in ``/usr/bin`` is a distribution's, and those build with optimizations; Debian's does not say so."""
    path = os.path.realpath(executable or getattr(sys, "_base_executable", "") or sys.executable)
    arguments = sysconfig.get_config_var("CONFIG_ARGS") if configured is None else configured
    return "--enable-optimizations" in (arguments or "") or os.path.dirname(path) in ("/usr/bin", "/bin")


if __name__ == "__main__":
    sys.exit(not built_with_optimizations())
