# SPDX-License-Identifier: Apache-2.0
"""What a kept worker has imported is looked through once, not for every task; what tasks make is looked through."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

CODE = """
import gc, sys, time, weakref
import bk_core.blocking, bk_spark.read.ledger_reader, bk_spark.write.log_writer
from bk_spark.workers import worker_reuse

class Cycle:
    def __init__(self):
        self.me = self

gone = weakref.ref(Cycle())
worker_reuse.settle()
assert gone() is None, "garbage was frozen"
frozen = gc.get_freeze_count()
assert frozen > 10_000, frozen

later = weakref.ref(Cycle())
worker_reuse.settle()
assert gc.get_freeze_count() <= frozen, "nothing was imported, and something was frozen"
assert later() is not None
gc.collect()
assert later() is None, "what tasks make is collected"

import wave
worker_reuse.settle()
assert gc.get_freeze_count() > frozen - 1000, "the new module was not frozen"
assert len(gc.get_objects()) < 1000, len(gc.get_objects())
"""


def test_what_is_imported_is_frozen_once_and_garbage_is_not() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)


ARCHIVES = """
import importlib, sys, zipimport
sys.path.append(sys.argv[1])
import pyspark, users
from bk_spark.workers import worker_reuse

assert isinstance(pyspark.__loader__, zipimport.zipimporter)
reads = []
read = zipimport._read_directory
zipimport._read_directory = lambda archive: reads.append(archive) or read(archive)
worker_reuse.settle()
importlib.invalidate_caches()  # what Spark does before a task
assert reads == [users.__loader__.archive], reads
import pyspark.later
assert pyspark.later.VALUE == 1
"""


def test_archives_a_worker_is_born_with_are_read_once_and_those_of_users_as_often_as_spark_asks(tmp_path: Path) -> None:
    for name, module in (("spark.zip", "pyspark"), ("users.zip", "users")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(f"{module}/__init__.py", "")
            archive.writestr(f"{module}/later.py", "VALUE = 1")
    born_with = os.pathsep.join([str(tmp_path / "spark.zip"), str(Path(__file__).parents[3])])
    code = [sys.executable, "-c", ARCHIVES, str(tmp_path / "users.zip")]
    subprocess.run(code, check=True, env={**os.environ, "PYTHONPATH": born_with})
