# SPDX-License-Identifier: Apache-2.0
"""The admin port of a bookie: metrics, health, settings and the web page over HTTP."""
