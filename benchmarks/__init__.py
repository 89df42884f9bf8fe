# SPDX-License-Identifier: Apache-2.0
"""What the product is measured by (DESIGN §11): ``python -m benchmarks``, through ``scripts/bench``."""
