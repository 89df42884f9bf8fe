# SPDX-License-Identifier: Apache-2.0
"""The code that all drivers of the client share: running a machine, timers, metrics and fork checks."""
