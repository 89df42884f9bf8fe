# SPDX-License-Identifier: Apache-2.0
"""Keeps a reused Python worker from repeating, for every task, work whose cost grows with the number of imported
modules.

Theory. After every task Spark's daemon runs ``gc.collect()``: 22 ms for what pyspark alone imports, 64 ms with this
package, gRPC and pandas. Before every task Spark 4.0 calls ``importlib.invalidate_caches()``. Then each importer of an
archive reads the archive's directory again: that of pyspark with a thousand files, once for every package in it, and
that of Spark's jar. This takes 400 ms, for a task that may have ten rows. Neither is needed: imported modules live as
long as the process, and the archives that a process starts with (``PYTHONPATH``) do not change.
"""

from __future__ import annotations

import gc
import os
import sys
from zipimport import zipimporter

_modules_frozen = 0


def settle() -> None:
    """Exempt all living objects from garbage collection, if modules were imported since the last call, and let the
    importers of the archives in ``PYTHONPATH`` keep the directories that they have read.

    It is called when a worker plans a load and when a task begins. Usually only the first and second call have work to
    do. Existing garbage is collected before. Frozen objects are still freed when nothing refers to them; only a cycle
    of them that becomes garbage later stays. Nothing else of the process changes: thresholds, allocators (RULES K5),
    new objects and archives added later stay as they are.
    """
    global _modules_frozen  # the state of the process, like the collector's own
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
    """Do nothing. It replaces the invalidation of caches that cannot become stale."""
