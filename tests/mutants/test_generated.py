# SPDX-License-Identifier: Apache-2.0
"""Generated mutants: a text offers the right edits, a seed repeats them, and only copies are changed."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from tests.mutants.generated.checkouts import ROOT, copy_of_checkout
from tests.mutants.generated.run import choose, files
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


@pytest.mark.long
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


def test_generated_files_are_not_mutated() -> None:
    names = files([])
    assert "bk_core/client/writing/writer.py" in names
    assert not [name for name in names if name.endswith("_pb2.py")]


@pytest.mark.long
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
