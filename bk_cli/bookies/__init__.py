# SPDX-License-Identifier: Apache-2.0
"""Commands about bookies: run one, look into it, take it out, repair and rebalance."""
