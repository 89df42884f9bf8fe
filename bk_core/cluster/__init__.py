# SPDX-License-Identifier: Apache-2.0
"""Returns facts about a cluster as JSON objects. The command line and the web page call these functions, so that both
show the same facts.

The functions block, and only read. Each is limited in time, in count, or in both.
"""
