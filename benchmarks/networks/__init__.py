# SPDX-License-Identifier: Apache-2.0
"""Emulated networks for the group ``networks``, and the bookies and clients in them."""
