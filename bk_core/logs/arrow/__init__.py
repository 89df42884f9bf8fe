# SPDX-License-Identifier: Apache-2.0
"""Logs as Arrow columns: reads and writes."""
