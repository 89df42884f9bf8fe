# SPDX-License-Identifier: Apache-2.0
"""Apache's shell, benchmarks and autorecovery on our bookies (tests/interop/tools.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.interop.tools import SLOW, TOOLS, World, world
from tests.kit.amount import thorough

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("tools")) as made:
        yield made


@pytest.mark.parametrize(
    "tool",
    thorough(TOOLS, SLOW),
    ids=lambda tool: tool.__name__,
)
def test_apaches_tools_do_what_they_say(shared: World, tool: Callable[[World], str]) -> None:
    assert tool(shared)
