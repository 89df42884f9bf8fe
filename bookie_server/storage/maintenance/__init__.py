# SPDX-License-Identifier: Apache-2.0
"""What is done beside commits: checkpoints, compaction, scrubbing."""
