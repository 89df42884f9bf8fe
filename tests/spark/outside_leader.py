# SPDX-License-Identifier: Apache-2.0
"""A process that leads a log and says what was acked: ``python -m tests.spark.outside_leader URI LOG TAG COUNT``.

Appends ``TAG:0`` to ``TAG:COUNT-1``, rolls every 40 entries, prints ``leads`` once it leads and each number as soon as
its append has returned; ends with ``lost`` when another process has taken over.
"""

from __future__ import annotations

import sys
import time

from bk_core import blocking
from bk_core.errors import BookKeeperError

ROLL_EVERY = 40
PAUSE_S = 0.002


def main(uri: str, log: str, tag: str, count: int) -> None:
    with blocking.connect(uri) as bookkeeper:
        leader = bookkeeper.log(log).lead()
        print("leads", flush=True)
        try:
            for number in range(count):
                leader.append(f"{tag}:{number}".encode())
                print(number, flush=True)
                if number % ROLL_EVERY == ROLL_EVERY - 1:
                    leader.roll()
                time.sleep(PAUSE_S)
            leader.close()
        except BookKeeperError:
            print("lost", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
