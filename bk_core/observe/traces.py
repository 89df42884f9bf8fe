# SPDX-License-Identifier: Apache-2.0
"""Makes spans of OpenTelemetry, if the program has set up its SDK. In other programs this module does nothing.

This module does not import OpenTelemetry unless the program has imported it, because a program that set up the SDK has
done so. In a process without it, :func:`spans` is None. An object calls :func:`spans` once when it is made, and then
only compares the result with None.

A client makes a span for an operation, a range or a frame, and a bookie for a message or a group. Neither makes a span
for an entry. Our lanes carry the context to bookies as a W3C ``traceparent``, and a bookie makes spans only for
messages that have one. Only a span that records becomes a parent, so a span that has ended gets no children, even if a
context still holds it.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar

import bk_core
from bk_core.errors import BookKeeperError, Outcome

P = ParamSpec("P")
T = TypeVar("T")

TRACER = "pyspark-bookkeeper"
PREFIX = "bookkeeper."
"""The prefix of the names of all spans and attributes."""


class Spans:
    """Makes spans with one provider of OpenTelemetry. ``arriving`` is the context of the message that the bookie's loop
    handles now, or None if that message is not traced."""

    def __init__(self, api: Any, provider: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api, self.provider = api, provider
        self._tracer = provider.get_tracer(TRACER, bk_core.__version__)
        self._wire = TraceContextTextMapPropagator()
        self.arriving: Any = None

    # --- the current span ---

    def here(self) -> Any:
        """Return the context of the current span, or None if no current span records."""
        span = self._api.get_current_span()
        said = span.get_span_context()
        if span.is_recording() or (said.is_remote and said.trace_flags.sampled):
            return self._api.set_span_in_context(span)
        return None

    def traceparent(self) -> str:
        """Return the current span as a W3C ``traceparent`` for a bookie, or an empty string without a span."""
        carrier: dict[str, str] = {}
        if self.here() is not None:
            self._wire.inject(carrier)
        return carrier.get("traceparent", "")

    # --- spans ---

    def begin(self, name: str, parent: Any = None, *, since_s: float | None = None, **attributes: Any) -> Any:
        """Begin a span, which the caller must end. Without ``parent`` the span has no parent. ``since_s`` is the number
        of seconds ago at which the span began."""
        start_ns = None if since_s is None else time.time_ns() - int(since_s * 1e9)
        context = parent if parent is not None else self._api.set_span_in_context(self._api.INVALID_SPAN)
        return self._tracer.start_span(PREFIX + name, context, start_time=start_ns, attributes=_named(attributes))

    def current(self, span: Any) -> AbstractContextManager[Any]:
        """Return a context manager, in whose block the span is the current span. The block must end in the same turn of
        the loop."""
        block: AbstractContextManager[Any] = self._api.use_span(
            span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )
        return block

    @contextmanager
    def operation(self, name: str, **attributes: Any) -> Iterator[Any]:
        """Make a span for the block. It is the current span in the block."""
        with self._ended(self.begin(name, self.here(), **attributes)) as span, self.current(span):
            yield span

    @contextmanager
    def arrival(self, name: str, traceparent: str, **attributes: Any) -> Iterator[Any]:
        """Make a span for a client's message. The bookie's machine handles the message in the block."""
        with self._ended(self.arrived(name, traceparent, **attributes)) as span:
            self.arriving = self._api.set_span_in_context(span)
            try:
                yield span
            finally:
                self.arriving = None

    def arrived(self, name: str, traceparent: str, **attributes: Any) -> Any:
        """Begin a span for a client's request. The caller must end it."""
        return self.begin(name, self._wire.extract({"traceparent": traceparent}), **attributes)

    @contextmanager
    def _ended(self, span: Any) -> Iterator[Any]:
        try:
            yield span
        except BaseException as error:
            self.fail(span, error)
            raise
        finally:
            span.end()

    def note(self, attributes: dict[str, Any]) -> None:
        """Add attributes to the current span."""
        self._api.get_current_span().set_attributes(_named(attributes))

    def fail(self, span: Any, error: BaseException) -> None:
        """Mark the span as failed, with the error's code, and whether the operation was applied. The end of a generator
        and the cancelling of a task are not failures."""
        if isinstance(error, BookKeeperError):
            self.failed(span, error.code, error.what, error.outcome)
        elif isinstance(error, Exception):
            self.failed(span, type(error).__name__, str(error))

    def failed(self, span: Any, code: str, what: str, outcome: Outcome = Outcome.UNKNOWN) -> None:
        span.set_attributes({"error.type": code, f"{PREFIX}outcome": outcome.value})
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, what))


_made: Spans | None = None


def spans() -> Spans | None:
    """Return this process's spans, or None if it has not imported OpenTelemetry and set up its SDK."""
    global _made
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider):
        return None
    if _made is None or _made.provider is not provider:
        _made = Spans(api, provider)
    return _made


def traced(
    name: str, **of_self: str
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Decorate a coroutine method so that each call makes a span. ``of_self`` maps attributes of the span to attributes
    of the method's object. The method can add attributes with :func:`note`."""

    def decorate(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @functools.wraps(work)
        def call(*arguments: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T]:
            found = spans()
            if found is None:
                return work(*arguments, **named)
            about = {key: getattr(arguments[0], attribute) for key, attribute in of_self.items()}
            return _around(found, name, about, work(*arguments, **named))

        return call

    return decorate


async def _around(found: Spans, name: str, about: dict[str, Any], work: Coroutine[Any, Any, T]) -> T:
    with found.operation(name, **about):
        return await work


def note(**attributes: Any) -> None:
    """Add attributes to the current span, if the program makes spans."""
    found = spans()
    if found is not None:
        found.note(attributes)


def operation(name: str, **attributes: Any) -> AbstractContextManager[Any]:
    """Make a span for a block, if the program makes spans. It is the current span in the block, so the block must not
    be suspended."""
    found = spans()
    return nullcontext() if found is None else found.operation(name, **attributes)


def _named(attributes: dict[str, Any]) -> dict[str, Any]:
    return {PREFIX + name: value for name, value in attributes.items()}
