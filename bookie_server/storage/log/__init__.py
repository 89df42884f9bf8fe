# SPDX-License-Identifier: Apache-2.0
"""The segment log: writes groups of frames, reads frames by place."""
