# SPDX-License-Identifier: Apache-2.0
"""docs/configuration.md has every setting. ``scripts/configuration.py --check`` checks that the page is current; this
file tests what its writer makes of a class."""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest

from bk_core.client import ClientConfig
from bk_spark.options.options import OPTIONS
from bookie_server.config import BookieConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
WRITER: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "configuration.py"))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a part.

    **First.** It waits for ``wait_ms``. Then ``cache_bytes`` are kept, see :class:`Settings`. The page omits this.

    **Second.** With ``fast`` it is fast. The key in ``key_path`` is read again without a restart.
    """

    wait_ms: float = 5
    fast: bool = False
    cache_bytes: int = 64 << 20
    """How much is kept (docs/bookie.md#settings)."""
    key_path: str | None = None
    beside: str = "fast"
    """In the chapter of the setting before it."""


def test_a_class_becomes_chapters_of_settings_with_type_unit_default_and_meaning() -> None:
    assert WRITER["chapters"](Settings, "restart") == (
        "### First\n\n"
        "- **`wait_ms`** (number; milliseconds; default 5; restart): It waits for `wait_ms`.\n"
        "- **`cache_bytes`** (whole number; bytes; default 64 MiB; restart): How much is kept\n"
        "  ([bookie.md](bookie.md#settings)).\n\n"
        "### Second\n\n"
        "- **`fast`** (true or false; default false; restart): With `fast` it is fast.\n"
        "- **`key_path`** (text; default none; no restart): The key in `key_path` is read again without a\n"
        "  restart.\n"
        "- **`beside`** (text; default fast; restart): In the chapter of the setting before it.\n\n"
    )


def test_a_setting_of_which_nothing_is_said_is_refused_by_name() -> None:
    @dataclass
    class Silent:
        """Says nothing of it."""

        silent_ms: int = field(default=1)

    with pytest.raises(WRITER["UndocumentedError"], match="silent_ms"):
        WRITER["chapters"](Silent)


def test_every_setting_option_and_variable_stands_in_the_page_once() -> None:
    listed = re.findall(r"^- \*\*`([\w.]+)`\*\*", PAGE, re.MULTILINE)
    settings = [each.name for cls in (BookieConfig, ClientConfig) for each in fields(cls)]
    expected = [*settings, *(option.name for option in OPTIONS)]
    variables = listed[len(expected) :]
    assert sorted(listed[: len(expected)]) == sorted(expected)
    assert len(set(variables)) == len(variables)
    assert {"BK_METADATA_SERVICE_URI", "BK_LEDGER_PASSWORD", "JAVA_HOME"} <= set(variables)
    assert set(WRITER["read_of_environment"]()) <= set(variables) | WRITER["NOT_SETTINGS"]


def test_every_link_of_the_page_leads_somewhere() -> None:
    for page, anchor in re.findall(r"\]\(([\w-]+\.md)(?:#([\w-]+))?\)", PAGE):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, f"{page}#{anchor}"


def test_the_page_says_the_defaults_of_the_code() -> None:
    ClientConfig()
    assert WRITER["render"]() == PAGE


@pytest.mark.rule("E1")
def test_the_page_of_errors_says_the_codes_and_outcomes_of_the_code() -> None:
    writer = runpy.run_path(str(ROOT / "scripts" / "errors.py"))
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == writer["render"]()
