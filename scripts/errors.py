# SPDX-License-Identifier: Apache-2.0
"""Writes ``docs/errors.md`` from :mod:`bk_core.errors`; with ``--check`` it only fails when that page is stale."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "errors.md"
sys.path.insert(0, str(ROOT))

from bk_core import errors  # noqa: E402 - the checkout must come first on the path
from bk_core.transport import port as _port  # noqa: E402, F401 - its RefusedError belongs to the tree

HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Written by scripts/errors.py from bk_core/errors.py; do not edit. -->
# Errors

Every error is one line: `[BK_CODE] what; value; remedy. (not applied | outcome unknown)`. *Not applied* means that the
operation certainly did not happen and may be tried again; *outcome unknown* means that it may have: look before you
repeat it. A particular case may know better than its class, so the line that was printed decides.

`bk` ends with: 0 success · 1 another error · 2 wrong usage or argument · 3 not found · 4 conflict, fenced or closed ·
5 unavailable (metadata store, bookies, quorum, transport) · 6 integrity · 130 interrupted.

| code | class | outcome | exit | meaning |
|---|---|---|---|---|
"""


def classes(base: type[errors.BookKeeperError] = errors.BookKeeperError) -> Iterator[type[errors.BookKeeperError]]:
    """The tree in the order of the file, parents first; a class of two parents stands below the first."""
    yield base
    for child in base.__subclasses__():
        if child.__bases__[0] is base:
            yield from classes(child)


def depth_of(cls: type) -> int:
    return 0 if cls is errors.BookKeeperError else 1 + depth_of(cls.__bases__[0])


def render() -> str:
    from bk_cli.exit_codes import exit_code_of

    rows = []
    for cls in classes():
        meaning = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
        if cls is errors.BookKeeperError:
            meaning = "Base of all errors."
        name = "&nbsp;&nbsp;" * depth_of(cls) + f"`{cls.__name__}`"
        rows.append(f"| `{cls.code}` | {name} | {cls.outcome.value} | {exit_code_of(cls)} | {meaning} |")
    return HEAD + "\n".join(rows) + "\n"


def main() -> int:
    page = render()
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
            print("docs/errors.md is out of date; type: .venv/bin/python scripts/errors.py", file=sys.stderr)
            return 1
        print("docs/errors.md is up to date")
        return 0
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
