# SPDX-License-Identifier: Apache-2.0
"""What is known of a cluster, as JSON objects: the command line and the web page ask here, so that both say the same.

Calls block, read, and change nothing. Each has a bound: of time, of a count, or both.
"""
