# SPDX-License-Identifier: Apache-2.0
"""Helpers of Spark's Python processes: shared connections, a log line for each task, and less repeated work."""
