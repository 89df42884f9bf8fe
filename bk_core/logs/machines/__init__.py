# SPDX-License-Identifier: Apache-2.0
"""The pure part of named logs: leadership, a machine; every change of a head, vacuum and compaction, sequences."""
