# SPDX-License-Identifier: Apache-2.0
"""What the figures are shown in: tables, pages, kept results."""
