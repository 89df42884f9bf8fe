# SPDX-License-Identifier: Apache-2.0
"""Decides what a bookie answers and when, as a pure machine."""
