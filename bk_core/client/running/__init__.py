# SPDX-License-Identifier: Apache-2.0
"""What all drivers of the client share: the driver itself, timers, metrics, fork checks."""
