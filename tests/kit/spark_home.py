# SPDX-License-Identifier: Apache-2.0
"""A home of Spark in which Python processes start with half of the CPU time.

Spark lets its Python processes import ``python/lib/pyspark.zip`` of its home before any installed module. That file has
no bytecode, so each process compiles all modules that it imports, which takes 0.8 s, and a query starts up to six
processes. This home links to the files of the installed package, but not to that one. So the processes import the
installed modules, which are compiled.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

HOME = Path(__file__).parents[2] / ".cache" / f"spark-home-{version('pyspark')}"
LEFT_OUT = {Path("python"), Path("python", "lib"), Path("python", "lib", "pyspark.zip")}
"""The file without bytecode, and the folders that it is in, which the home has as folders of its own."""


def use() -> None:
    """Let Spark use this home in this process and its children, unless the environment names another one."""
    if not os.environ.get("SPARK_HOME"):
        _make()
        os.environ["SPARK_HOME"] = str(HOME)


def _make() -> None:
    """Make the home if it does not exist."""
    if HOME.exists():
        return
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    HOME.parent.mkdir(exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=HOME.parent))
    _link(Path(spec.origin).parent, unfinished)
    try:
        unfinished.rename(HOME)  # only a complete home has this name
    except OSError:  # another process was faster
        shutil.rmtree(unfinished)


def _link(package: Path, home: Path) -> None:
    """Link the files of the package into the home."""
    for folder in (Path(), Path("python"), Path("python", "lib")):
        home.joinpath(folder).mkdir(exist_ok=True)
        for each in package.joinpath(folder).iterdir():
            if each.relative_to(package) not in LEFT_OUT:
                home.joinpath(folder, each.name).symlink_to(each)
