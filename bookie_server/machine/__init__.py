# SPDX-License-Identifier: Apache-2.0
"""The pure machine that decides what a bookie answers, and when."""
