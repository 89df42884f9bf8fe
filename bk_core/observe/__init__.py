# SPDX-License-Identifier: Apache-2.0
"""Output of a process about itself: metrics, traces, the audit log, the log of slow operations, log levels."""
