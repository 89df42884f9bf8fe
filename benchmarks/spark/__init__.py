# SPDX-License-Identifier: Apache-2.0
"""Group ``spark``: the data source beside Spark's own limits, Parquet, and spark-sql-kafka on one broker."""
