# SPDX-License-Identifier: Apache-2.0
"""What a worker has imported is out of its collector's way; what tasks make is not."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc, sys, time, weakref
import bk_core.blocking, bk_spark.read, bk_spark.write
from bk_spark import worker_heap

class Cycle:
    def __init__(self):
        self.me = self

gone = weakref.ref(Cycle())
worker_heap.freeze()
assert gone() is None, "garbage was frozen"
frozen = gc.get_freeze_count()
assert frozen > 10_000, frozen

later = weakref.ref(Cycle())
worker_heap.freeze()
assert gc.get_freeze_count() <= frozen, "nothing was imported, and something was frozen"
assert later() is not None
gc.collect()
assert later() is None, "what tasks make is collected"

import wave
worker_heap.freeze()
assert gc.get_freeze_count() > frozen - 1000, "the new module was not frozen"
assert len(gc.get_objects()) < 1000, len(gc.get_objects())
"""


def test_what_is_imported_is_frozen_once_and_garbage_is_not() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)
