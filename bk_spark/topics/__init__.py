# SPDX-License-Identifier: Apache-2.0
"""Reads topics of Apache Pulsar into DataFrames: the driver plans ranges of their ledgers, and tasks read them."""
