# SPDX-License-Identifier: Apache-2.0
"""The upkeep of storage beside commits: checkpoints, compaction, scrubbing, rebuilding of indexes."""
