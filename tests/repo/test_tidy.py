# SPDX-License-Identifier: Apache-2.0
"""House rules that no linter knows. A failure names the file and what to do."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LINES_MAX = 800
LONG_FILE_REASON = "Over 800 lines because"
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
PACKAGES = ("bk_core", "bookie_server", "bk_spark", "bk_cli")


def files_of(*patterns: str) -> list[Path]:
    """Return the files of the repository, new ones included and ignored ones not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


PYTHON = [path for path in files_of("*.py") if not GENERATED.search(path.name)]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def statements(source: str) -> Iterator[ast.AST]:
    """Yield every statement of a file, those within others included: half of the work of all its nodes."""
    left: deque[ast.AST] = deque([ast.parse(source)])
    while left:
        node = left.popleft()
        yield node
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            left += getattr(node, field, ())


def test_every_source_file_begins_with_its_licence() -> None:
    sources = files_of("*.py", "*.pyi", "*.proto", "*.toml", "*.yml", "*.java", "Dockerfile")
    sources += files_of("bookie_server/admin/page/static/*")
    bare = [relative(p) for p in sources if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(head(p))]
    assert bare == [], "put the SPDX line first"


def test_scripts_say_what_they_are_for() -> None:
    for path in [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"]:
        if path.suffix == "" and path.is_file():
            first, second = head(path)[:2]
            assert first == "#!/usr/bin/env bash", relative(path)
            assert second.startswith("# "), f"{relative(path)}: the second line says its job"
            assert path.stat().st_mode & 0o111, f"{relative(path)} is not executable"


def test_every_module_says_its_job() -> None:
    silent = [
        relative(p)
        for p in PYTHON
        if (text := p.read_text(encoding="utf-8").strip().removeprefix("# SPDX-License-Identifier: Apache-2.0").strip())
        and not text.startswith(('"""', 'r"""'))
    ]
    assert silent == [], "a module docstring says the file's job"


def test_no_file_is_long_without_a_reason_in_its_header() -> None:
    long = [
        f"{relative(p)}: {count}"
        for p in PYTHON
        if (count := len(p.read_text(encoding="utf-8").splitlines())) > LINES_MAX
        and LONG_FILE_REASON not in p.read_text(encoding="utf-8")[:2000]
    ]
    assert long == [], f"split by job, or say in the docstring: {LONG_FILE_REASON} ..."


# Written in two parts, so that this file does not contain what it looks for.
MACHINE_PATHS = re.compile("/wo" + r"rk/|/home/(?!bk\b)\w+/|/ro" + r"ot/|/Users/\w")


def test_nothing_names_a_path_of_some_machine() -> None:
    found = []
    for path in files_of():
        text = path.read_bytes()
        if b"\0" in text or path.name == "uv.lock":
            continue
        lines = text.decode("utf-8", errors="replace").splitlines()
        found += [
            f"{relative(path)}:{n}: {line.strip()}" for n, line in enumerate(lines, 1) if MACHINE_PATHS.search(line)
        ]
    assert found == []


# Written in two parts for the same reason.
OUTSIDE_NOTES = re.compile("fa" + r"cts[:,] [a-z-]+\.md|\bfa" + r"cts: [a-z]+ §|\b(STY" + "LE|DES" + r"IGN)( §|\.md)")


def test_nothing_cites_notes_that_the_repository_does_not_hold() -> None:
    pages = files_of("*.py", "*.md", "*.proto", "*.toml", "*.txt", "scripts/*")
    found = [f"{relative(p)}: {m[0]}" for p in pages for m in OUTSIDE_NOTES.finditer(p.read_text(encoding="utf-8"))]
    assert found == [], "say the reason where it is needed, or name a public source"


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    words = re.compile("pytest" + r"\.(mark\.)?(sk" + "ip|xf" + "ail|importor" + "skip)")
    found = [relative(p) for p in files_of("tests/*.py") if words.search(p.read_text(encoding="utf-8"))]
    assert found == [], "make it run, or delete it"


def test_files_are_opened_and_synced_in_one_place() -> None:
    """Only ``storage/disk/files.py`` opens, syncs and renames the files that the bookie stores."""
    calls = re.compile(
        r"\bos\.(open|fsync|fdatasync|pwritev?|rename|replace|ftruncate|posix_fallocate|unlink)\("
        r"|(?<!def )(?<![.\w])open\("
    )
    found = [
        f"{relative(p)}:{n}"
        for p in files_of("bookie_server/*.py")
        if relative(p) != "bookie_server/storage/disk/files.py"
        for n, line in enumerate(p.read_text(encoding="utf-8").splitlines(), 1)
        if calls.search(line) and not line.lstrip().startswith("#") and 'open("/proc/' not in line
    ]
    assert found == []


def test_nobody_writes_lines_to_a_transport() -> None:
    """No code calls ``writelines()`` of a socket's transport. From Python 3.12 on it never calls ``pause_writing()``,
    so the bytes that wait for a slow peer would have no bound."""
    packages = files_of("bk_core/*.py", "bookie_server/*.py")
    assert [relative(p) for p in packages if ".writelines(" in p.read_text(encoding="utf-8")] == []


STORAGE_WAITS = re.compile(
    r"\btime\.sleep\("
    r"|^\s*(?:from|import) (?:asyncio|concurrent|multiprocessing|queue|select|selectors|signal|socket|subprocess|"
    r"threading)\b",
    re.MULTILINE,
)


@pytest.mark.rule("S10")
def test_storage_starts_no_thread_and_waits_for_nobody() -> None:
    """Storage starts no thread and does not wait, so that a simulator runs it unchanged on one thread. The lock of the
    segment pool is no thread (decision 0012)."""
    found = {
        relative(path): STORAGE_WAITS.findall(path.read_text(encoding="utf-8"))
        for path in files_of("bookie_server/storage/*.py")
    }
    pool = "bookie_server/storage/log/segment_pool.py"
    assert {name: waits for name, waits in found.items() if waits} == {pool: ["import threading"]}
    assert re.findall(r"threading\.(\w+)", (ROOT / pool).read_text(encoding="utf-8")) == ["RLock"]


def test_only_the_command_line_reads_the_environment() -> None:
    """Only the command line reads the environment, and four other files that cannot avoid it: for what gRPC reads at
    its import, a secret whose variable an option names, whether Spark collects its workers' lines, and which archives
    Python was started with."""
    found = [
        relative(p)
        for package in ("bk_core", "bookie_server", "bk_spark")
        for p in files_of(f"{package}/*.py")
        if re.search(r"\bos\.(environ|getenv)\b", p.read_text(encoding="utf-8")) and p.name != "main.py"
    ]
    assert found == [
        "bk_core/__init__.py",
        "bk_core/access/secret_files.py",
        "bk_spark/workers/task_log.py",
        "bk_spark/workers/worker_reuse.py",
    ]


def test_one_version_everywhere() -> None:
    import bk_core

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == bk_core.__version__
    assert f"## {bk_core.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"pyspark-bookkeeper:{bk_core.__version__}" in (ROOT / "docker-compose.yml").read_text(encoding="utf-8")


def test_error_codes_are_unique_and_classes_end_in_error() -> None:
    from bk_core import errors

    classes = [errors.BookKeeperError]
    for cls in classes:
        classes.extend(cls.__subclasses__())
    ours = {cls for cls in classes if cls.__module__.split(".")[0] in PACKAGES}  # one may have two parents
    assert len({cls.code for cls in ours}) == len(ours)
    assert all(cls.__name__.endswith("Error") and cls.code.startswith("BK_") for cls in ours)
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert [cls for cls in ours if f"`{cls.code}`" not in page] == [], "scripts/errors.py does not know them"


def test_links_in_the_pages_lead_somewhere() -> None:
    broken = []
    for page in files_of("*.md"):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                broken.append(f"{relative(page)} -> {target}")
    assert broken == []


PAGE_COLUMNS_MAX = 100
ONE_LINK = re.compile(r"\s*(?:[-*] )?(?:<https?://\S+>|https?://\S+|\[[^\]]*\]\([^)]*\))[.,]?")


def test_pages_are_no_wider_than_100_columns() -> None:
    """No line of a page is wider, except code and lines that are one link. Results are generated (those of
    ``scripts/bench`` between markers), and the titles of decisions may be long, so neither is checked."""
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    wide = []
    for page in [*pages, *(ROOT / "docs").glob("*.md")]:
        text = re.sub(
            r"^ *```.*?^ *```$|^<!-- bench: (\S+) -->$.*?^<!-- /bench: \1 -->$",
            lambda block: "\n" * block[0].count("\n"),
            page.read_text(encoding="utf-8"),
            flags=re.DOTALL | re.MULTILINE,
        )
        wide += [
            f"{relative(page)}:{number}: {len(line)} columns"
            for number, line in enumerate(text.splitlines(), 1)
            if len(line) > PAGE_COLUMNS_MAX and not ONE_LINK.fullmatch(line)
        ]
    assert wide == [], "wrap the prose; a table whose rows are longer is a list"


def head(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[:3] + [""] * 3
