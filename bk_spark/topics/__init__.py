# SPDX-License-Identifier: Apache-2.0
"""Reads topics of Apache Pulsar into DataFrames. The driver plans ranges of the topics' ledgers, and tasks read these
ranges."""
