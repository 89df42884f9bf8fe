# SPDX-License-Identifier: Apache-2.0
"""Mutants of a bookie's start and end: ``bookie_server/main.py``, registration, and the commands around them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_FIRST = "tests/bookie_server/identity/test_first_start.py"
_REGISTRATION = "tests/bookie_server/identity/test_registration.py"
_AVAILABILITY = "tests/bookie_server/identity/test_availability.py"
_WIRING = "tests/bookie_server/test_wiring.py"
_ROOT = "tests/contracts/test_cluster_root_contract.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "--init-cluster is not passed on",
        "bookie_server/main.py",
        "find_cluster, config, store, make=init_cluster)",
        "find_cluster, config, store, make=False)",
        (f"{_FIRST}::test_bookies_that_may_make_the_cluster_start_together_and_are_of_one",),
        "docker compose up never comes up",
    ),
    Mutant(
        "a bookie with data makes a second cluster",
        "bookie_server/identity/directories.py",
        "    if make and not used:",
        "    if make:",
        (f"{_FIRST}::test_a_bookie_with_data_makes_no_second_cluster_when_the_firsts_metadata_is_gone",),
        "the metadata's backup meets a new cluster at its root",
    ),
    Mutant(
        "who makes a cluster overwrites nothing, and does not notice another's root",
        "bk_core/metadata/tree/cluster_root.py",
        "            if found is not None and tree.children(root):",
        "            if found is not None and tree.exists(f'{root}/INSTANCEID'):",
        (f"{_ROOT}::test_a_root_that_holds_something_else_is_refused_and_left_as_it_is",),
        "a cluster among the nodes of another program",
        rule="M1",
    ),
    Mutant(
        "who comes second gives up",
        "bk_core/metadata/tree/cluster_root.py",
        "        except (NodeExistsError, NoNodeError, BadVersionError, MetadataUnavailableError):",
        "        except (NoNodeError, BadVersionError, MetadataUnavailableError):",
        (
            f"{_ROOT}::test_of_several_who_make_a_cluster_at_once_exactly_one_does",
            f"{_ROOT}::test_one_who_comes_second_in_the_last_moment_goes_on_with_the_firsts_cluster",
        ),
        "of four bookies that compose starts, three end",
        rule="M1",
    ),
    Mutant(
        "a bookie whose id was taken over ends as after a signal",
        "bookie_server/main.py",
        "    if isinstance(bookie.error, BookieIdentityError):\n        raise bookie.error\n",
        "    if isinstance(bookie.error, BookieIdentityError):\n        return 0\n",
        (f"{_WIRING}::test_a_bookie_whose_id_was_taken_over_ends_with_that_error",),
        "a supervisor that restarts failures leaves it down, and nobody is told",
        rule="S8",
    ),
    Mutant(
        "a failed disk looks like a bug",
        "bookie_server/main.py",
        "return EXIT_STORAGE_FAILED if isinstance",
        "return EXIT_BUG if isinstance",
        (f"{_WIRING}::test_the_exit_code_tells_why_a_bookie_ended",),
        "the supervisor restarts a bookie on a disk that loses writes",
        rule="S6",
    ),
    Mutant(
        "the last error counts instead of the first",
        "bookie_server/main.py",
        "        self.error = self.error or error\n",
        "        self.error = error\n",
        (f"{_WIRING}::test_the_first_failure_is_the_reason",),
        "a failed disk that ends other threads too is reported as theirs",
        rule="S6",
    ),
    Mutant(
        "no space is only looked at",
        "bookie_server/main.py",
        "on_no_space=lambda number: availability.no_space(number),",
        "on_no_space=lambda number: availability.look_soon(),",
        (f"{_AVAILABILITY}::test_commit_without_space_makes_the_bookie_read_only_at_once",),
        "a bookie goes on taking adds that it cannot store",
    ),
    Mutant(
        "hints of deleted ledgers are dropped",
        "bookie_server/main.py",
        "on_hint=lambda ledger_ids: garbage.hint(ledger_ids),",
        "on_hint=lambda ledger_ids: None,",
        ("tests/contracts/test_garbage_contract.py::test_a_ledger_that_a_client_deletes_is_soon_forgotten",),
        "space of deleted ledgers comes back after an hour, not after the grace",
    ),
    Mutant(
        "a bookie registers before it listens",
        "bookie_server/main.py",
        "        for service in self._services:\n            await service.start(engine, facts)\n",
        "        await availability.begin()\n        for service in self._services:\n"
        "            await service.start(engine, facts)\n",
        (f"{_WIRING}::test_who_finds_a_bookie_registered_can_talk_to_it",),
        "writers meet refused connections at every start, and replace a healthy bookie",
    ),
    Mutant(
        "the store is not told how far the log goes",
        "bookie_server/main.py",
        "positions=lambda: {each.directory.identity.incarnation: each.log.position for each in opened},",
        "positions=lambda: {},",
        (f"{_AVAILABILITY}::test_store_knows_how_far_the_log_goes",),
        "a restored snapshot serves as if it were whole",
        rule="S8",
    ),
    Mutant(
        "a registration outlives a clean stop",
        "bookie_server/main.py",
        "        if self._availability:\n            await self._availability.end()\n",
        "",
        (f"{_WIRING}::test_a_bookie_leaves_the_list_before_its_streams_end",),
        "clients are sent to a bookie that is going",
    ),
    Mutant(
        "a registration that is about to go is not waited for",
        "bookie_server/identity/registration.py",
        "    deadline = time.monotonic() + wait_s\n",
        "    deadline = time.monotonic()\n",
        (f"{_REGISTRATION}::test_directory_that_was_moved_is_waited_for_and_then_taken",),
        "a bookie that was moved to another machine does not start until its old session ends",
        rule="S8",
    ),
    Mutant(
        "a host name that stands for loopback is not noticed",
        "bookie_server/identity/registration.py",
        "    return bool(found) and all(",
        "    return bool(found) and not all(",
        (f"{_REGISTRATION}::test_loopback_address_is_not_registered_unless_allowed",),
        "a bookie that only its own machine reaches",
        rule="E3",
    ),
    Mutant(
        "doctor asks no bookie",
        "bk_core/facts/asking.py",
        "    said = await transport.link(info.bookie_id).bookie_info(deadline_s=timeout_s + 1)\n",
        "    said = BookieInfo(1, 1)\n",
        ("tests/cli/test_doctor.py::test_a_stopped_bookie_is_not_well_although_its_port_takes_connections",),
        "a hanging bookie is called well",
    ),
    Mutant(
        "doctor forgets who is not registered",
        "bk_cli/doctor.py",
        "        if bookie_id not in registered:",
        "        if bookie_id in registered and False:",
        ("tests/cli/test_doctor.py::test_a_bookie_that_is_gone_is_named_and_what_that_means",),
        "the bookie that is missing is not missed",
    ),
    Mutant(
        "ledger list reads all before it shows any",
        "bk_cli/ledger.py",
        "        for ledger_id, each in islice(found, limit):",
        "        for ledger_id, each in list(found)[:limit]:",
        ("tests/cli/test_ledger_commands.py::test_list_reads_no_more_than_it_shows_and_shows_it_at_once",),
        "a look at ten of a million ledgers takes minutes",
    ),
    Mutant(
        "writable bookies that are no spares are left out",
        "bk_core/placement.py",
        "            value=writable_in_words(writable, exclude),",
        "            value=writable_in_words(usable, exclude),",
        ("tests/protocol/test_placement.py",),
        '"writable: none" while some are',
        rule="E1",
    ),
)
