# SPDX-License-Identifier: Apache-2.0
"""Connects clients to bookies, over one of several lanes."""
