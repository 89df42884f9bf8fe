# SPDX-License-Identifier: Apache-2.0
"""Commands that operate a cluster: make it, watch it, secure it, check it, put load on it."""
