# SPDX-License-Identifier: Apache-2.0
"""``scripts/mutants --random N``: plants generated mutants, each alone, and runs the tests against it.

The seed chooses among all places in the given paths where a small defect fits (``sites.py``). A mutant meets its tests
in stages: those that are written for its file and execute its line, all others that execute it, and tests with real
servers. A test that fails has to fail twice, because a busy machine also makes tests fail.
"""

from __future__ import annotations

import functools
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.generated.checkouts import ROOT, copy_of_checkout, run_tests
from tests.mutants.generated.chosen import CHOSEN
from tests.mutants.generated.reached import PACKAGES, Map
from tests.mutants.generated.sites import Edit, compiles, sites

GENERATED = re.compile(r"_pb2\.py$")
"""Files that a script writes. They get no mutants; the files from which they are made do."""
STAGE_S = {"written for it": 40.0, "executes it": 60.0}
"""The seconds that the tests of a stage may take, as they were recorded. If all tests execute a line, the quick ones
find a defect if any does."""
TEST_LIMIT_S = 30
NEAR_FILES, NEAR_S = 6, 60.0
"""Without a map, a mutant meets at most this many test files for this many seconds. CI has two minutes for all
mutants."""
KINDRED_S = 240.0
KINDRED_FILES = 3
"""The number of test files that :func:`kindred` returns, and the seconds that each of them may take."""
FOLDERS = {
    "bk_cli": ("tests/cli", "tests/e2e"),
    "bk_spark": ("tests/spark",),
    "bookie_server": ("tests/bookie_server", "tests/contracts", "tests/e2e"),
    "bk_core": (
        "tests/access", "tests/client", "tests/contracts", "tests/e2e", "tests/logs", "tests/metadata",
        "tests/transport",
    ),
}  # fmt: skip
WITH_SERVERS, WITHOUT = "real and not alone", "not real and not long"


