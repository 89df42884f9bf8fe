# SPDX-License-Identifier: Apache-2.0
"""The parts that all drivers of the client share: the driver itself, timers, metrics, fork checks."""
