# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests of the client."""

from __future__ import annotations

import pytest

from bk_core.client.writing import process_budget


@pytest.fixture(autouse=True)
def own_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test the budget of a new process. A writer that another test did not close keeps a part of the old
    one."""
    monkeypatch.setattr(process_budget, "_process", process_budget.ProcessBudget())
