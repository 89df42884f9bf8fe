# SPDX-License-Identifier: Apache-2.0
"""Keeps what a Python worker has imported out of the way of its garbage collector.

Theory. Spark's daemon runs ``gc.collect()`` after every task of a worker that it keeps. That walks over all that the
worker has ever imported: 22 ms for pyspark alone, 64 with this package, gRPC and pandas, for a task that may have read
ten rows. What is imported lives as long as the process, so it may as well be frozen: later collections pass over it.
"""

from __future__ import annotations

import gc
import sys

_modules_frozen = 0


def freeze() -> None:
    """Exempt everything that is alive now from garbage collection, if modules were imported since the last time.

    Called at the begin of each task, and of each planning of a load, which has workers of its own; the first and mostly
    the second call do something. What is garbage already is collected before. Frozen objects are freed as ever when
    nothing refers to them; only a cycle of theirs that becomes garbage later stays. Nothing else of the process
    changes: thresholds, allocators (RULES K5), new objects.
    """
    global _modules_frozen  # the state of the process, as the collector's own is
    if len(sys.modules) > _modules_frozen:
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)