@dataclass(frozen=True, slots=True)
class Generated:
    """An edit of a file of the checkout."""

    path: str
    edit: Edit

    @property
    def name(self) -> str:
        edit = self.edit
        return f"{self.path}:{edit.line}:{edit.column} {edit.kind}: {_short(edit.before)} -> {_short(edit.after)}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a mutant. ``noticed_by`` is the test that failed twice, empty if none did. ``stages`` says what
    ran, with the number of tests."""

    name: str
    noticed_by: str
    stages: tuple[str, ...]
    seconds: float

    @property
    def word(self) -> str:
        return f"noticed by {self.noticed_by}" if self.noticed_by else f"LIVES ({', '.join(self.stages)})"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 120 else f"{text[:80]} … {text[-37:]}"


def files(paths: list[str], root: Path = ROOT) -> list[str]:
    """Return the Python files at these paths of the checkout, without generated ones."""
    found = {
        file
        for path in paths or PACKAGES
        for file in ([root / path] if path.endswith(".py") else (root / path).rglob("*.py"))
    }
    names = sorted(str(file.relative_to(root)) for file in found)
    return [name for name in names if not GENERATED.search(name)]


def choose(
    names: list[str], count: int, seed: str, changed: dict[str, set[int]] | None, root: Path = ROOT
) -> list[Generated]:
    """Choose ``count`` mutants. Each place is equally likely, and then each of its edits. ``changed``, if given, limits
    the choice to these lines."""
    texts = {name: (root / name).read_bytes() for name in names}
    places = [
        (name, edits)
        for name in names
        for edits in sites(texts[name])
        if changed is None or edits[0].line in changed.get(name, ())
    ]
    dice, chosen = random.Random(seed), []
    dice.shuffle(places)
    for name, edits in places:
        if len(chosen) == count:
            break
        edit = dice.choice(edits)
        if compiles(edit.plant(texts[name])):
            chosen.append(Generated(name, edit))
    return chosen


def lines_since(commit: str) -> dict[str, set[int]]:
    """Return the lines of each file that the checkout has and this commit has not."""
    command = ["git", "diff", "--unified=0", "--no-color", commit, "--", *PACKAGES]
    diff = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines: dict[str, set[int]] = {}
    name = ""
    for row in diff.splitlines():
        if row.startswith("+++ "):
            name = row.removeprefix("+++ b/")
        elif found := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", row):
            first, count = int(found[1]), int(found[2] or 1)
            lines.setdefault(name, set()).update(range(first, first + count))
    return lines


class Trial:
    """Tries one mutant after another in copies of the checkout, which are thrown away."""

    def __init__(self, reached: Map | None, with_servers: bool) -> None:
        """If ``reached`` is None, there is no map, and a mutant meets only the test files that name its module."""
        self._map = reached
        self._with_servers = with_servers

    def run(self, mutant: Generated, checkout: Path, before: Outcome | None) -> Outcome:
        """Run the mutant's tests. ``before`` is the outcome without servers, if it is known already."""
        path, started = checkout / mutant.path, time.monotonic()
        source = path.read_bytes()
        path.write_bytes(mutant.edit.plant(source))
        try:
            noticed, stages = ("", list(before.stages)) if before else self._stages(mutant, checkout)
            if not noticed and self._with_servers:
                noticed = self._server_stage(mutant, checkout, stages)
        finally:
            path.write_bytes(source)
        return Outcome(mutant.name, noticed, tuple(stages), time.monotonic() - started)

    def is_final(self, outcome: Outcome) -> bool:
        """Whether no stage is left for this mutant."""
        tried = any(stage.endswith(".py") for stage in outcome.stages)  # a file with servers
        return bool(outcome.noticed_by) or tried or not self._with_servers

    def _stages(self, mutant: Generated, checkout: Path) -> tuple[str, list[str]]:
        if self._map is None:
            return self._noticed_near(mutant, checkout)
        line = None if mutant.edit.is_at_import else mutant.edit.line
        tests, stages = self._map.tests_of(mutant.path, line), list[str]()
        if line and not tests:
            tests = self._map.tests_of(mutant.path, mutant.edit.statement)
        if not tests:
            stages.append("no unit test executes it in its own process")
            for name in kindred(mutant.path, is_real=False):
                stages.append(f"{name} without servers")
                if noticed := self._noticed_in(name, checkout, WITHOUT):
                    return noticed, stages
        for stage, chosen in in_stages(mutant.path, tests).items():
            if chosen:
                stages.append(f"{len(chosen)} tests: {stage}")
                if noticed := self._noticed(chosen, checkout, sum(tests[each] for each in chosen)):
                    return noticed, stages
        return "", stages

    def _server_stage(self, mutant: Generated, checkout: Path, stages: list[str]) -> str:
        for name in kindred(mutant.path, is_real=True):
            stages.append(name)
            if noticed := self._noticed_in(name, checkout, WITH_SERVERS):
                return noticed
        return ""

    def _noticed_near(self, mutant: Generated, checkout: Path) -> tuple[str, list[str]]:
        found = near_files(mutant.path)
        if not found:
            return "", ["no test file names it"]
        arguments = ("-m", WITHOUT, "--few", "-o", f"timeout={TEST_LIMIT_S}", *found)
        code, failed = _run([], arguments, checkout, NEAR_S)
        if code in (0, 5, -1) or not failed:
            return "", [f"{len(found)} files that name it"]
        code, _again = _run([failed], (), checkout, NEAR_S)
        return (failed if code else ""), [f"{len(found)} files that name it"]

    def _noticed(self, tests: list[str], checkout: Path, expected_s: float) -> str:
        """Return the test that fails twice, or an empty text. A test that fails only once is left out afterwards."""
        arguments = ("--few", "-o", f"timeout={TEST_LIMIT_S}")
        deadline_s = 120 + 8 * expected_s
        for _ in range(4):
            code, failed = _run(tests, arguments, checkout, deadline_s)
            if code in (0, 5):
                return ""
            if code not in (1, -1) or not failed:
                return "the import of its tests"
            code, _again = _run([failed], arguments, checkout, deadline_s)
            if code != 0:
                return failed + (" (a hang)" if code == -1 else "")
            tests = tests[tests.index(failed) + 1 :] if failed in tests else tests
        return ""

    def _noticed_in(self, name: str, checkout: Path, marked: str) -> str:
        """Return the test of this file that fails twice, among the tests with these marks; empty if none does."""
        code, failed = _run([], ("-m", marked, name), checkout, KINDRED_S)
        if code in (0, 5, -1) or not failed:  # a whole file may take longer than the limit
            return ""
        code, _again = _run([failed], (), checkout, KINDRED_S)
        return failed if code else ""


def _run(tests: list[str], arguments: tuple[str, ...], checkout: Path, deadline_s: float) -> tuple[int, str]:
    """Return pytest's exit code, and the test that failed or else the last one that had begun."""
    with tempfile.TemporaryDirectory(prefix="chosen-") as folder:
        listed = Path(folder) / "tests.txt"
        listed.write_text("\n".join(tests), encoding="utf-8")
        of_tests = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        command = ("-p", "tests.mutants.generated.chosen", *arguments, *of_tests)
        code, _ = run_tests(command, checkout, deadline_s, {CHOSEN: str(listed)})
        for suffix in (".failed", ".begun"):
            if listed.with_suffix(suffix).exists():
                return code, listed.with_suffix(suffix).read_text(encoding="utf-8")
        return code, ""


def in_stages(path: str, tests: dict[str, float]) -> dict[str, list[str]]:
    """Divide the tests into stages. Tests written for this file come first, and in each stage the quick tests first, as
    many as its time allows."""
    folder, own = mirrored(path)
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    near: dict[str, int] = {}
    for file in {test.partition("::")[0] for test in tests}:
        if file == own:
            near[file] = 0
        elif _imports((ROOT / file), module):
            near[file] = 1
        elif file.startswith(f"{folder}/"):
            near[file] = 2
    of_stage: dict[str, list[str]] = {stage: [] for stage in STAGE_S}
    left = dict(STAGE_S)
    for test in sorted(tests, key=lambda each: (near.get(each.partition("::")[0], 3), tests[each], each)):
        stage = "written for it" if test.partition("::")[0] in near else "executes it"
        if left[stage] > 0:
            left[stage] -= tests[test]
            of_stage[stage].append(test)
    return of_stage


