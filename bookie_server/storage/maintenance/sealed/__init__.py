# SPDX-License-Identifier: Apache-2.0
"""Sealed segments: reads and checks them, scrubs them, and rebuilds their indexes."""
