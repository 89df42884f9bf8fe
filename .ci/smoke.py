# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel and tries it outside the checkout, as a user would; then runs what the README's first screen says.

Three environments: one without pyspark (every package must import, ``bk local`` and the Python snippet must work), one
with the ``spark`` extra (the PySpark snippet, without any register call), and ``uvx``. Only the package's name is
replaced, by the wheel just built, and the ports, by free ones. ``.ci/run`` itself runs ``scripts/demo`` and
``scripts/test``. ``scripts/release`` tries the wheel of the release, ``scripts/test-pythons`` one on other Pythons.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
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
URI_IN_README = "zk://localhost:2181/ledgers"
READY_TIMEOUT_S = 90
RUN_BY_CI = {"scripts/demo", "scripts/test"}

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
from bookie_server.web.page import FILES
static = resources.files("bookie_server.web") / "static"
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
        ]  # what is inside needs pyspark
        run([plain / "python", "-c", IMPORT_EVERYTHING, *plain_packages], folder)
        run([plain / "bk", "--version"], folder)
        spark = environment(folder / "spark", given.python, f"{wheel}[spark]")
        run([spark / "python", "-c", VERSIONS], folder)
        jars = spark_home(spark)
        ran = set(RUN_BY_CI)
        for command in commands(readme):
            if command.startswith("pip install"):
                assert command == "pip install 'pyspark-bookkeeper[spark]'", command  # done above, with the wheel
            elif command == "bk local":
                with local([spark / "bk"], folder / "data-spark", {}) as uri:
                    run([spark / "bk", "doctor", "--spark", "--metadata-service-uri", uri], folder)
                    compare(readme, "spark", snippet(readme, "spark", spark, uri, folder))
                with local([plain / "bk"], folder / "data-plain", {"SPARK_HOME": jars}) as uri:
                    run([plain / "bk", "doctor", "--metadata-service-uri", uri], folder)
                    compare(readme, "python", snippet(readme, "python", plain, uri, folder))
            elif command == "uvx pyspark-bookkeeper local":
                uvx = [UV, "tool", "run", "--python", given.python, "--from", str(wheel), "pyspark-bookkeeper"]
                with local(uvx, folder / "data-uvx", {"SPARK_HOME": jars}) as uri:
                    print(f"uvx: a cluster at {uri}")
            elif command not in ran:
                raise SystemExit(f"the README says {command!r}, and nothing in CI runs it")
            ran.add(command)
        left = RUN_BY_CI - set(commands(readme))
        assert not left, f"the README no longer says {left}"
    print("smoke: the wheel works outside the checkout, and so does everything on the README's first screen")
    return 0


def build(folder: Path) -> Path:
    run([UV, "build", "--quiet", "--wheel", "--out-dir", folder / "dist", ROOT], folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def packages_of(wheel: Path) -> list[str]:
    """Every package that is in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.rpartition("/")[0] for name in archive.namelist() if re.fullmatch(r"\w+(/\w+)+\.py", name)}
    return sorted(folder.replace("/", ".") for folder in folders)


def environment(folder: Path, python: str, *requirements: str) -> Path:
    """A fresh virtual environment with the wheel, compiled as pip does; the folder of its programs."""
    run([UV, "venv", "--quiet", "--python", python, folder], folder.parent)
    install = [UV, "pip", "install", "--quiet", "--compile-bytecode", "--python", folder / "bin" / "python"]
    run([*install, *requirements], folder.parent)
    return folder / "bin"


def spark_home(programs: Path) -> str:
    code = "import importlib.util; print(importlib.util.find_spec('pyspark').submodule_search_locations[0])"
    return run([programs / "python", "-c", code], programs).strip()


@contextmanager
def local(program: list[object], data: Path, extra: dict[str, str]) -> Iterator[str]:
    """``bk local`` while the block runs; it must start, stop cleanly and leave nothing running."""
    command = [*map(str, program), "local", "--json", "--data", str(data), "--port", "0", "--zookeeper-port", "0"]
    print("$", shlex.join(command), flush=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=data.parent, env=clean(extra))
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
    """What the README shows under ``<!-- output: name -->`` is what was printed."""
    found = re.search(rf"<!-- output: {name} -->\s*```text\n(.*?)```", readme, re.DOTALL)
    if found:
        wanted = [line.rstrip() for line in found[1].strip().splitlines()]
        got = [line.rstrip() for line in printed.strip().splitlines()]
        assert got == wanted, f"the README shows {wanted}, it printed {got}"


def commands(readme: str) -> list[str]:
    """What the README's console blocks tell to type, without comments."""
    blocks = re.findall(r"```console\n(.*?)```", readme, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line[2:].split(" #")[0].strip() for line in lines]


def run(command: list[object], folder: Path, timeout_s: float = 600) -> str:
    """Run it, show what it prints, and return its standard output; a failure ends this program."""
    words = [str(word) for word in command]
    print("$", " ".join(shlex.quote(word) if len(word) < 200 else "..." for word in words), flush=True)
    environ = clean({})
    if Path(words[0]).parent.name == "bin":  # as in an activated environment: Spark takes its workers' python from PATH
        environ["PATH"] = f"{Path(words[0]).parent}{os.pathsep}{environ['PATH']}"
    done = subprocess.run(
        words, cwd=folder, stdout=subprocess.PIPE, text=True, env=environ, timeout=timeout_s, check=False
    )
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        raise SystemExit(f"smoke: exit code {done.returncode} from {words[0]}")
    return done.stdout


def clean(extra: dict[str, str]) -> dict[str, str]:
    """This environment without what would let the checkout leak in."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME", "BK_METADATA_SERVICE_URI")
    return {**{key: value for key, value in os.environ.items() if key not in hidden}, **extra}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


if __name__ == "__main__":
    sys.exit(main())
