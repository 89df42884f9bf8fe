# SPDX-License-Identifier: Apache-2.0
"""Which Python is taken, and what is said of one that was built without optimizations."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from bk_cli.local.python_build import built_with_optimizations
from bk_cli.operate import doctor
from bk_core.cluster.finding import Weight

BOOTSTRAP = Path(__file__).parents[3] / "scripts" / "bootstrap"
WORKS, OPTIMIZED = 1, 2


@pytest.mark.parametrize(
    ("executable", "configured", "is_so"),
    [
        ("/opt/python/bin/python3.12", "'--prefix=/opt/python' '--enable-shared'", False),
        ("/opt/python/bin/python3.12", "'--enable-optimizations' '--with-lto'", True),
        ("/usr/bin/python3.11", "'--prefix=/usr' '--without-ensurepip'", True),
        ("/usr/local/bin/python3.11", "'--prefix=/usr/local'", False),
    ],
)
def test_a_build_says_it_or_is_a_distributions(executable: str, configured: str, is_so: bool) -> None:
    assert built_with_optimizations(executable, configured) is is_so


def test_the_doctor_says_so() -> None:
    assert doctor._python(True).weight is Weight.FINE
    found = doctor._python(False)
    assert (found.weight, found.error) == (Weight.NOTE, None)
    assert "built without optimizations" in found.what
    assert "--enable-optimizations" in found.what


def chosen(folder: Path, pythons: dict[str, int]) -> tuple[int, str]:
    """What bootstrap's ``find_python`` takes where these are on PATH. It runs in an empty folder, so that no real
    Python finds ``bk_cli`` and counts as optimized."""
    found = re.search(r"^find_python\(\) \{.*?^\}", BOOTSTRAP.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, abilities in pythons.items():
        file = bin_folder / name
        is_optimized = int(abilities != OPTIMIZED)
        file.write_text(f'#!/bin/sh\n[ {abilities} = 0 ] && exit 1\n[ "$1" = -m ] && exit {is_optimized}\nexit 0\n')
        file.chmod(0o755)
    ran = subprocess.run(
        ["/bin/bash", "-c", f"{found[0]}\nfind_python"],
        env={"PATH": str(bin_folder)}, cwd=bin_folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return ran.returncode, os.path.basename(ran.stdout.strip())


@pytest.mark.parametrize(
    ("pythons", "taken"),
    [
        ({"python3": OPTIMIZED, "python3.12": OPTIMIZED}, "python3"),
        ({"python3": WORKS, "python3.13": WORKS, "python3.12": OPTIMIZED}, "python3.12"),
        ({"python3": 0, "python3.13": WORKS, "python3.12": WORKS}, "python3.13"),
    ],
)
def test_bootstrap_takes_the_first_that_was_built_with_optimizations(
    tmp_path: Path, pythons: dict[str, int], taken: str
) -> None:
    assert chosen(tmp_path, pythons) == (0, taken)
