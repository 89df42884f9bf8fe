# SPDX-License-Identifier: Apache-2.0
"""The admin port of a bookie: metrics, health and settings over HTTP, for reading only."""
