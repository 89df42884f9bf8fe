# SPDX-License-Identifier: Apache-2.0
"""Tries the wheel on each Python that is given or is on PATH, and writes the results to a page:
``scripts/test-pythons``.

It needs only the standard library, so that a bare system can run it on a wheel that was built elsewhere.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINORS = range(11, 15)
HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Written by scripts/test-pythons --report; a Python that is tried again replaces its line. -->
# The wheel on each Python

`scripts/test-pythons` installs the wheel into empty environments, without Spark and with it, imports every package,
starts `bk local` (ZooKeeper and four bookies) from each and from `uvx`, and runs the snippets of the README there.

"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/test-pythons", description=__doc__)
    parser.add_argument("pythons", nargs="*", help="interpreters (default: python3.11 to python3.14 on PATH)")
    parser.add_argument("--wheel", type=Path, help="try this one (default: build one)")
    parser.add_argument("--report", type=Path, help="write the page")
    given = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory(prefix="bookkeeper-pythons-") as name:
        wheel = given.wheel or build(Path(name))
        pythons = given.pythons or list(on_path())
        for python in pythons:
            line, passed = try_one(python, wheel)
            print(line, flush=True)
            if not passed:
                failed.append(python)
            if given.report:
                write(given.report, line)
    missing = [] if given.pythons else [f"3.{minor}" for minor in MINORS if not runs(f"python3.{minor}")]
    if missing:
        print(f"test-pythons: not here: {', '.join(missing)}")
    if failed or not pythons:
        print(f"test-pythons: failed: {', '.join(failed) or 'there is none'}", file=sys.stderr)
        return 1
    print(f"test-pythons: the wheel works on {', '.join(pythons)}")
    return 0


def on_path() -> Iterator[str]:
    for minor in MINORS:
        if runs(f"python3.{minor}"):
            yield f"python3.{minor}"


def runs(python: str) -> bool:
    """Return whether this Python exists and can be started. A shim of pyenv may be on PATH and yet fail to start."""
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def build(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_one(python: str, wheel: Path) -> tuple[str, bool]:
    """Return the line about one Python, and whether the wheel works there."""
    started = time.monotonic()
    command = [sys.executable, str(ROOT / ".ci" / "smoke.py"), "--wheel", str(wheel), "--python", python]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    passed = done.returncode == 0
    if not passed:
        print(done.stdout, file=sys.stderr)
    said = re.search(r"^versions: (.*): (.*)$", done.stdout, re.MULTILINE)
    who, packages = said.groups() if said else (python, "it could not be installed")
    libc = " ".join(platform.libc_ver())
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    result = "passed" if passed else "**failed**"
    seconds = round(time.monotonic() - started)
    return (
        f"- **{who}**, {platform.system()} {platform.machine()}, {libc}: {result} in {seconds} s ({today}); {packages}",
        passed,
    )


def write(page: Path, line: str) -> None:
    old = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    who = line.partition(",")[0]
    lines = [each for each in old if each.startswith("- **") and each.partition(",")[0] != who] + [line]
    lines.sort(key=lambda each: [int(part) for part in re.findall(r"\d+", each.partition(",")[0])])
    page.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
