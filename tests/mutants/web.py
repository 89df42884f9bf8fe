# SPDX-License-Identifier: Apache-2.0
"""Mutants of the admin port: what it says of a bookie, and what clients of it may hold."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_HTTP = "bookie_server/web/http.py"
_PLACES = "bookie_server/web/places.py"
_HEALTH = "bookie_server/web/health.py"
_HTTP_TEST = "tests/bookie_server/web/test_http.py"
_PLACES_TEST = "tests/bookie_server/web/test_places.py"
_SILENT = f"{_PLACES_TEST}::test_silent_clients_take_no_place_of_a_probe"
_ADMIN_TEST = "tests/bookie_server/web/test_admin.py"
_PAGE_TEST = "tests/bookie_server/web/test_page.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "the admin port takes any number of connections",
        _PLACES,
        "        if len(self.taken) >= self._count and not self._make_room():",
        "        if False:",
        (f"{_PLACES_TEST}::test_who_is_being_answered_is_never_cut_and_places_have_an_end[plain]",),
        "whoever reaches the port takes all of the bookie's open files",
    ),
    Mutant(
        "who is silent at the admin port keeps its place",
        _PLACES,
        "            return False\n        of_host",
        "            return False\n        return False\n        of_host",
        (f"{_SILENT}[plain-no request]",),
        "sixteen connections of anybody, and Kubernetes ends a bookie that is well",
    ),
    Mutant(
        "who makes a handshake for ever keeps its place at the admin port",
        _HTTP,
        "Principal(peer_of(sock)).host, task.cancel)",
        "Principal(peer_of(sock)).host, lambda: None)",
        (f"{_SILENT}[tls-mute]",),
        "connections without an end, beside the bound",
    ),
    Mutant(
        "who was answered over TLS and does not close keeps its place at the admin port",
        _HTTP,
        "place.asks = len(sent) > _AT_ONCE_BYTES",
        "pass",
        (f"{_SILENT}[tls-answered, and does not close]",),
        "sixteen clients that never end TLS keep probes out",
    ),
    Mutant(
        "whose request is being answered may be cut off the admin port",
        _PLACES,
        "for each in self.taken if not each.asks]",
        "for each in self.taken]",
        (f"{_PLACES_TEST}::test_who_is_being_answered_is_never_cut_and_places_have_an_end[plain]",),
        "a flood of silent clients cuts every scrape",
    ),
    Mutant(
        "the oldest makes room at the admin port, whoever floods it",
        _PLACES,
        "key=lambda each: of_host[each.host])",
        "key=lambda each: 0)",
        (f"{_PLACES_TEST}::test_the_host_with_most_clients_that_wait_makes_room",),
        "a flood of one host cuts a probe of another before it has asked",
    ),
    Mutant(
        "the admin port waits for the rest of a request for ever",
        _HTTP,
        "            async with asyncio.timeout(DEADLINE_S):\n                head",
        "            async with asyncio.timeout(None):\n                head",
        (f"{_HTTP_TEST}::test_a_request_that_never_ends_is_given_up",),
        "sixteen silent clients keep everybody else out",
    ),
    Mutant(
        "the admin port waits for ever for a client that takes nothing",
        _HTTP,
        "        async with asyncio.timeout(DEADLINE_S):\n            writer.write",
        "        async with asyncio.timeout(None):\n            writer.write",
        (f"{_HTTP_TEST}::test_a_client_that_takes_nothing_of_its_answer_is_cut_off",),
        "sixteen clients that take nothing keep everybody else out",
    ),
    Mutant(
        "the admin port answers other methods than GET",
        _HTTP,
        '        raise Refused(405, "this port is for reading: only GET")',
        "        pass",
        (_HTTP_TEST + "::test_only_a_plain_get_is_answered",),
        "a PUT of an operator of Apache's is answered as if it had been done",
    ),
    Mutant(
        "whoever answers at an admin port is the bookie that published it",
        "bookie_server/web/others.py",
        '    if there not in (info.bookie_id, ""):  # "": it starts\n',
        "    if False:\n",
        ("tests/cli/test_cluster_top.py::test_a_bookie_that_runs_shows_its_numbers_and_a_mute_one_says_so",),
        "bk cluster top shows the numbers of the bookie beside it as those of every bookie on loopback",
    ),
    Mutant(
        "rates go over a restart",
        "bk_cli/cluster_top.py",
        "    known = old if isinstance(old, Numbers) and _same_process(old, numbers) else None\n",
        "    known = old if isinstance(old, Numbers) else None\n",
        ("tests/cli/test_cluster_top.py::test_rates_are_between_two_looks_of_one_process",),
        "a bookie that was started again seems idle, or slower than it is",
    ),
    Mutant(
        "everybody who reaches the admin port may write",
        "bookie_server/web/admin.py",
        '    "loopback": _is_loopback,\n',
        '    "loopback": lambda address: True,\n',
        (f"{_ADMIN_TEST}::test_who_may_write",),
        "who reaches a bookie's admin port has it fill its log",
    ),
    Mutant(
        "slow commits are not told",
        "bookie_server/engine/committer.py",
        "            if self._ended - group.since >= self._slow_s:\n",
        "            if False:\n",
        (f"{_ADMIN_TEST}::test_slow_operations_are_logged_with_the_clients_session",),
        "appends wait for seconds, and no line says where",
    ),
    Mutant(
        "a slow disk has every operation logged",
        "bk_core/slow_log.py",
        "            if self._left < 1:\n",
        "            if False:\n",
        ("tests/client/test_metrics.py::test_slow_log_has_a_rate_and_counts_what_it_left_out",),
        "a sick disk is then filled by its own log",
    ),
    Mutant(
        "a bookie is ready before it is registered",
        "bookie_server/web/view.py",
        "        return self.availability is not None and self.availability.registered",
        "        return self.availability is not None",
        (f"{_ADMIN_TEST}::test_a_bookie_is_not_ready_before_it_is_registered",),
        "a rolling restart stops the next bookie while clients do not find this one",
    ),
    Mutant(
        "a full disk makes a bookie not ready at once",
        _HEALTH,
        "        if self.read_only and self.read_only_s >= READ_ONLY_S:",
        "        if self.read_only:",
        (f"{_ADMIN_TEST}::test_ready_says_what_is_in_the_way",),
        "a rolling restart never ends on a cluster that is nearly full",
    ),
    Mutant(
        "a loop that stands still is ready",
        _HEALTH,
        "        if self.silent_s >= STALLED_S:",
        "        if False:",
        (f"{_ADMIN_TEST}::test_a_loop_that_stands_is_told_while_it_stands",),
        "a bookie that hangs is taken for one that is well",
    ),
    Mutant(
        "a frame of many entries counts as one",
        "bookie_server/machine/machine.py",
        "            counts.added_entries += pending.header.count",
        "            counts.added_entries += 1",
        (f"{_ADMIN_TEST}::test_metrics_count_what_a_client_did",),
        "an operator sees a thousandth of the rate",
    ),
    Mutant(
        "the buckets of a histogram are not cumulative",
        "bk_core/metrics.py",
        "        below += count",
        "        below = count",
        (f"{_ADMIN_TEST}::test_metrics_count_what_a_client_did",),
        "every quantile of Prometheus is wrong",
    ),
    Mutant(
        "the settings show the password of the metadata store",
        "bookie_server/web/admin.py",
        '    return _USER.sub("", value) if isinstance(value, str) else value',
        "    return value",
        (f"{_ADMIN_TEST}::test_a_user_and_a_password_in_the_uri_are_not_shown",),
        "who may look at a bookie may change its cluster",
    ),
    Mutant(
        "on loopback any Host is answered",
        _HTTP,
        "        if self._is_local and request.host and not names_an_address(request.host, self._name):",
        "        if False:",
        (f"{_HTTP_TEST}::test_on_loopback_a_name_that_could_be_a_web_sites_is_refused",),
        "a web site whose name resolves to 127.0.0.1 reads everything",
    ),
    Mutant(
        "scripts of any origin may run on the page",
        _HTTP,
        "script-src 'self';",
        "script-src *;",
        (f"{_HTTP_TEST}::test_no_answer_may_be_read_or_framed_by_another_origin_or_run_what_is_not_ours",),
        "a text of the cluster that gets into the page as markup fetches a script",
    ),
    Mutant(
        "the page of a bookie looks at the cluster although nobody watches",
        "bookie_server/web/gatherer.py",
        "            if not self._is_watched():\n",
        "            if False:\n",
        (f"{_PAGE_TEST}::test_many_who_watch_cost_the_store_what_one_does_and_nobody_costs_nothing",),
        "each bookie of a cluster asks ZooKeeper for everything every five seconds",
    ),
    Mutant(
        "a list has no limit",
        "bookie_server/web/page.py",
        '    return max(1, min(_number(asked, "limit", LIMIT), LIMIT_MAX))',
        '    return max(1, _number(asked, "limit", LIMIT))',
        (f"{_PAGE_TEST}::test_every_list_has_a_limit_and_goes_on_after_its_cursor",),
        "one request reads a hundred thousand records from ZooKeeper",
    ),
    Mutant(
        "everybody reads from the metadata store at the same time",
        "bookie_server/web/page.py",
        "        if not self._turn.acquire(timeout=TURN_S):",
        "        if self._turn.acquire(timeout=0) and False:",
        (f"{_PAGE_TEST}::test_lists_are_read_one_at_a_time_and_kept_for_a_moment",),
        "a page that is open in many browsers is a load for ZooKeeper",
    ),
    Mutant(
        "a counter that began anew is a rate",
        "bookie_server/web/samples.py",
        "    if was is None or is_now is None or is_now < was or took_s <= 0:",
        "    if was is None or is_now is None or took_s <= 0:",
        ("tests/bookie_server/web/test_samples.py::test_a_bookie_that_began_anew_or_tells_nothing_has_no_rate",),
        "after a restart the plot dives below zero, and its scale hides the rest",
    ),
    Mutant(
        "who opens a ledger waits for a bookie that is gone",
        "bk_core/client/lac.py",
        "            timeout_s = STRAGGLERS_S if machine.done else None",
        "            timeout_s = None",
        (
            "tests/client/test_second_tries.py::"
            "test_one_bookie_that_is_gone_does_not_hold_up_who_opens_a_ledger_that_is_written",
        ),
        "after the loss of one bookie a live tail answers every five seconds, or never",
    ),
)
