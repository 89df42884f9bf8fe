# SPDX-License-Identifier: Apache-2.0
"""The loop that drives the machine, and the threads of each data directory."""
