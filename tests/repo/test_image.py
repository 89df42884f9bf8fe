# SPDX-License-Identifier: Apache-2.0
"""The image definition has a pinned base, locked packages, no special rights, and ports and paths that exist in the
code. ``tests/e2e/test_image.py`` runs its commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import bk_core
from bookie_server.config import BookieConfig
from tests.kit.dockerfile import Image, read

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
TARGETS = ("bookie", "spark")


def test_the_base_is_one_version_and_every_stage_stands_on_it() -> None:
    arguments, stages = read()
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", arguments["BASE"]), "no tag that moves from Python to Python"
    assert {stage.base for stage in stages.values()} - set(stages) == {"${BASE}"}
    assert list(stages)[-1] == "bookie", "what a build without --target makes"


@pytest.mark.parametrize("target", TARGETS)
def test_only_what_is_locked_is_installed(target: str) -> None:
    (sync,) = [text for _, text in Image(f"build-{target}").steps("RUN") if text.startswith("uv sync")]
    assert {"--frozen", "--no-dev", "--no-editable"} <= set(sync.split())
    (tool,) = [text for _, text in Image(f"build-{target}").steps("RUN") if "pip install" in text]
    assert re.search(r" uv==[\d.]+$", tool)
    assert ("--extra spark" in sync) is (target == "spark")


@pytest.mark.parametrize("target", TARGETS)
def test_it_runs_as_nobody_special_and_is_stopped_as_a_bookie_wants_it(target: str) -> None:
    image = Image(target)
    assert image.steps("USER", "CMD", "ENTRYPOINT")[-2][1] == "1000:1000", "a number: Kubernetes cannot look up names"
    assert image.last("STOPSIGNAL") == "SIGTERM"
    assert image.last("VOLUME") == "/data"
    assert image.environment()["PATH"].startswith("/opt/bookkeeper/bin:")


def test_its_ports_and_its_probe_are_those_of_the_code(tmp_path: Path) -> None:
    image, settings = Image("bookie"), BookieConfig(metadata_service_uri="zk://z:2181/ledgers", data_dir=tmp_path)
    ports = (settings.port, settings.grpc_port, settings.direct_port, settings.admin_port)
    assert sorted(map(int, (image.last("EXPOSE") or "").split())) == sorted(port or 0 for port in ports)
    assert image.environment()["BK_LIVE_URL"] == f"http://127.0.0.1:{settings.admin_port}/live"
    assert "'BK_LIVE_URL'" in image.probe()[-1]


def test_what_is_copied_is_there_and_is_all_that_the_wheel_is_made_of() -> None:
    copied = {word for _, text in Image("build-bookie").steps("COPY") for word in text.split()[:-1]}
    assert [name for name in copied if not (ROOT / name).exists()] == []
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"\[tool\.hatch\.build\.targets\.wheel\].*?only-include = \[(.*?)\]", project, re.DOTALL)
    assert listed
    assert set(re.findall(r'"([^"]+)"', listed[1])) | {"docs", "uv.lock", "pyproject.toml", "README.md"} <= copied
    assert not [name for name in (ROOT / ".dockerignore").read_text().split() if name in copied]


def test_compose_builds_both_and_probes_each_bookie_at_its_own_port() -> None:
    tag = f"pyspark-bookkeeper:{bk_core.__version__}"
    assert COMPOSE["bookie-1"]["build"]["target"] == "bookie"
    assert (COMPOSE["spark"]["build"]["target"], COMPOSE["spark"]["image"]) == ("spark", f"{tag}-spark")
    for number in range(1, 5):
        bookie = COMPOSE[f"bookie-{number}"]
        assert bookie["image"] == tag
        assert bookie["environment"]["BK_LIVE_URL"] == f"http://127.0.0.1:{6180 + number}/live"
        assert bookie["read_only"] is True
        assert bookie["cap_drop"] == ["ALL"]
