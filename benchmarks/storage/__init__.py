# SPDX-License-Identifier: Apache-2.0
"""The bookie's storage engine beside the raw disk: ``scripts/bench storage``; the parts are in ``group.py``."""
