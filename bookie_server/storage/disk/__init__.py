# SPDX-License-Identifier: Apache-2.0
"""The system calls of storage, and the state of a data directory: its owner, its health, its free space."""
