# SPDX-License-Identifier: Apache-2.0
"""The web page: its files, the JSON that they read, and the port of ``bk web``."""
