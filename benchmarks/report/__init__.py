# SPDX-License-Identifier: Apache-2.0
"""The tables, the page and the kept results that show the figures."""
