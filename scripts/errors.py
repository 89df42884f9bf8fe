# SPDX-License-Identifier: Apache-2.0
"""Writes ``docs/errors.md`` from :mod:`bk_core.errors`. With ``--check`` it only fails if that page is stale."""

from __future__ import annotations

import inspect
import sys
import textwrap
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

Every error is one line: `[BK_CODE] what; value; remedy. (not applied | outcome unknown)`.

- *Not applied*: the operation certainly did not happen. It may be tried again.
- *Outcome unknown*: the operation may have happened. Look before you repeat it.

A particular case may know better than its class, so the line that was printed decides.

## Exit codes

`bk` ends with:

- 0: success
- 1: another error
- 2: wrong usage or argument
- 3: not found
- 4: conflict, fenced or closed
- 5: unavailable (metadata store, bookies, quorum, transport)
- 6: integrity
- 7: denied: no role gives the right
- 130: interrupted

`bk bookie run` also ends with 70 after a bug of ours, and with 74 when its disk failed
([what to do](bookie.md#failing-disks)).

## Codes

In brackets: the outcome of the class, and the exit code of `bk`. An error stands below its base.

"""
COLUMNS = 100


def classes(base: type[errors.BookKeeperError] = errors.BookKeeperError) -> Iterator[type[errors.BookKeeperError]]:
    """Yield the tree in the order of the file, parents first. A class with two parents comes below the first."""
    yield base
    for child in base.__subclasses__():
        if child.__bases__[0] is base:
            yield from classes(child)


def depth_of(cls: type) -> int:
    return 0 if cls is errors.BookKeeperError else 1 + depth_of(cls.__bases__[0])


def render() -> str:
    from bk_cli.exit_codes import exit_code_of

    items = []
    for cls in classes():
        meaning = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
        if cls is errors.BookKeeperError:
            meaning = "Base of all errors."
        indent = "  " * depth_of(cls)
        item = f"- **`{cls.code}`** `{cls.__name__}` ({cls.outcome.value}, {exit_code_of(cls)}): {meaning}"
        items += textwrap.wrap(
            item,
            COLUMNS,
            initial_indent=indent,
            subsequent_indent=indent + "  ",
            break_on_hyphens=False,
            break_long_words=False,
        )
    return HEAD + "\n".join(items) + "\n"


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
