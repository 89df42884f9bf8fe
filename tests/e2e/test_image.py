# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile's own commands as plain processes, in a folder that stands for the image's root: its build of the
target ``bookie``, its ENTRYPOINT and CMD, its health check, its stop signal."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_cli.local.cluster_layout import free_bookie_ports
from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core import blocking
from tests.kit.dockerfile import Image

pytestmark = [pytest.mark.e2e, pytest.mark.zookeeper, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
NOT_RUN = re.compile(r"pip install --no-cache-dir uv==|groupadd ")
"""What changes the machine: uv is that of .venv, and the user is who runs the tests."""
PATHS = re.compile(r"(?<![\w./-])/(src|opt/bookkeeper|data|tmp)\b")


class Container:
    """``root`` stands for the image's root."""

    def __init__(self, root: Path, image: Image) -> None:
        self.root, self.image = root, image

    def here(self, text: str) -> str:
        return PATHS.sub(lambda found: f"{self.root}/{found[1]}", text)

    def environment(self, **more: str) -> dict[str, str]:
        given = {name: self.here(value) for name, value in self.image.environment().items()}
        given["PATH"] = given["PATH"].replace("$PATH", os.environ["PATH"]) if "PATH" in given else os.environ["PATH"]
        outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return {**outside, **given, "HOME": f"{self.root}/home", "TMPDIR": f"{self.root}/tmp", **more}


def build(root: Path) -> None:
    """What ``docker build --target bookie`` does, up to the layer that the image takes."""
    container = Container(root, Image("build-bookie"))
    quick = {"UV_NO_CACHE": "0", "UV_CACHE_DIR": cache(), "UV_LINK_MODE": "hardlink", "UV_COMPILE_BYTECODE": "0"}
    environ = container.environment(UV_OFFLINE="1", TMPDIR=str(root / "src"), **quick)
    environ["PATH"] = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{environ['PATH']}"
    cwd = root
    for instruction, text in container.image.steps():
        if instruction == "WORKDIR":
            cwd = Path(container.here(text))
            cwd.mkdir(exist_ok=True)
        elif instruction == "COPY":
            *names, target = text.split()
            for name in names:
                copy(ROOT / name, cwd / target if target != "./" else cwd / name)
        elif instruction == "RUN" and not NOT_RUN.match(text):
            for attempt in (
                environ,
                environ | {"UV_OFFLINE": "0"},
            ):  # from the cache of scripts/bootstrap, if it can be
                done = subprocess.run(
                    ["sh", "-c", text], cwd=cwd, env=attempt, capture_output=True, text=True, check=False
                )
                if done.returncode == 0:
                    break
            assert done.returncode == 0, f"{text}: {done.stderr}"


def cache() -> str:
    command = [ROOT / ".venv" / "bin" / "uv", "cache", "dir"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(source, target)


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    root = tmp_path_factory.mktemp("image")
    for name in ("src", "data", "tmp", "home"):
        (root / name).mkdir()
    build(root)
    shutil.rmtree(root / "src")  # the image has not got it
    return Container(root, Image("bookie"))


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    zookeeper = ZooKeeperServer(durable=False)
    try:
        yield f"zk://{zookeeper.start(tmp_path / 'zookeeper')}/ledgers"
    finally:
        zookeeper.stop()


def files(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in folder.rglob("*")}


def probe(container: Container, environ: dict[str, str]) -> int:
    return subprocess.run(
        container.image.probe(), env=environ, cwd=container.root, capture_output=True, check=False
    ).returncode


def test_its_bookie_serves_is_probed_writes_to_its_volume_alone_and_stops_cleanly(
    container: Container, uri: str
) -> None:
    (port,) = free_bookie_ports(1)
    environ = container.environment(BK_METADATA_SERVICE_URI=uri, BK_LIVE_URL=f"http://127.0.0.1:{port + 3000}/live")
    before = files(container.root / "opt"), files(container.root / "home")
    words = [*container.image.words("ENTRYPOINT"), *map(container.here, container.image.words("CMD"))]
    here = ["--port", str(port), "--advertised-address", "127.0.0.1", "--allow-loopback", "--init-cluster"]
    assert probe(container, environ) != 0, "nobody is there yet"
    said = container.root / "log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [*words, *here], env=environ, cwd=container.here("/data"), stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout
        assert process.stdout.readline() == f"ready 127.0.0.1:{port} {port}\n", said.read_text(encoding="utf-8")
        assert probe(container, environ) == 0
        with blocking.connect(uri) as bookkeeper:
            one = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
            with bookkeeper.create_ledger(password=b"", **one) as ledger:
                assert ledger.append(b"entry") == 0
        process.send_signal(getattr(signal, str(container.image.last("STOPSIGNAL"))))
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(20)
        assert process.stdout
        process.stdout.close()
    assert probe(container, environ) != 0
    assert (files(container.root / "opt"), files(container.root / "home")) == before, (
        "the root file system may be read-only"
    )
    assert list((container.root / "tmp").iterdir()) == []
