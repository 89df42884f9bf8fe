# SPDX-License-Identifier: Apache-2.0
"""Goes on with the kept query of Spark from its checkpoint, in a process of its own: its session is nobody else's."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.release.contents import copy_rows
from tests.spark.sessions import ClassicSpark


def main() -> None:
    uri, checkpoint = sys.argv[1:]
    spark = ClassicSpark(Path(checkpoint).parent / "spark")
    copy_rows(spark.session(), uri, checkpoint)
    spark.stop()


if __name__ == "__main__":
    main()
