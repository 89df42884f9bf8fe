# SPDX-License-Identifier: Apache-2.0
"""Emulated networks, the bookies and clients in them, for the group ``networks``."""
