# SPDX-License-Identifier: Apache-2.0
"""Mutants of ``bk_core/logs`` outside its machines and sequences."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_STORE = "tests/logs/test_store.py::"
_RECORDS = "tests/contracts/test_metadata_logs_contract.py::"
_KEPT = "tests/contracts/test_metadata_unlinked_contract.py::"
_UNLINKING = "tests/logs/model/test_unlinking.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="a leader deletes the pages of a head whose answer was lost",
        path="bk_core/logs/store.py",
        old="""        except MetadataConflictError:
            self.delete_pages([new.name for new in change.new_pages])""",
        new="""        except MetadataError:
            self.delete_pages([new.name for new in change.new_pages])""",
        tests=(f"{_STORE}test_pages_of_a_leaders_head_stay_when_its_answer_is_lost",),
        breaks="the head was applied and names pages that are gone: the log cannot be read any more",
    ),
    Mutant(
        name="a log found after a lost answer is taken for ours",
        path="bk_core/metadata/tree/named_logs/records.py",
        old="is_mine = lost is not None and self._find(path) == head",
        new="is_mine = lost is not None",
        tests=(f"{_RECORDS}test_another_log_of_this_name_is_not_taken_for_ours_after_a_lost_answer",),
        breaks="two clients make a log of one name; one goes on with the head of the other's as if it were its own",
    ),
    Mutant(
        name="a leader lists a ledger that vacuum has deleted",
        path="bk_core/logs/leading/requests.py",
        old="        await asyncio.to_thread(self._bookkeeper.store.read_ledger, effect.ledger.ledger_id)\n",
        new="",
        tests=("tests/logs/test_leader.py::test_a_ledger_that_a_vacuum_deleted_meanwhile_is_not_listed",),
        breaks="after a pause of days entries are confirmed into a ledger that no longer exists",
    ),
    Mutant(
        name="vacuum goes by its own clock",
        path="bk_core/logs/named_log.py",
        old="now_ms = await asyncio.to_thread(self._store.clock_ms)",
        new="now_ms = _now_ms()",
        tests=(f"{_UNLINKING}test_what_an_old_log_unlinks_today_is_there_for_the_delay_and_goes_then",),
        breaks="a machine whose clock is a week ahead deletes what was unlinked a moment ago",
    ),
    Mutant(
        name="a head does not put on record what it unlinks",
        path="bk_core/logs/store.py",
        old="unlinked = None if write.unlinked.is_empty else encode_unlinked(write.unlinked)",
        new="unlinked = None",
        tests=(
            f"{_STORE}test_a_leaders_head_puts_on_record_what_it_unlinks",
            f"{_UNLINKING}test_what_an_old_log_unlinks_today_is_there_for_the_delay_and_goes_then",
        ),
        breaks="an old log that is overwritten today loses its ledgers tonight, under running readers",
    ),
    Mutant(
        name="the record of what is unlinked is written beside the head, not with it",
        path="bk_core/metadata/tree/named_logs/records.py",
        old="""            ops.append(Create(self._record(write.name, f"{write.version + 1:010d}"), write.unlinked))""",
        new="""            self._tree.create(self._record(write.name, f"{write.version + 1:010d}"), write.unlinked)""",
        tests=(
            f"{_KEPT}test_what_a_head_unlinks_is_on_record_in_the_same_step_with_the_stores_time",
            f"{_KEPT}test_a_lost_answer_leaves_head_and_record_both_changed_or_neither",
        ),
        breaks="a refused head leaves a record, whose name the next head then cannot take",
    ),
    Mutant(
        name="a client that is closed under a publish says that nothing was applied",
        path="bk_core/logs/machines/change.py",
        old="            if error.outcome is Outcome.UNKNOWN:  # also if the store is closed during a write\n",
        new="            if isinstance(error, MetadataUnavailableError) and error.outcome is Outcome.UNKNOWN:\n",
        tests=(f"{_STORE}test_a_publish_under_which_the_client_is_closed_does_not_say_that_nothing_was_applied",),
        breaks="a job is told that its publish was not applied, though it was, and its pages are deleted",
    ),
    Mutant(
        name="an error that a sequence is told of passes it by",
        path="bk_core/logs/sequences.py",
        old="                step, told = steps.throw, error\n",
        new="                raise\n",
        tests=(f"{_STORE}test_a_publish_whose_answer_is_lost_happens_once",),
        breaks="a publish whose answer is lost fails at once, and nobody looks whether it was applied",
    ),
    Mutant(
        name="the driver writes the heads of several logs one after the other",
        path="bk_core/logs/sequences.py",
        old="                return await asyncio.to_thread(self._first.store.write_logs, made)\n",
        new="                return [await asyncio.to_thread(self._first.store.write_logs, [each]) for each in made]\n",
        tests=(
            "tests/contracts/test_fan_out_contract.py::test_a_rival_in_one_log_is_outlasted_and_both_are_there[memory]",
        ),
        breaks="a write into several logs is in some of them and not in others",
    ),
    Mutant(
        name="a ledger that cannot be recovered is one that does not exist",
        path="bk_core/logs/sequences.py",
        old="            elif isinstance(end, NoSuchLedgerError):\n",
        new="            elif isinstance(end, BookKeeperError):\n",
        tests=(
            "tests/logs/test_sequence_driver.py::test_a_ledger_that_cannot_be_recovered_now_is_not_one_that_does_not_exist",
        ),
        breaks="a ledger that cannot be recovered now is taken for one that was deleted outside the log",
    ),
    Mutant(
        name="a log made after ours was deleted is deleted too",
        path="bk_core/metadata/tree/named_logs/records.py",
        old="if lost is not None and (stat is None or stat.ctime_ms != made_ms):",
        new="if lost is not None and stat is None:",
        tests=(f"{_RECORDS}test_a_log_made_after_ours_was_deleted_outlives_a_lost_answer",),
        breaks="the answer of a deletion is lost, somebody makes the log again, and the second try deletes theirs",
    ),
    Mutant(
        name="a dry run of vacuum forgets what was unlinked lately",
        path="bk_core/logs/store.py",
        old="young = [record for record in self.unlinked() if record.made_ms >= before_ms]",
        new="young = self.unlinked()[:0]",
        tests=(f"{_UNLINKING}test_what_an_old_log_unlinks_today_is_there_for_the_delay_and_goes_then",),
        breaks="the dry run names ledgers that the vacuum keeps, and somebody deletes them by hand",
    ),
    Mutant(
        name="a page brings a deleted log back",
        path="bk_core/metadata/tree/named_logs/records.py",
        old="""                self._tree.create(path, data)
                return
            except NoNodeError as error:""",
        new="""                self._create_with_parents(path, data)
                return
            except NoNodeError as error:""",
        tests=(f"{_RECORDS}test_a_page_of_a_log_that_is_deleted_meanwhile_does_not_bring_it_back",),
        breaks="a publish under which the log is deleted leaves a log with an empty head: its name is lost for good",
    ),
)