def mirrored(path: str) -> tuple[str, str]:
    """Return the folder of tests and the test file that mirror a source."""
    first, *rest = path.split("/")
    top = {"bk_core": [], "bk_cli": ["cli"], "bk_spark": ["spark"], "bookie_server": ["bookie_server"]}[first]
    *folders, name = [*top, *rest]
    folder = "/".join(["tests", *folders])
    return folder, f"{folder}/test_{name}"


def near_files(path: str) -> list[str]:
    """Return the test file that mirrors a source, then those that import it, the shortest first."""
    _, own = mirrored(path)
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if _imports(file, module)]
    names = [str(file.relative_to(ROOT)) for file in sorted(files, key=lambda file: (file.stat().st_size, file))]
    own_first = [own] if (ROOT / own).exists() else []
    return [*own_first, *(name for name in names if name != own)][:NEAR_FILES]


def _imports(file: Path, module: str) -> bool:
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    package, _, name = module.rpartition(".")
    return bool(
        re.search(rf"\b{re.escape(module)}\b", text)
        or re.search(rf"from {re.escape(package)} import [^\n]*\b{re.escape(name)}\b", text)
    )


def kindred(path: str, *, is_real: bool) -> list[str]:
    """Return the test files, with servers or without, that most often use the words of this source's path. A test may
    execute the source in a process of its own, which the map does not see."""
    words = {
        word.rstrip("s") for word in re.split(r"[/_.]", path.partition("/")[2].removesuffix(".py")) if len(word) > 2
    }
    scores: dict[str, int] = {}
    for name in _marked(WITH_SERVERS if is_real else WITHOUT):
        if name.startswith(FOLDERS[path.partition("/")[0]]):
            text = (ROOT / name).read_text(encoding="utf-8")
            in_name = sum(word in Path(name).stem for word in words)
            scores[name] = 100 * in_name + sum(min(text.count(word), 9) for word in words)
    return sorted(scores, key=lambda name: (-scores[name], name))[:KINDRED_FILES]


@functools.cache
def _marked(marked: str) -> frozenset[str]:
    """The files with tests that pytest collects for these marks."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", marked, "tests"]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return frozenset(line.partition("::")[0] for line in said.splitlines() if "::" in line)


def try_all(
    mutants: list[Generated], trial: Trial, jobs: int, kept: Path | None, minutes: float | None
) -> Iterator[Outcome]:
    """Yield the outcomes as they come. Outcomes in ``kept`` are read from there; new ones are added to it."""
    known = {outcome.name: outcome for outcome in _kept(kept)}
    final = {name for name, outcome in known.items() if trial.is_final(outcome)}
    yield from (known[mutant.name] for mutant in mutants if mutant.name in final)
    left = [mutant for mutant in mutants if mutant.name not in final]
    ends = time.monotonic() + minutes * 60 if minutes else float("inf")
    with tempfile.TemporaryDirectory(prefix="mutants-") as top, ThreadPoolExecutor(jobs) as pool:
        free = [Path(top) / str(number) for number in range(jobs)]
        for each in free:
            copy_of_checkout(each)

        def one(mutant: Generated) -> Outcome | None:
            if time.monotonic() > ends:
                return None
            checkout = free.pop()
            try:
                return trial.run(mutant, checkout, known.get(mutant.name))
            finally:
                free.append(checkout)

        for done in as_completed([pool.submit(one, mutant) for mutant in left]):
            if (outcome := done.result()) is not None:
                if kept:
                    with kept.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(outcome)) + "\n")
                yield outcome


def _kept(kept: Path | None) -> list[Outcome]:
    rows = kept.read_text(encoding="utf-8").splitlines() if kept and kept.exists() else []
    return [
        Outcome(row["name"], row["noticed_by"], tuple(row["stages"]), row["seconds"]) for row in map(json.loads, rows)
    ]


def main(
    count: int, seed: str, since: str | None, paths: list[str], jobs: int, kept: Path | None, minutes: float | None,
    with_servers: bool, is_list: bool, is_near: bool,
) -> int:  # fmt: skip
    """Print each outcome, and finally the survivors. A survivor is no failure, because it may be equivalent."""
    mutants = choose(files(paths), count, seed, lines_since(since) if since else None)
    if is_list:
        print("\n".join(mutant.name for mutant in mutants))
        return 0
    reached = None if is_near else Map()
    if reached is not None:
        reached.refresh()
    outcomes = []
    for outcome in try_all(mutants, Trial(reached, with_servers and not is_near), jobs, kept, minutes):
        print(f"{outcome.seconds:5.1f} s  {outcome.name}  {outcome.word}", flush=True)
        outcomes.append(outcome)
    living = [outcome for outcome in outcomes if not outcome.noticed_by]
    print(f"mutants: {len(outcomes) - len(living)} of {len(outcomes)} generated ones were noticed (seed {seed})")
    for outcome in living:
        print(f"  lives: {outcome.name}  ({', '.join(outcome.stages)})")
    return 0
