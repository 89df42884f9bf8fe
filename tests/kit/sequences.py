# SPDX-License-Identifier: Apache-2.0
"""Sequences (bk_core.logs.machines.ask) that are answered by hand. They can be copied: a generator cannot, but the
function that made it and the answers so far make it again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from copy import copy
from typing import Any

from bk_core.errors import BookKeeperError
from bk_core.logs.machines import ask
from bk_core.logs.machines.ask import Steps


class Told:
    """One sequence at its current step. ``make`` makes the object whose ``run`` is the sequence; it must behave alike
    each time."""

    def __init__(self, make: Callable[[], Any], answers: tuple[Any, ...] = ()) -> None:
        self.make, self.made = make, make()
        self.answers: tuple[Any, ...] = ()
        self.asked: tuple[Any, ...] = ()
        self.request: Any = None
        self.result: Any = None
        self.error: BookKeeperError | None = None
        self.is_done = False
        self._steps: Steps[Any] = self.made.run()
        self._go_on(None)
        for each in answers:
            self.tell(each)

    def tell(self, answer: Any) -> Any:
        """Answer the request; an error is raised where the sequence waits. Return the next request, or at the end the
        result or the error."""
        assert not self.is_done, "it has ended"
        self.answers = (*self.answers, answer)
        return self._go_on(_own(answer))

    def copy(self) -> Told:
        """Make a copy at the same step."""
        return Told(self.make, self.answers)

    def drop(self) -> None:
        """End the sequence early: it must make no further request."""
        self._steps.close()

    def where(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Yield each function that waits, with its line and its local values."""
        steps: Any = self._steps
        while isinstance(steps, Generator):
            frame: Any = steps.gi_frame
            yield frame.f_code.co_name, frame.f_lineno, dict(frame.f_locals)
            steps = steps.gi_yieldfrom

    @property
    def log_requests(self) -> dict[str, ask.OfOneLog]:
        """The request to each log."""
        assert isinstance(self.request, ask.ForLogs), self.request
        return dict(self.request.requests)

    def _go_on(self, answer: Any) -> Any:
        self.request = None
        try:
            if isinstance(answer, BookKeeperError):
                self.request = self._steps.throw(answer)
            else:
                self.request = self._steps.send(answer)
        except StopIteration as ended:
            self.is_done, self.result = True, ended.value
            return self.result
        except BookKeeperError as error:
            self.is_done, self.error = True, error
            return error
        self.asked = (*self.asked, self.request)
        return self.request


def _own(answer: Any) -> Any:
    """Copy errors in an answer: they change when they are raised, so each run needs its own."""
    if isinstance(answer, BookKeeperError):
        return copy(answer)
    if isinstance(answer, dict):
        return {key: _own(value) for key, value in answer.items()}
    return answer
