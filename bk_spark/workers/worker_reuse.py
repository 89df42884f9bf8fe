# SPDX-License-Identifier: Apache-2.0
"""Spares a Python worker that Spark keeps what it would do again for every task, over all that it has ever imported.

Theory. After every task Spark's daemon runs ``gc.collect()``: 22 ms for what pyspark alone imports, 64 with this
package, gRPC and pandas. Before every task Spark 4.0 calls ``importlib.invalidate_caches()``, and each importer of an
archive reads its directory again: pyspark's own with a thousand files, once for every package in it, and Spark's jar.
That takes 400 ms, for a task that may have ten rows. What is imported lives as long as the process, and the archives
that a process is born with (``PYTHONPATH``) do not change, so neither is of use.
"""

from __future__ import annotations

import gc
import os
import sys
from zipimport import zipimporter

_modules_frozen = 0


def settle() -> None:
    """Exempt everything that is alive now from garbage collection, if modules were imported since the last time, and
    let the importers of the archives in ``PYTHONPATH`` keep the directories that they have read.

    Called at the begin of each task, and wherever the workers that plan a load are asked first; the first and mostly
    the second call do something. What is garbage already is collected before. Frozen objects are freed as ever when
    nothing refers to them; only a cycle of theirs that becomes garbage later stays. Nothing else of the process
    changes: thresholds, allocators (RULES K5), new objects, archives that were added while it ran.
    """
    global _modules_frozen  # the state of the process, as the collector's own is
    if len(sys.modules) > _modules_frozen:
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)
    _keep_directories_of_archives()


def _keep_directories_of_archives() -> None:
    archives = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for importer in list(sys.path_importer_cache.values()):
        if isinstance(importer, zipimporter) and importer.archive in archives:
            vars(importer)["invalidate_caches"] = _nothing


def _nothing() -> None:
    """Done with what cannot become stale."""
