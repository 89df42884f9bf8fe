# SPDX-License-Identifier: Apache-2.0
"""Who this bookie is: its directories, its registration, what the store knows of it, and how it is opened."""
