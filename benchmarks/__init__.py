# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of the product: ``python -m benchmarks``, through ``scripts/bench``."""
