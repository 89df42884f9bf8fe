# SPDX-License-Identifier: Apache-2.0
"""The system calls, and the state of a disk: healthy, full, whose."""
