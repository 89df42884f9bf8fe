# SPDX-License-Identifier: Apache-2.0
"""Exhaustive search over small worlds of production machines (RULES P11): ``explore(scope("crash"))``."""

from __future__ import annotations

from tests.sim.exhaustive.checks import LOSS
from tests.sim.exhaustive.scope import Scope
from tests.sim.exhaustive.scopes import SCOPES, scope
from tests.sim.exhaustive.search import Result, Trace, explore

__all__ = ["LOSS", "SCOPES", "Result", "Scope", "Trace", "explore", "scope"]
