# SPDX-License-Identifier: Apache-2.0
"""The client's configuration is checked with its relations."""

from __future__ import annotations

import pytest

from bk_core.client.config import ClientConfig
from bk_core.errors import InvalidArgumentError


@pytest.mark.parametrize(
    "wrong",
    [
        {"window_bytes_max": 0},
        {"frame_bytes": 32 << 20, "window_bytes_max": 64 << 20},
        {"window_bytes_max": 1 << 30},
        {"reconnect_budget_ms": 20_000},
    ],
)
def test_configuration_that_contradicts_itself_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        ClientConfig(**wrong)
