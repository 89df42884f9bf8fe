# SPDX-License-Identifier: Apache-2.0
"""Makes the kept data of a release, of the version of this tree, with real processes: ``scripts/release-data``.

It is made once, when a version is released, and kept for ever: later versions must open what this one wrote. A release
whose data is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import bk_core
from tests.release import contents, conversation, formats
from tests.release.cluster import identity_of, kept, pack, release_cluster, unpack, znodes
from tests.spark.sessions import ClassicSpark


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="make it anew, before the release")
    parser.add_argument("--formats", action="store_true", help="only its list of formats anew, before the release")
    given = parser.parse_args(arguments)
    target = kept(bk_core.__version__)
    if given.formats:
        write_formats(target)
        return 0
    if target.exists() and not given.again:
        print(f"{target} is there; what a release wrote is not made again", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="bookkeeper-release-") as name:
        folder = Path(name)
        made = folder / "made"
        made.mkdir()
        make(folder / "first", made)
        unpack(made / "files.tar.xz", folder / "again")
        with release_cluster(folder / "again") as cluster:
            bookie = cluster.bookies[0]
            ledger = json.loads((made / "kept.json").read_text())["ledgers"]["wide"]["id"]
            asked = list(conversation.requests(identity_of(bookie.data_dir), ledger))
            conversation.save(conversation.hold(bookie.port, asked), made)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
    sizes = {path.name: path.stat().st_size for path in sorted(target.iterdir())}
    print(f"made {target}: {sizes}, {sum(sizes.values())} bytes in all")
    return 0


def make(folder: Path, target: Path) -> None:
    folder.mkdir()
    with release_cluster(folder) as cluster:

        def kill() -> str:
            cluster.bookies[0].kill()
            return identity_of(cluster.bookies[0].data_dir)

        made = contents.fill(cluster.uri, kill, cluster.start)
        spark = ClassicSpark(folder / "spark")
        contents.fill_by_spark(cluster.uri, spark.session(), str(folder / "checkpoint"))
        spark.stop()
        cluster.bookies[1].kill()  # its unsealed end is as a crash leaves it
        codes = cluster.stop_bookies()
        assert codes[0] == codes[2] == codes[3] == 0, codes
        (target / "znodes.json").write_text(json.dumps(znodes(cluster.uri), indent=0, sort_keys=True) + "\n")
    (target / "kept.json").write_text(json.dumps(made.as_json(), indent=1) + "\n")
    write_formats(target)
    pack(folder, target / "files.tar.xz")


def write_formats(target: Path) -> None:
    text = json.dumps(formats.of_the_code(), indent=1, sort_keys=True)
    (target / "formats.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
