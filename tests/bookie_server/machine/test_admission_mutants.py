# SPDX-License-Identifier: Apache-2.0
"""Every known defect of admission, put back, is found by a story of ``test_machine_admission.py``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.bookie_server.machine import test_machine_admission as stories
from tests.sim.mutants.admission import ADMISSION_MUTANTS, Planted

PARAMETRIZED = stories.test_client_with_many_requests_does_not_delay_another
STORIES: list[Callable[[], None]] = [
    *(partial(PARAMETRIZED, active) for active in (1, 8)),
    *(story for name, story in vars(stories).items() if name.startswith("test_") and story is not PARAMETRIZED),
]


def kill(planted: Planted) -> str | None:
    """The story that a mutant dies of; None if it lives."""
    with planted():
        for story in STORIES:
            try:
                story()
            except (AssertionError, IndexError, ValueError, KeyError):
                return getattr(story, "__name__", "a parametrized one")
    return None


@pytest.mark.parametrize(("name", "rule", "planted"), ADMISSION_MUTANTS, ids=[name for name, _, _ in ADMISSION_MUTANTS])
def test_a_defect_put_back_is_found(name: str, rule: str, planted: Planted) -> None:
    assert kill(planted), f"{name} ({rule}) lives"


def test_without_a_defect_every_story_holds() -> None:
    for story in STORIES:
        story()
