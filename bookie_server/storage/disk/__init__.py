# SPDX-License-Identifier: Apache-2.0
"""The system calls of storage, and the state of a disk: healthy, full, and whose it is."""
