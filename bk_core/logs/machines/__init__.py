# SPDX-License-Identifier: Apache-2.0
"""Makes the decisions of named logs. Pure. Leadership is a machine; changes of heads, vacuum and compaction are
sequences."""
