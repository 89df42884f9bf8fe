# SPDX-License-Identifier: Apache-2.0
"""Has the commands that install this package, for help texts, errors and remedies. Pure.

The package is on no index, so ``pip install`` with its name would fail. Once it is on an index, this file and
``tests/repo/test_readme.py`` must change.
"""

from __future__ import annotations


def pip_install(extra: str = "") -> str:
    """Return the command that installs the package, with ``extra`` if it is not empty."""
    return f"pip install '.[{extra}]'" if extra else "pip install ."


def how_to_install(extra: str = "") -> str:
    """Return a remedy with the command that installs the package with this extra, and the directory to type it in."""
    return f"in the checkout of pyspark-bookkeeper type: {pip_install(extra)} (or name a wheel in place of the dot)"
