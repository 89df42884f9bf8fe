# SPDX-License-Identifier: Apache-2.0
"""A writer without Spark: ``python sensors.py URI LOG SECONDS`` leads a log and appends readings to it.

Its last line is the number of confirmed readings, each of which is on the disks of at least two bookies.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time

from bk_core.blocking import connect

PER_SECOND = 50
SENSORS = {"north": 12.0, "south": 19.0}


def reading(name: str, seconds: float, noise: random.Random) -> bytes:
    """Return a temperature that oscillates around its mean, as JSON with the time of the reading."""
    celsius = SENSORS[name] + 3 * math.sin(seconds) + noise.gauss(0, 0.3)
    return json.dumps({"sensor": name, "celsius": round(celsius, 2), "taken": time.time()}).encode()


def main(uri: str, log: str, seconds: str) -> None:
    noise, began, count = random.Random(1), time.monotonic(), 0
    with connect(uri) as bookkeeper, bookkeeper.log(log).lead() as leader:
        while (passed := time.monotonic() - began) < float(seconds):
            for name in SENSORS:
                leader.append(reading(name, passed, noise))  # returns when it is confirmed
                count += 1
            time.sleep(max(0.0, (count / len(SENSORS) + 1) / PER_SECOND - (time.monotonic() - began)))
    print(count)


if __name__ == "__main__":
    main(*sys.argv[1:])
