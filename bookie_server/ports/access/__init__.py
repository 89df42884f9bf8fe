# SPDX-License-Identifier: Apache-2.0
"""Who a client is and what it may do: certificates, tokens, roles and grants at a bookie's ports."""
