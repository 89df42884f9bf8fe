# SPDX-License-Identifier: Apache-2.0
"""Examines a data directory that no bookie uses."""
