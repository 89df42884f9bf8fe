# SPDX-License-Identifier: Apache-2.0
"""The identity of this bookie: its directories, its registration, its record in the store, and how it is opened."""
