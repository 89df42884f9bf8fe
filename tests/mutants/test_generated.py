# SPDX-License-Identifier: Apache-2.0
"""Generated mutants: a text offers the right edits, a seed repeats them, and only copies are changed."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import coverage
import pytest

from tests.mutants.generated.checkouts import ROOT, copy_of_checkout
from tests.mutants.generated.reached import Map
from tests.mutants.generated.run import choose, files, in_stages, kindred, mirrored
from tests.mutants.generated.sites import compiles, sites

HEAD = "def f(self, a, b, n=1):\n    x = 0\n"


def planted(body: str, head: str = HEAD) -> set[tuple[str, str]]:
    """Return each edit of these lines of a function: its kind, and the lines that it makes of them."""
    source = f"{head}{body}".encode()
    edits = [edit for site in sites(source) for edit in site if edit.start >= len(head)]
    return {(edit.kind, edit.plant(source)[len(head) :].decode()) for edit in edits}


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("comparison changed", "    x = a == b\n", "    x = a != b\n"),
        ("comparison changed", "    x = (a) not in (b)\n", "    x = (a) in (b)\n"),
        ("comparison changed", "    x = a is not b\n", "    x = a is b\n"),
        ("comparison changed", "    x = a < b\n", "    x = a >= b\n"),
        ("boundary moved", "    x = a <= b\n", "    x = a < b\n"),
        ("condition negated", "    if a:\n        x = b\n", "    if (not (a)):\n        x = b\n"),
        ("condition forced", "    if a:\n        x = b\n", "    if True:\n        x = b\n"),
        ("condition forced", "    while a > b:\n        x = b\n", "    while False:\n        x = b\n"),
        ("call dropped", "    self.go(\n        a\n    )\n", "    pass\n"),
        ("await dropped", "    await self.go()\n", "    pass\n"),
        ("arguments swapped", "    self.go(a, f(b))\n", "    self.go(f(b), a)\n"),
        ("constant + 1", "    x = 65_536\n", "    x = 65537\n"),
        ("constant - 1", "    x = 2\n", "    x = (1)\n"),
        ("constant changed", "    x = 'é', a\n", "    x = 'éX', a\n"),
        ("constant changed", "    x = b''\n", "    x = b'X'\n"),
        ("constant changed", "    x = True\n", "    x = False\n"),
        ("raise dropped", "    raise ValueError(a)\n", "    pass\n"),
        (
            "exception swallowed",
            "    try:\n        x = a\n    except OSError:\n        self.end()\n        x = b\n",
            "    try:\n        x = a\n    except OSError:\n        pass\n",
        ),
        ("return None", "    return a(b)\n", "    return None\n"),
        ("and/or swapped", "    x = a and (b and n)\n", "    x = a or (b and n)\n"),
        ("not dropped", "    x = not a\n", "    x = (a)\n"),
        ("arithmetic changed", "    x = a - b\n", "    x = a + b\n"),
        ("arithmetic changed", "    x += b\n", "    x -= b\n"),
        ("break continues", "    for x in a:\n        break\n", "    for x in a:\n        continue\n"),
        ("continue breaks", "    for x in a:\n        continue\n", "    for x in a:\n        break\n"),
        ("assignment dropped", "    self.x = a\n", "    pass\n"),
        ("assignment dropped", "    a[b] = n\n", "    pass\n"),
        ("delete dropped", "    del a[b]\n", "    pass\n"),
    ],
)
def test_each_kind_edits_its_place_and_nothing_else(kind: str, before: str, after: str) -> None:
    head = HEAD.replace("def", "async def") if "await" in before else HEAD
    assert (kind, after) in planted(before, head)


def test_a_small_limit_and_what_a_limit_is_computed_from_are_places() -> None:
    assert [len(site) for site in sites(b"TRIES_MAX = 3\n")] == [2]
    assert sites(b"BYTES_MAX = 4 << 20\n")
    assert [len(site) for site in sites(b"def f():\n    WAIT_S = 60.0\n    return 60.0\n")][-1]
    assert sites(b"HEADER_BYTES = 64\n")


def test_a_default_and_the_begin_of_a_function_are_places_too() -> None:
    source = b'def f(a=1):\n    """Says."""\n    if a:\n        a = 2\n    return a\n'
    texts = {edit.kind: edit.plant(source) for site in sites(source) for edit in site if edit.line <= 3}
    assert texts["default + 1"].startswith(b"def f(a=2):\n")
    assert b"    return None\n    if a:\n" in texts["return early"]


@pytest.mark.parametrize(
    "source",
    [
        '"""A text."""\n',
        "WAIT_S = 60.0\n",
        "_KEYS_MAX = 1024\n",
        "log.info('word', a - b)\n",
        "self._logger.warning('word')\n",
        "def f(a: Literal['word']) -> dict[str, 1]: ...\n",
        "assert a == b\n",
        "class A:\n    x: int | None\n    __slots__ = ('x',)\n    def __repr__(self):\n        return a == b\n",
        "if TYPE_CHECKING:\n    x = 1\n",
        "from a import b\n",
        "Kind = Adds | Reads\n",
        "def f(): raise NotImplementedError\n",
        "x = f'{a - 1}'\n",
    ],
)
def test_what_no_behaviour_depends_on_is_left_alone(source: str) -> None:
    assert sites(source.encode()) == []


def test_what_changes_nothing_is_not_offered() -> None:
    assert not [kind for kind, _ in planted("    x = max(a, b)\n") if kind == "arguments swapped"]
    assert not [kind for kind, _ in planted("    x = f(a, a)\n") if kind == "arguments swapped"]


def test_an_error_loses_its_raise_and_keeps_its_words() -> None:
    kinds = {kind for kind, _ in planted("    raise BookieError('word', 7)\n")}
    assert kinds == {"raise dropped"}


def test_a_seed_chooses_the_same_programs_again_and_another_seed_others() -> None:
    names = files(["bk_core/client"])
    once, again, other = (choose(names, 40, seed, None) for seed in ("1", "1", "2"))
    assert [each.name for each in once] == [each.name for each in again]
    assert {each.name for each in once} != {each.name for each in other}
    assert len(once) == 40
    for mutant in once:
        source = (ROOT / mutant.path).read_bytes()
        text = mutant.edit.plant(source)
        assert compiles(text)
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(source)), mutant.name
        line = source.splitlines()[mutant.edit.line - 1].decode()
        assert line[mutant.edit.column - 1 :].startswith(
            mutant.edit.before.splitlines()[0] if mutant.edit.before else ""
        )


def test_only_changed_lines_are_mutated_when_a_commit_is_named() -> None:
    chosen = choose(
        ["bk_core/memory/shared_budget.py"], 1000, "1", {"bk_core/memory/shared_budget.py": set(range(1, 60))}
    )
    assert chosen
    assert all(each.edit.line < 60 for each in chosen)


def test_generated_files_are_not_mutated() -> None:
    names = files([])
    assert "bk_core/client/writing/writer.py" in names
    assert not [name for name in names if name.endswith("_pb2.py") or name == "bk_core/blocking/__init__.py"]


def test_tests_written_for_a_file_come_first_and_the_quick_ones_of_them() -> None:
    own, near, far = (
        "tests/client/running/test_agenda.py::a",
        "tests/client/running/test_agenda.py::b",
        "tests/repo/test_protocol_doc.py::c",
    )
    stages = in_stages("bk_core/client/running/agenda.py", {far: 0.1, own: 2.0, near: 1.0})
    assert list(stages.values()) == [[near, own], [far]]
    assert mirrored("bookie_server/engine/engine.py") == (
        "tests/bookie_server/engine", "tests/bookie_server/engine/test_engine.py",
    )  # fmt: skip


@pytest.mark.long
def test_servers_that_can_notice_are_those_of_the_same_subject() -> None:
    assert "tests/e2e/test_autorecovery.py" in kindred("bookie_server/autorecovery/worker.py", is_real=True)
    assert "tests/cli/data/test_log_upkeep.py" in kindred("bk_cli/data/log_upkeep.py", is_real=True)


def test_a_mutant_is_planted_in_a_copy(tmp_path: Path) -> None:
    before = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True).stdout
    copy_of_checkout(tmp_path)
    for mutant in choose(files(["bk_core/memory/shared_budget.py"]), 5, "1", None):
        path = tmp_path / mutant.path
        assert path.read_bytes() == (ROOT / mutant.path).read_bytes()
        assert not path.samefile(ROOT / mutant.path)
        path.write_bytes(mutant.edit.plant(path.read_bytes()))
        path.write_bytes((ROOT / mutant.path).read_bytes())
    after = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True).stdout
    assert before == after


def test_the_map_keeps_the_lines_of_before_when_others_are_recorded(tmp_path: Path) -> None:
    """Records are added to the map if the files of some tests have changed."""

    def record(test: str, line: int) -> Path:
        folder = tmp_path / test
        folder.mkdir()
        data = coverage.CoverageData(basename=str(folder / "lines.1"))
        data.set_context(f"tests/{test}.py::test_it")
        data.add_lines({str(ROOT / "bk_core" / "quorum.py"): [line]})
        data.write()
        (folder / "outcomes.1.json").write_text(json.dumps({f"tests/{test}.py::test_it": [0.5, True]}))
        return folder

    reached = Map(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    for test, line in (("a", 10), ("b", 20), ("c", 10)):
        reached.add(record(test, line))
    assert sorted(reached.tests_of("bk_core/quorum.py", None)) == [f"tests/{name}.py::test_it" for name in "abc"]
    assert reached._lost() == []
    (tmp_path / "d").mkdir()
    lost = record("e", 30)
    (lost / "outcomes.1.json").unlink()
    reached.add(lost)
    assert reached._lost() == ["tests/e.py"]
