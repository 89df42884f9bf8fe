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
        "who makes a cluster overwrites nothing, and does not notice another's root",
        "bk_core/metadata/tree/cluster/root.py",
        "            if found is not None and tree.children(root):",
        "            if found is not None and tree.exists(f'{root}/INSTANCEID'):",
        (f"{_ROOT}::test_a_root_that_holds_something_else_is_refused_and_left_as_it_is",),
        "a cluster among the nodes of another program",
    ),
    Mutant(
        "who comes second gives up",
        "bk_core/metadata/tree/cluster/root.py",
        "        except (NodeExistsError, NoNodeError, BadVersionError, MetadataUnavailableError):",
        "        except (NoNodeError, BadVersionError, MetadataUnavailableError):",
        (
            f"{_ROOT}::test_of_several_who_make_a_cluster_at_once_exactly_one_does",
            f"{_ROOT}::test_one_who_comes_second_in_the_last_moment_goes_on_with_the_firsts_cluster",
        ),
        "of four bookies that compose starts, three end",
    ),
    Mutant(
        "a bookie whose id was taken over ends as after a signal",
        "bookie_server/main.py",
        "    if isinstance(bookie.error, BookieIdentityError):\n        raise bookie.error\n",
        "    if isinstance(bookie.error, BookieIdentityError):\n        return 0\n",
        (f"{_WIRING}::test_a_bookie_whose_id_was_taken_over_ends_with_that_error",),
        "a supervisor that restarts failures leaves it down, and nobody is told",
    ),
    Mutant(
        "a failed disk looks like a bug",
        "bookie_server/main.py",
        "return EXIT_STORAGE_FAILED if isinstance",
        "return EXIT_BUG if isinstance",
        (f"{_WIRING}::test_the_exit_code_tells_why_a_bookie_ended",),
        "the supervisor restarts a bookie on a disk that loses writes",
    ),
    Mutant(
        "the last error counts instead of the first",
        "bookie_server/main.py",
        "        self.error = self.error or error\n",
        "        self.error = error\n",
        (f"{_WIRING}::test_the_first_failure_is_the_reason",),
        "a failed disk that ends other threads too is reported as theirs",
    ),
    Mutant(
        "the store is not told how far the log goes",
        "bookie_server/main.py",
        "positions=lambda: {each.directory.identity.incarnation: each.log.position for each in opened},",
        "positions=lambda: {},",
        (f"{_AVAILABILITY}::test_store_knows_how_far_the_log_goes",),
        "a restored snapshot serves as if it were whole",
    ),
    Mutant(
        "a registration that is about to go is not waited for",
        "bookie_server/identity/registration.py",
        "    deadline = time.monotonic() + wait_s\n",
        "    deadline = time.monotonic()\n",
        (f"{_REGISTRATION}::test_directory_that_was_moved_is_waited_for_and_then_taken",),
        "a bookie that was moved to another machine does not start until its old session ends",
    ),
    Mutant(
        "a host name that stands for loopback is not noticed",
        "bookie_server/identity/registration.py",
        "    return bool(found) and all(",
        "    return bool(found) and not all(",
        (f"{_REGISTRATION}::test_loopback_address_is_not_registered_unless_allowed",),
        "a bookie that only its own machine reaches",
    ),
    Mutant(
        "writable bookies that are no spares are left out",
        "bk_core/placement.py",
        "            value=writable_in_words(writable, exclude),",
        "            value=writable_in_words(usable, exclude),",
        ("tests/protocol/test_placement.py",),
        '"writable: none" while some are',
    ),
)
