# SPDX-License-Identifier: Apache-2.0
"""Tries the package outside the checkout, as a user would, and runs the commands and snippets of the README's first
screen.

The README's install commands are typed as they stand, in a copy of the files that a clone has. The PySpark snippet runs
in the environment that they make. An environment with the wheel and without pyspark must import every package and run
the Python snippet, on the cluster that ``uvx`` starts. Only the ports are replaced by free ones, and with ``--wheel``
the package that is installed. ``.ci/run`` itself runs ``scripts/demo`` and ``scripts/test``. ``scripts/release`` tries
the wheel of the release with this script, and ``scripts/test-pythons`` a wheel on other Pythons.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = str(ROOT / ".venv" / "bin" / "uv")
UVX = str(ROOT / ".venv" / "bin" / "uvx")
URI_IN_README = "zk://localhost:2181/ledgers"
READY_TIMEOUT_S = 90
RUN_BY_CI = {"scripts/demo", "scripts/test"}
INSTALL = "python3 -m venv venv && . venv/bin/activate && pip install '.[spark]'"
LOCAL, UVX_LOCAL = "bk local", "uvx --from . pyspark-bookkeeper local"

IMPORT_EVERYTHING = """
import importlib, importlib.util, pkgutil, sys
assert importlib.util.find_spec("pyspark") is None, "pyspark must not be installed here"
import bookie_server.main
heavy = {"pyarrow", "pandas"} & set(sys.modules)
assert not heavy, f"a bookie loads {heavy}"
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    if not name.startswith("bk_spark"):
        for module in pkgutil.iter_modules(package.__path__, name + "."):
            importlib.import_module(module.name)
import pyspark_bookkeeper
from importlib import resources
from bookie_server.admin.page.page import FILES
static = resources.files("bookie_server.admin.page") / "static"
left_out = [name for name, _ in FILES.values() if not (static / name).is_file()]
assert not left_out, f"files of the web page are not in the wheel: {left_out}"
print(f"imported {len(sys.argv) - 1} packages without pyspark")
"""

VERSIONS = """
import importlib.metadata, platform
names = ("numpy", "pyarrow", "grpcio", "protobuf", "kazoo", "crc32c", "pyspark")
each = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
print(f"versions: {platform.python_implementation()} {platform.python_version()}: {each}")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, help="try this one (default: build one)")
    parser.add_argument("--python", default=sys.executable, help="on this interpreter (default: that of .venv)")
    given = parser.parse_args()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="bk-smoke-") as name:
        folder = Path(name)
        wheel = given.wheel.resolve() if given.wheel else build(folder)
        plain = environment(folder / "plain", given.python, str(wheel))
        plain_packages = [
            each for each in packages_of(wheel) if not each.startswith("bk_spark.")
        ]  # the modules of bk_spark need pyspark
        run([plain / "python", "-c", IMPORT_EVERYTHING, *plain_packages], folder)
        run([plain / "bk", "--version"], folder)
        clone = files_of_a_clone(folder / "clone")
        typed = [command for command in commands(readme) if command not in RUN_BY_CI]
        assert typed == [INSTALL, LOCAL, UVX_LOCAL], f"the README says {typed}: say here how each is run"
        assert set(commands(readme)) >= RUN_BY_CI, f"the README no longer says {RUN_BY_CI}"
        spark = install(clone, given.python, given.wheel and wheel)
        run([spark / "python", "-c", VERSIONS], folder)
        with local([spark / "bk"], folder / "data-spark", {}) as uri:
            run([spark / "bk", "doctor", "--spark", "--metadata-service-uri", uri], folder)
            compare(readme, "spark", snippet(readme, "spark", spark, uri, folder))
        uvx = [UVX, "--python", given.python, "--from", str(wheel) if given.wheel else ".", "pyspark-bookkeeper"]
        with local(uvx, folder / "data-uvx", {"SPARK_HOME": spark_home(spark)}, clone) as uri:
            run([plain / "bk", "doctor", "--metadata-service-uri", uri], folder)
            compare(readme, "python", snippet(readme, "python", plain, uri, folder))
    print("smoke: the package works outside the checkout, and so does everything on the README's first screen")
    return 0


