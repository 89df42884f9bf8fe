# SPDX-License-Identifier: Apache-2.0
"""Programs that use the product as its users do. Each runs in CI."""
