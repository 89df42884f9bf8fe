# SPDX-License-Identifier: Apache-2.0
"""Decides how many bookies serve one long range of a ledger that is not striped. Pure.

A range is read from one bookie, because each further process costs processor time. Over a network that loses packets
each connection slows down separately, so several connections together are faster. The decision is measured
(docs/decisions/0080): a bookie joins while the consumer mostly waits, and stays only if all bookies together are then
faster.

Time is cut into periods of at least PERIOD_S. Periods end only when the consumer has waited, so a consumer that never
waits costs nothing here.
"""

from __future__ import annotations

BOOKIES_MAX = 3
"""The maximum number of bookies that serve one range."""

PERIOD_S = 0.25
"""The shortest period of a measurement, in seconds. Reads that end earlier use one bookie."""

JOIN_SHARE, LEAVE_SHARE = 0.2, 0.75
"""A bookie joins if the client itself needs less than JOIN_SHARE of a period for what came, so it could take five times
as much. On one machine the share is 0.35 to 0.9. Above LEAVE_SHARE one bookie is enough."""

GAIN = 1.1
"""How much faster all bookies together must be after one joined. On a network that loses packets, the ideal is 2 for
the second bookie and 1.5 for the third, and rates of periods differ by a fifth."""

PERIODS = 2
"""The number of periods in a row after which a bookie without a gain leaves. The first period of a trial includes the
bookie's connection."""

HARM = 0.8
"""A trial ends after one period if all bookies together have less than this share of the rate before. Two connections
that share one full cable make each other lose packets."""

WORTH_S = 5 * PERIOD_S
"""A bookie joins only if the rest of the range would take at least so long: two periods measure, and the rest gains."""

REST_S, REST_S_MAX = 2.0, 64.0
"""The time after a failed trial in which no bookie joins. It doubles with each failure, up to the maximum."""


class Sharing:
    """The number of bookies that should serve a range is ``wanted``. ``useless`` says that the last bookie left because
    all were not faster with it, and not because the consumer got slow. The reader reports with :meth:`serves` how many
    do, and with :meth:`arrived` the verified bytes; its driver reports each wait with :meth:`waited`."""

    def __init__(self, most: int) -> None:
        self.wanted, self.useless = 1, False
        self._most = self._ceiling = min(most, BOOKIES_MAX)
        self._serving = 1
        self._slower: list[float] = []  # the rates, in bytes a second, of 1, 2, … bookies; one less than `wanted`
        self._on_trial = False  # whether the last bookie that joined has not shown a gain yet
        self._misses = 0  # the number of periods in a row without a gain
        self._rest_s, self._rests_until = REST_S, 0.0
        self._bytes = self._left = 0
        self._waited_s = 0.0
        self._began: tuple[float, float] | None = None  # the time and the processor time at the begin of the period

    def limit(self, most: int) -> None:
        """Note that only ``most`` bookies can serve the next entries."""
        self._most = max(1, min(most, self._ceiling))
        if self.wanted > self._most:
            self._set(self._most)

    def serves(self, count: int) -> None:
        """Note that from now on ``count`` bookies serve the range. The period begins anew, because the last one
        measured something else."""
        if count != self._serving:
            self._serving, self._began = count, None

    def arrived(self, size: int, left: int) -> None:
        """Note that ``size`` bytes came and were verified, and that about ``left`` bytes of the range are left."""
        self._bytes += size
        self._left = left

    def waited(self, now: float, waited_s: float, processor_s: float) -> None:
        """Note that the consumer has waited ``waited_s`` seconds for a bookie, until ``now``. ``processor_s`` is the
        processor time of this thread so far: receiving happens during waits, and is work of the client."""
        if self._began is None:
            self._begin(now, processor_s)
            return
        self._waited_s += waited_s
        began, processor_began = self._began
        span_s = now - began
        if span_s < PERIOD_S:
            return
        own_s = max(span_s - self._waited_s, processor_s - processor_began)
        self._judge(now, self._bytes / span_s, own_s / span_s)
        self._begin(now, processor_s)

    def _begin(self, now: float, processor_s: float) -> None:
        self._began, self._bytes, self._waited_s = (now, processor_s), 0, 0.0

    def _judge(self, now: float, rate: float, own_share: float) -> None:
        """Change ``wanted`` after a period with this rate, in which the client itself needed ``own_share``."""
        if self._serving != self.wanted:
            if self._serving == 1 and len(self._slower) == 1:  # the bookie has not joined yet: this still measures one
                self._slower[0] = (self._slower[0] + rate) / 2
            return
        if self.wanted > 1:
            if own_share > LEAVE_SHARE:
                self._leave(now, 1, useless=False)
                return
            if rate < self._slower[-1] * (GAIN if self._on_trial else 1):
                self._misses += 1
                if self._misses == PERIODS or (self._on_trial and rate < self._slower[-1] * HARM):
                    self._leave(now, self.wanted - 1, useless=True)
                return
            self._on_trial, self._misses = False, 0
        can_join = self.wanted < self._most and own_share < JOIN_SHARE and now >= self._rests_until
        if can_join and 0 < rate * WORTH_S <= self._left:
            self._slower.append(rate)
            self.wanted, self._on_trial, self.useless = self.wanted + 1, True, False

    def _leave(self, now: float, wanted: int, *, useless: bool) -> None:
        self._set(wanted)
        self.useless = useless
        self._rests_until, self._rest_s = now + self._rest_s, min(2 * self._rest_s, REST_S_MAX)

    def _set(self, wanted: int) -> None:
        self.wanted, self._on_trial, self._misses = wanted, False, 0
        del self._slower[wanted - 1 :]
