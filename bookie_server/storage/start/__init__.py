# SPDX-License-Identifier: Apache-2.0
"""Opening a data directory: replay, and what it finds."""
