# SPDX-License-Identifier: Apache-2.0
"""Every test of this folder runs twice: with adds handled one by one where that is cheaper, and always as columns."""

from __future__ import annotations

import pytest

from bk_core.wire.bookie_rpc import runs


@pytest.fixture(autouse=True, params=["lone", "columns"])
def how_adds_are_handled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "columns":
        monkeypatch.setattr(runs, "LONE_ADDS_MAX", 0)
