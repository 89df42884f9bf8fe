# SPDX-License-Identifier: Apache-2.0
"""Decides the identities and the rights of clients at a bookie's ports, by certificates, tokens, roles and grants."""
