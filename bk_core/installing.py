# SPDX-License-Identifier: Apache-2.0
"""The commands that install this package, as help texts, errors and remedies show them. Pure.

The package is on no index, so ``pip install`` with its name would fail. Once it is on one, this file and
``tests/repo/test_readme.py`` must change.
"""

from __future__ import annotations


def pip_install(extra: str = "") -> str:
    """Return the command that installs the package, with an extra if one is named."""
    return f"pip install '.[{extra}]'" if extra else "pip install ."


def how_to_install(extra: str = "") -> str:
    """Return a remedy that says where to type which command to install the package with this extra."""
    return f"in the checkout of pyspark-bookkeeper type: {pip_install(extra)} (or name a wheel in place of the dot)"
