# SPDX-License-Identifier: Apache-2.0
"""Makes the system calls of storage, and tracks the owner, the health and the free space of a data directory."""
