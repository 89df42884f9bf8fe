# SPDX-License-Identifier: Apache-2.0
"""Commands about bookies: run one, inspect it, take it out, repair and rebalance."""
