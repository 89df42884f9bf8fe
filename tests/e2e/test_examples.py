# SPDX-License-Identifier: Apache-2.0
"""Every example runs as the README says, against a real cluster, and says what it is there to say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bk_cli.local.cluster import LocalCluster

ROOT = Path(__file__).parents[2]

EXAMPLES = {
    "append_and_read": ["read to the LAC: [b'second', b'third']", "[BK_LEDGER_FENCED]"],
    "write_ahead_log": ["[BK_LEADERSHIP_LOST]", "changes logged: 151"],
    "spark_batch": ['{"id":1,"name":"A'],
    "spark_stream": ["rows seen: 100 last: event 99"],
}


@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [*list(EXAMPLES)[:3], pytest.param("spark_stream", marks=pytest.mark.thorough)])
def test_the_example_does_what_it_shows(cluster: LocalCluster, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}", cluster.uri],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in EXAMPLES[name]:
        assert line in done.stdout


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_the_live_tail_is_drawn_and_complete(cluster: LocalCluster, tmp_path: Path) -> None:
    """Run outside the checkout, as somebody does who copied its two files."""
    for path in (ROOT / "examples" / "live_tail").glob("*.py"):
        shutil.copy(path, tmp_path)
    picture = tmp_path / "tail.png"
    done = subprocess.run(
        [sys.executable, str(tmp_path / "live_tail.py"), cluster.uri, str(picture)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("confirmed to the writer")]
    confirmed, seen = map(int, re.findall(r": (\d+)", line))
    assert confirmed == seen > 100, line
    check_drawn(picture)


def check_drawn(picture: Path) -> None:
    """A plot, and not an empty pair of axes: both sensors' lines and the points of their age."""
    from matplotlib.image import imread

    pixels = imread(picture)[:, :, :3]
    height, width, _ = pixels.shape
    assert width >= 800, pixels.shape
    assert height >= 500, pixels.shape
    colourful = pixels.max(axis=2) - pixels.min(axis=2) > 0.3  # text and axes are grey
    above, below = colourful[: height // 2], colourful[height // 2 :]
    assert above.sum() > 1000, "no lines"
    assert below.sum() > 100, "no points"
    hues = {tuple(colour) for colour in (pixels[colourful] * 4).round().astype(int).tolist()}
    assert len(hues) > 2, "one line only"


@pytest.mark.long
def test_a_picture_without_a_plot_is_found_out(tmp_path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 1, figsize=(9, 6))
    axes[0].set(ylabel="°C", title="log sensors: 0 rows")
    figure.savefig(tmp_path / "empty.png")
    plt.close(figure)
    with pytest.raises(AssertionError, match="no lines"):
        check_drawn(tmp_path / "empty.png")


def test_every_example_is_run() -> None:
    programs = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert programs - set(EXAMPLES) == {"__init__", "demo", "flights", "spark_session"}
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/*.py")}
    assert folders == {"live_tail"}
