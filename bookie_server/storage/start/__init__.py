# SPDX-License-Identifier: Apache-2.0
"""Opens a data directory: replays its segments and reports the findings."""
