# SPDX-License-Identifier: Apache-2.0
"""Has the output of a process about itself, which is metrics, traces, the audit log, the log of slow operations, and
log levels."""
