# SPDX-License-Identifier: Apache-2.0
"""Facts about a cluster as JSON objects. The command line and the web page call these functions, so that both say the
same.

Calls block, read, and change nothing. Each call is limited in time, in count, or both.
"""
