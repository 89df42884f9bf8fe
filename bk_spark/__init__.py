# SPDX-License-Identifier: Apache-2.0
"""The Spark data source ``bookkeeper``. Imports nothing of its own: each Spark worker imports it."""

import logging
import os

# Where Spark collects the log lines of its workers, it takes what passes the root logger's level, a warning at least.
# Ours say at INFO what a task read or wrote, so in such a worker, and nowhere else, they set a level of their own.
if "PYSPARK_SPARK_SESSION_UUID" in os.environ and not logging.getLogger(__name__).level:
    logging.getLogger(__name__).setLevel(logging.INFO)
