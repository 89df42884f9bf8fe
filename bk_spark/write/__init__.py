# SPDX-License-Identifier: Apache-2.0
"""Batch writes: tasks write ledgers, and the driver publishes them in one step."""
