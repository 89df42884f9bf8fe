# SPDX-License-Identifier: Apache-2.0
"""What the product is measured by: ``python -m benchmarks``, through ``scripts/bench``."""
