# SPDX-License-Identifier: Apache-2.0
"""BookKeeper for Python: entries, protocol, metadata, client. Import the part you need; nothing is imported here."""

__version__ = "0.1.0"
