# SPDX-License-Identifier: Apache-2.0
"""What a bookie answers and when, as a pure machine."""
