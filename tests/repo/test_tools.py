# SPDX-License-Identifier: Apache-2.0
"""``scripts/tools`` has every program that tests and scripts run, installs missing ones, or names them and stops."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo.test_tidy import files_of, relative

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "scripts" / "tools"
GRANTED = {"umount", "bash", "sh", "cat", "tar", "true", "sleep", "echo", "env", "sed"}
"""Programs that every Linux has, or that come with a package in the list. The list leaves them out."""
ALONE = {"pulsar-client", "docker", "dnf", "apk", "brew", "sudo"}
"""Programs that a program here looks for and can do without."""
SMALLEST = ("bash", "dirname", "tr", "sort", "tail", "cat", "uname", "id", "env", "printf", "grep")
"""The programs that the script itself runs."""


def rows() -> list[list[str]]:
    """Return the lines of the list: names, packages, purposes, what needs it."""
    found = re.search(r"<<'END'\n(.*?)END\n", TOOLS.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return [line.split(maxsplit=3) for line in found[1].splitlines()]


def programs(purpose: str) -> list[str]:
    return [names for names, _, purposes, _ in rows() if purpose in purposes.split(",")]


def a_machine_without(path: Path, *more: str) -> dict[str, str]:
    """Make the environment of a machine that has only a shell and these programs."""
    path.mkdir()
    for name in (*SMALLEST, *more):
        (path / name).symlink_to(shutil.which(name) or pytest.fail(f"there is no {name}"))
    return {"PATH": str(path), "HOME": str(path)}


def put(path: Path, script: str) -> None:
    path.write_text(f"#!{shutil.which('bash')}\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def run(environ: dict[str, str], purpose: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TOOLS, purpose], env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("purpose", ["check", "test", "page", "interop", "trial", "bench", "java", "python"])
def test_it_names_each_missing_program_and_what_to_type_where_it_may_not_install(tmp_path: Path, purpose: str) -> None:
    done = run(a_machine_without(tmp_path / "bin"), purpose)
    assert done.returncode == 1
    wanted = programs(purpose)
    assert wanted
    for names in wanted:
        assert f"there is no {names.replace('|', ' nor ')}, which is needed for" in done.stderr
    (typed,) = re.findall(r"type: sudo apt-get install --no-install-recommends (.*?) {4}#", done.stderr)
    packages = [each for _, each, purposes, _ in rows() if purpose in purposes.split(",")]
    assert set(typed.split()) == {part.split("/")[0] for each in packages for part in each.split(",")}


def test_it_says_nothing_where_all_is_there(tmp_path: Path) -> None:
    environ = a_machine_without(tmp_path / "bin")
    for names in programs("test"):
        put(tmp_path / "bin" / names.rpartition("|")[2], "exit 0")
    done = run(environ, "test")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def a_debian(path: Path, *, root: bool, sudo: bool, knows: str = "") -> dict[str, str]:
    """Make a machine whose apt-get notes what it installs, and makes Chromium and nothing else appear."""
    environ = a_machine_without(path)
    (path / "id").unlink()
    put(path / "id", f"echo {0 if root else 1000}")
    shown = f'[[ " {knows} " == *" $2 "* ]]' if knows else "exit 0"
    put(path / "apt-cache", shown)
    made = f"[[ $1 == install ]] && : >{path}/chromium && PATH=/bin:/usr/bin chmod +x {path}/chromium; exit 0"
    put(path / "apt-get", f'echo "$@" >>{path}/typed; {made}')
    if sudo:
        put(path / "sudo", 'shift; "$@"')
    return environ


@pytest.mark.parametrize(("root", "sudo"), [(True, False), (False, True)])
def test_it_installs_what_is_missing_as_root_or_with_a_sudo_that_asks_nothing(
    tmp_path: Path, root: bool, sudo: bool
) -> None:
    done = run(a_debian(tmp_path / "bin", root=root, sudo=sudo), "page")
    assert done.returncode == 0, done.stderr
    update, install = (tmp_path / "bin" / "typed").read_text().splitlines()
    assert update.startswith("update")
    assert install == "install -y -qq --no-install-recommends chromium fonts-dejavu-core"


def test_a_user_without_rights_installs_nothing(tmp_path: Path) -> None:
    environ = a_debian(tmp_path / "bin", root=False, sudo=True)
    put(tmp_path / "bin" / "sudo", "exit 1")
    done = run(environ, "page")
    assert done.returncode == 1
    assert "there is no chromium" in done.stderr
    assert not (tmp_path / "bin" / "typed").exists()


def test_what_apt_could_not_bring_stops_the_script_and_is_named(tmp_path: Path) -> None:
    done = run(a_debian(tmp_path / "bin", root=True, sudo=False), "check")
    assert done.returncode == 1
    assert "there is no git, which is needed" in done.stderr


def test_of_several_packages_it_takes_one_that_this_debian_has(tmp_path: Path) -> None:
    path = tmp_path / "bin"
    run(a_debian(path, root=True, sudo=False, knows="maven openjdk-21-jdk-headless"), "interop")
    assert "recommends maven openjdk-21-jdk-headless" in (path / "typed").read_text()


def started(path: Path) -> Iterator[str]:
    """Yield the programs that a Python file starts or looks for by a literal name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        func, first = node.func, node.args[0]
        called = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        owner = getattr(func.value, "id", "") if isinstance(func, ast.Attribute) else ""
        if called.endswith("which") and isinstance(first, ast.Constant):
            yield str(first.value)
        if owner == "subprocess" or called.endswith("execvpe"):
            first = first.elts[0] if isinstance(first, ast.List) and first.elts else first
            if (
                isinstance(first, ast.Constant)
                and isinstance(first.value, str)
                and re.fullmatch(r"[a-z][\w-]*", first.value)
            ):
                yield first.value


@pytest.mark.long
def test_every_program_that_is_run_is_in_the_list() -> None:
    listed = {name for names, *_ in rows() for name in names.split("|")} | GRANTED | ALONE
    sources = [path for path in files_of("*.py") if not relative(path).startswith("contrib/")]
    lacking = {(relative(path), name) for path in sources for name in started(path) if name not in listed}
    assert lacking == set(), "add them to scripts/tools"


def test_ci_installs_nothing_of_its_own() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert not re.search(r"apt|sudo|install", ci.split("set -euo")[1])
    for script in ("check", "test"):
        assert f"scripts/tools {script}" in (ROOT / "scripts" / script).read_text(encoding="utf-8")


def test_readme_gives_no_count_of_tests_and_no_time_for_them() -> None:
    """The number of tests and their time grow with every change, and nothing keeps the README's up to date."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"^The tests run in.*?\n\n", readme, re.DOTALL | re.MULTILINE)
    assert not re.search(r"\d", told)
