# SPDX-License-Identifier: Apache-2.0
"""The pure part of named logs. Leadership is a machine; changes of heads, vacuum and compaction are sequences."""
