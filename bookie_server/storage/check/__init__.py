# SPDX-License-Identifier: Apache-2.0
"""Examining a data directory that no bookie uses."""
