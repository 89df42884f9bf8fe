# SPDX-License-Identifier: Apache-2.0
"""How this package is installed, in the words that help, errors and remedies use. Pure.

The package is on no index, so ``pip install`` with its name would fail. Once it is on one, this page and
``tests/repo/test_readme.py`` change.
"""

from __future__ import annotations


def pip_install(extra: str = "") -> str:
    """The command that installs the package, with an extra if one is named."""
    return f"pip install '.[{extra}]'" if extra else "pip install ."


def how_to_install(extra: str = "") -> str:
    """A remedy: what to type to have the package with this extra, and where."""
    return f"in the checkout of pyspark-bookkeeper type: {pip_install(extra)} (or name a wheel in place of the dot)"
