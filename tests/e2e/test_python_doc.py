# SPDX-License-Identifier: Apache-2.0
"""docs/python.md: every snippet runs, in order and in one program, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bk_cli.local.cluster import LocalCluster

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
SNIPPET = re.compile(
    r"<!-- run -->\s*```python\n(?P<code>.*?)```(?:\s*<!-- output -->\s*```text\n(?P<output>.*?)```)?", re.DOTALL
)
SEPARATOR = "-- next snippet --"


@pytest.mark.e2e
@pytest.mark.timeout(120)
def test_every_snippet_prints_what_the_page_says(cluster: LocalCluster, tmp_path: Path) -> None:
    found = [(match["code"], match["output"] or "") for match in SNIPPET.finditer(PAGE)]
    assert len(found) == PAGE.count("```python") > 5
    program = tmp_path / "page.py"
    code = f"print({SEPARATOR!r})\n".join(code for code, _ in found)
    program.write_text(code.replace("zk://localhost:2181/ledgers", cluster.uri), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(SEPARATOR + "\n")
    assert printed == [output for _, output in found]
