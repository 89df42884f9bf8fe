# SPDX-License-Identifier: Apache-2.0
"""Puts lost copies back: an auditor, of which a cluster has one, and workers (decision 0049)."""
