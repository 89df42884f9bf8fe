# SPDX-License-Identifier: Apache-2.0
"""Makes the files of a release and checks them: ``scripts/release``. It publishes nothing.

The locked build backend builds wheel and sdist from the files that git tracks, with the time of the commit. They are
built twice, in different folders, with different file times and modes; the wheel is also built from the sdist. All
builds must be equal, byte for byte, or there is no release.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".venv" / "bin" / "uv"
EXTRAS = ("spark", "sasl", "otel")


class NotReadyError(Exception):
    """The tree cannot be released; the message says why."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="the tree need not be ready to be published")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go (default: dist)")
    parser.add_argument(
        "--no-smoke", action="store_true", help="with --rehearse: leave out the trial of the wheel, which takes minutes"
    )
    given = parser.parse_args(arguments)
    if given.no_smoke and not given.rehearse:
        parser.error("--no-smoke needs --rehearse: the wheel of a release must be tried")
    try:
        version = release(given.out.resolve(), rehearse=given.rehearse, smoke=not given.no_smoke)
    except NotReadyError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"release: {'rehearsed, not to be published' if given.rehearse else next_steps(version)}")
    return 0


def release(out: Path, *, rehearse: bool, smoke: bool) -> str:
    """Make the files in ``out``. Return the version."""
    version = read_version()
    problems = list(what_is_missing(version))
    for problem in problems:
        print(f"release: not ready: {problem}", file=sys.stderr)
    if problems and not rehearse:
        raise NotReadyError("mend that, or type: scripts/release --rehearse")
    epoch = int(run("git", "log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory(prefix="bookkeeper-release-") as name:
        made = build_twice(Path(name), epoch)
        out.mkdir(exist_ok=True)
        for old in out.iterdir():
            if old.is_file():
                old.unlink()
        for path in made:
            shutil.copy(path, out / path.name)
    (out / f"pyspark_bookkeeper-{version}.cdx.json").write_text(software_bill(version, epoch), encoding="utf-8")
    sums = [f"{digest(path)}  {path.name}" for path in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("\n".join(sums) + "\n", encoding="utf-8")
    print(*sums, sep="\n")
    if smoke:
        (wheel,) = out.glob("*.whl")
        subprocess.run([sys.executable, ROOT / ".ci" / "smoke.py", "--wheel", wheel], cwd=ROOT, check=True)
    return version


def read_version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def what_is_missing(version: str) -> Iterable[str]:
    """Yield the reasons why this tree cannot be released as ``version``."""
    if run("git", "status", "--porcelain"):
        yield "the tree has changes that are not committed (git status)"
    headings = re.findall(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if not headings or headings[0][0] != version:
        yield f"the first heading of CHANGELOG.md is not {version}"
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", headings[0][1]):
        yield f"CHANGELOG.md has no date for {version}: it says ({headings[0][1]})"
    if not (ROOT / "tests" / "data" / f"release-{version}").is_dir():
        yield f"tests/data has nothing of {version} for later versions to open: scripts/release-data"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if "Documentation" not in project.get("urls", {}):
        yield "pyproject.toml has no address of the documentation ([project.urls] Documentation): where will it be?"


def build_twice(folder: Path, epoch: int) -> list[Path]:
    """Return wheel and sdist, after two builds and the build from the sdist were found equal."""
    now = time.time()
    first = build(copy_of_tree(folder / "first", now), folder / "made-1", epoch)
    second = build(copy_of_tree(folder / "the second one", now - 86_400 * 400), folder / "made-2", epoch, umask=0o077)
    sdist = next(path for path in first if path.name.endswith(".tar.gz"))
    (folder / "unpacked").mkdir()
    subprocess.run(["tar", "-xf", sdist, "-C", folder / "unpacked"], check=True)
    (unpacked,) = (folder / "unpacked").iterdir()
    third = build(unpacked, folder / "made-3", epoch, "wheel")
    must_be_equal(first, (*second, *third))
    return first


def must_be_equal(first: Iterable[Path], others: Iterable[Path]) -> None:
    """Check that each file of ``others`` equals the file with its name in ``first``. Raises NotReadyError."""
    digests = {path.name: digest(path) for path in first}
    for path in others:
        if digests[path.name] != digest(path):
            raise NotReadyError(f"two builds of {path.name} differ: {digests[path.name]} and {digest(path)}")


def copy_of_tree(target: Path, modified: float) -> Path:
    """Copy all files that git tracks, in their current state, to a folder of their own."""
    for name in run("git", "ls-files", "-z").rstrip("\0").split("\0"):
        if not (ROOT / name).is_file():  # removed, and not committed yet
            continue
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy)
        os.utime(copy, (modified, modified))
    return target


def build(tree: Path, out: Path, epoch: int, *targets: str, umask: int = 0o022) -> list[Path]:
    """Build in ``tree`` with the locked backend, which needs no network."""
    what = [word for target in targets or ("wheel", "sdist") for word in ("--target", target)]
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "TZ": "UTC" if umask == 0o022 else "Asia/Kathmandu"}
    command = [sys.executable, "-m", "hatchling", "build", *what, "--directory", str(out)]
    done = subprocess.run(command, cwd=tree, env=environ, umask=umask, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReadyError(f"the build failed: {done.stderr}")
    return sorted(out.iterdir())


def software_bill(version: str, epoch: int) -> str:
    """Return the locked versions and hashes of all dependencies, extras included, in CycloneDX. uv adds a random number
    and the time of day; here equal commits get equal ones."""
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    exported = run(UV, "export", "--quiet", "--frozen", "--no-dev", *extras, "--format", "cyclonedx1.5")
    bill: dict[str, Any] = json.loads(exported)
    bill["metadata"]["timestamp"] = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    del bill["serialNumber"]
    text = json.dumps(bill, sort_keys=True)
    bill["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, f"pyspark-bookkeeper {version} {text}").urn
    return json.dumps(bill, indent=1, sort_keys=True) + "\n"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(*command: str | Path) -> str:
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def next_steps(version: str) -> str:
    return f"""dist/ has the files of {version}. To publish them:
  1. git tag --sign v{version} && git push origin v{version}
  2. uv publish dist/*.whl dist/*.tar.gz
  3. SHA256SUMS and the bill of software (.cdx.json) go beside them, to the page of the release
  4. the image: docker build --tag pyspark-bookkeeper:{version} .
Then begin the next version: docs/releasing.md."""


if __name__ == "__main__":
    sys.exit(main())
