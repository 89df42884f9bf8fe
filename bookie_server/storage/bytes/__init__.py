# SPDX-License-Identifier: Apache-2.0
"""Defines the bytes of segments and of their indexes, and reads and checks them."""
