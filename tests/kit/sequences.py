# SPDX-License-Identifier: Apache-2.0
"""Sequences (bk_core.logs.machines.ask) to which a test gives the answers. They can be copied although generators
cannot: the copy runs the function again with the answers so far."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from copy import copy
from typing import Any

from bk_core.errors import BookKeeperError
from bk_core.logs.machines import ask
from bk_core.logs.machines.ask import Steps


class Told:
    """A sequence at its current step. ``make`` makes the object whose ``run`` is the sequence. It must behave the same
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
        """Answer the request. An error is raised where the sequence waits. Return the next request or, at the end, the
        result or the error."""
        assert not self.is_done, "the sequence has ended"
        self.answers = (*self.answers, answer)
        return self._go_on(_own(answer))

    def copy(self) -> Told:
        """Make a copy at the same step."""
        return Told(self.make, self.answers)

    def drop(self) -> None:
        """End the sequence early. Fail if it makes a further request."""
        self._steps.close()

    def where(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Yield each function of the sequence that waits, with its line and its local variables."""
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
    """Copy the errors in an answer. An error changes when it is raised, so each run needs its own."""
    if isinstance(answer, BookKeeperError):
        return copy(answer)
    if isinstance(answer, dict):
        return {key: _own(value) for key, value in answer.items()}
    return answer
