# SPDX-License-Identifier: Apache-2.0
"""Puts lost copies of entries back, and moves copies."""
