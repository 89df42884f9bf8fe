# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md names only files and names that exist, so that a reader meets no dead path."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import PurePosixPath

from tests.repo.test_tidy import ROOT, files_of, relative

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PAGE = re.sub(r"^```.*?^```", "", TEXT, flags=re.DOTALL | re.MULTILINE)
BYTES_MAX = 12 * 1024

SPAN = re.compile(r"`([^`]+)`(:?)", re.DOTALL)
PATH = re.compile(r"[\w.*{},/-]+")
SUFFIX = re.compile(r"\.(py|md|proto|js|yml|toml|json|java|lock|html|sh)\b")
NAME = re.compile(r"_*[A-Z]\w*|\w+_\w+")
LINK = re.compile(r"\]\(([\w./-]+)\)")

FILES = {relative(path) for path in files_of()}
FOLDERS = {f"{parent}/" for file in FILES for parent in PurePosixPath(file).parents if parent != PurePosixPath()}


def words() -> set[str]:
    """Return every word of code and pages, without the pages of results."""
    paths = files_of("*.py", "*.proto", "*.js", "*.java", "*.json", "docs/*.md")
    texts = (path.read_text(encoding="utf-8") for path in paths if "results" not in path.parts)
    return {word for text in texts for word in re.findall(r"\w+", text)}


def expanded(text: str) -> list[str]:
    """Expand ``a/{b,c}.py`` to ``a/b.py`` and ``a/c.py``."""
    parts = re.split(r"\{([^{}]*)\}", text)
    return ["".join(chosen) for chosen in product(*(each.split(",") for each in parts))]


def is_there(path: str) -> bool:
    if "*" in path:
        return any(PurePosixPath(file).match(path) and file.count("/") == path.count("/") for file in FILES)
    return path in FILES or path.rstrip("/") + "/" in FOLDERS


def paths_of(block: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each path of a block, and the folders below which it may be: those named before it in the block."""
    folders = [""]
    for text, _ in SPAN.findall(block):
        text = text.replace("\n", "").replace(" ", "") if "{" in text else text.strip()
        if not PATH.fullmatch(text) or not ("/" in text or SUFFIX.search(text)) or text.startswith((".", "/")):
            continue
        yield text, list(folders)
        for folder, path in product(list(folders), expanded(text)):
            whole = folder + path if path.endswith("/") else f"{PurePosixPath(folder + path).parent}/"
            if whole in FOLDERS and whole not in folders:
                folders.append(whole)


def dead_paths(page: str) -> list[str]:
    found = []
    for block in re.split(r"\n(?=- |\d+\. |#|\n)", page):
        for text, folders in paths_of(block):
            alive = any(all(is_there(folder + path) for path in expanded(text)) for folder in folders)
            if not alive:
                found.append(text)
    return found + [link for link in LINK.findall(page) if not is_there(link)]


def test_every_path_is_there() -> None:
    assert dead_paths(PAGE) == []


def test_every_name_is_in_the_code() -> None:
    names = {text for text, _ in SPAN.findall(PAGE) if NAME.fullmatch(text)}
    assert len(names) > 15
    assert sorted(names - words()) == []


def test_a_dead_path_is_found_below_whatever_it_stands() -> None:
    page = "- **x**: `bk_core/`: `{quorum,gone}.py`, `wire/lane/reasons.py`; `tests/`: `kit/gone*.py`, `kit/lanes.py`\n"
    assert dead_paths(page) == ["{quorum,gone}.py", "kit/gone*.py"]
    assert dead_paths("`docs/{rules,storage}.md`, `bk_core/transport/bookie_rpc/{link,\nadds}.py`") == []
    assert dead_paths("- `bk_core/`: `wire/lane/reasons.py`\n- `wire/lane/reasons.py`\n") == ["wire/lane/reasons.py"]


def test_every_search_finds_the_file_to_start_in_and_a_test() -> None:
    rows = re.findall(r"^\| (?!Change)([^|]+) \| `([^`]+)`[^|]* \| `((?:[^`|]|\\\|)+)` \|$", TEXT, re.MULTILINE)
    assert len(rows) >= 25
    for change, start, search in rows:
        word = search.replace("\\|", "|").removeprefix("-i ")
        command = ["git", "grep", "-lwE", *(["-i"] if search.startswith("-i ") else []), "-e", word]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
        assert any(path.startswith(start) for path in found), f"{change}: {search} is not in {start}"
        assert start == "benchmarks/groups/" or any(path.startswith("tests/") for path in found), f"{change}: no test"


def test_it_is_short() -> None:
    assert len(TEXT.encode()) <= BYTES_MAX, "look for the rule that replaces a list"