def build(folder: Path) -> Path:
    run([UV, "build", "--quiet", "--wheel", "--out-dir", folder / "dist", ROOT], folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def files_of_a_clone(folder: Path) -> Path:
    """Copy the files that a clone would have, uncommitted ones included. Return the folder of the copy."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    for name in names:
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def install(clone: Path, python: str, wheel: Path | None) -> Path:
    """Type the README's install command in a shell, in the clone. With ``wheel`` it installs that wheel. Return the
    folder of the installed programs."""
    command = INSTALL.replace("'.[", f"'{wheel}[") if wheel else INSTALL
    names = clone.parent / "python"
    names.mkdir()
    (names / "python3").write_text(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n', encoding="utf-8")
    (names / "python3").chmod(0o755)
    # Most modules are never imported here. Not compiling them saves a third of the time.
    environ = {"PATH": f"{names}{os.pathsep}{os.environ['PATH']}", "PIP_NO_COMPILE": "1"}
    run(["bash", "-exc", command], clone, extra=environ)
    return clone / "venv" / "bin"


def packages_of(wheel: Path) -> list[str]:
    """Return every package in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.rpartition("/")[0] for name in archive.namelist() if re.fullmatch(r"\w+(/\w+)+\.py", name)}
    return sorted(folder.replace("/", ".") for folder in folders)


def environment(folder: Path, python: str, *requirements: str) -> Path:
    """Make a fresh virtual environment with the wheel, compiled as pip does. Return the folder of its programs."""
    run([UV, "venv", "--quiet", "--python", python, folder], folder.parent)
    install = [UV, "pip", "install", "--quiet", "--compile-bytecode", "--python", folder / "bin" / "python"]
    run([*install, *requirements], folder.parent)
    return folder / "bin"


def spark_home(programs: Path) -> str:
    code = "import importlib.util; print(importlib.util.find_spec('pyspark').submodule_search_locations[0])"
    return run([programs / "python", "-c", code], programs).strip()


@contextmanager
def local(program: list[object], data: Path, extra: dict[str, str], folder: Path | None = None) -> Iterator[str]:
    """Run ``bk local`` during the block. It must start, stop cleanly and leave nothing running."""
    command = [*map(str, program), "local", "--json", "--data", str(data), "--port", "0", "--zookeeper-port", "0"]
    print("$", shlex.join(command), flush=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder or data.parent, env=clean(extra))
    signal.signal(signal.SIGALRM, lambda *_: process.kill())
    signal.alarm(READY_TIMEOUT_S)
    assert process.stdout is not None
    line = process.stdout.readline()
    signal.alarm(0)
    assert line, f"bk local ended with {process.wait()} before it was ready"
    ready = json.loads(line)
    try:
        yield ready["metadataServiceUri"]
    finally:
        process.terminate()
        code = process.wait(60)
    assert code == 0, f"bk local ended with {code}"
    for bookie in ready["bookies"]:
        assert not alive(bookie["pid"]), f"bookie {bookie['id']} still runs"


def snippet(readme: str, name: str, programs: Path, uri: str, folder: Path) -> str:
    """Run the code under ``<!-- run: name -->`` and return what it printed."""
    found = re.search(rf"<!-- run: {name} -->\s*```python\n(.*?)```", readme, re.DOTALL)
    assert found, f"the README has no code to run as {name}"
    path = folder / f"readme_{name}.py"
    path.write_text(found[1].replace(URI_IN_README, uri), encoding="utf-8")
    return run([programs / "python", path], folder)


def compare(readme: str, name: str, printed: str) -> None:
    """Check that the README shows under ``<!-- output: name -->`` what was printed."""
    found = re.search(rf"<!-- output: {name} -->\s*```text\n(.*?)```", readme, re.DOTALL)
    if found:
        wanted = [line.rstrip() for line in found[1].strip().splitlines()]
        got = [line.rstrip() for line in printed.strip().splitlines()]
        assert got == wanted, f"the README shows {wanted}, it printed {got}"


def commands(readme: str) -> list[str]:
    """Return the commands in the README's console blocks, without comments."""
    blocks = re.findall(r"```console\n(.*?)```", readme, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line[2:].split(" #")[0].strip() for line in lines]


def run(command: list[object], folder: Path, timeout_s: float = 600, extra: dict[str, str] | None = None) -> str:
    """Run a command, show what it prints, and return its standard output. A failure ends this program."""
    words = [str(word) for word in command]
    print("$", " ".join(shlex.quote(word) if len(word) < 200 else "..." for word in words), flush=True)
    environ = clean(extra or {})
    if (
        Path(words[0]).parent.name == "bin"
    ):  # as in an activated environment, because Spark takes its workers' python from PATH
        environ["PATH"] = f"{Path(words[0]).parent}{os.pathsep}{environ['PATH']}"
    done = subprocess.run(
        words, cwd=folder, stdout=subprocess.PIPE, text=True, env=environ, timeout=timeout_s, check=False
    )
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        raise SystemExit(f"smoke: exit code {done.returncode} from {words[0]}")
    return done.stdout


def clean(extra: dict[str, str]) -> dict[str, str]:
    """Return this environment without the variables that would let the checkout leak in."""
    hidden = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "SPARK_HOME", "BK_METADATA_SERVICE_URI")
    return {**{key: value for key, value in os.environ.items() if key not in hidden}, **extra}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


if __name__ == "__main__":
    sys.exit(main())
