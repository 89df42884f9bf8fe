# SPDX-License-Identifier: Apache-2.0
"""The segment log: groups in, durable places out; frames read by place."""
