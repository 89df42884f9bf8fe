# SPDX-License-Identifier: Apache-2.0
"""The Spark data source ``bookkeeper``. Imports nothing: each Spark worker imports it."""
