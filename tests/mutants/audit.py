# SPDX-License-Identifier: Apache-2.0
"""Mutants of secrets: where one is shown that must not be."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RECORDS = ("tests/repo/test_secrets.py::test_no_record_shows_the_secret_that_it_holds",)
_KAZOO = ("tests/metadata/test_zookeeper_session.py::test_kazoo_tells_its_requests_without_their_data",)
_OPTIONS = ("tests/spark/options/test_options.py::test_a_password_is_in_a_file_or_a_variable_and_in_no_message",)
_TABLES = ("tests/spark/options/test_table_options.py::test_each_option_of_reads_is_decided_on_and_no_secret_is_kept",)
_CLI = ("tests/cli/test_ledger_commands.py::test_a_password_is_taken_from_a_file_and_never_from_two_places",)
_CANARIES = "tests/repo/test_canaries.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a record of a ledger shows its password",
        "bk_core/model.py",
        'password: bytes | None = field(default=b"", repr=False)',
        'password: bytes | None = b""',
        _RECORDS,
        "a password stands in every traceback and log line that has the record",
    ),
    Mutant(
        "the files of TLS show the key that they hold",
        "bk_core/tls.py",
        'return "Pem(…)"',
        "return tuple.__repr__(self)",
        _RECORDS,
        "the key of a bookie stands in a traceback",
    ),
    Mutant(
        "options of a load show their password",
        "bk_spark/options/options.py",
        "    ledger_password: bytes = field(\n        repr=False,",
        "    ledger_password: bytes = field(\n        repr=True,",
        _RECORDS,
        "a password stands in the errors of Spark's workers",
    ),
    Mutant(
        "kazoo tells its requests whole",
        "bk_core/metadata/zookeeper/session.py",
        "_kazoo_logger.addFilter(without_data)\n",
        "",
        _KAZOO,
        "who sets the level to DEBUG has the passwords of all ledgers in the log",
    ),
    Mutant(
        "kazoo tells the data of its answers",
        "bk_core/metadata/zookeeper/told.py",
        '        return f"{len(value)} bytes"',
        "        return repr(value)",
        _KAZOO,
        "who sets the level to DEBUG has the passwords of the ledgers that are read",
    ),
    Mutant(
        "a password that is given twice stands in the error",
        "bk_spark/options/options.py",
        'both = "" if name in SECRETS else ',
        "both = ",
        _OPTIONS,
        "Spark shows the error on its UI and in the event log",
    ),
    Mutant(
        "the end of the line belongs to the password of a file",
        "bk_core/secret_files.py",
        'secret.removesuffix(b"\\n").removesuffix(b"\\r")',
        "secret",
        _OPTIONS,
        "a file that an editor wrote has another password than the one that is seen in it",
    ),
    Mutant(
        "a password and the file of one may be given together",
        "bk_cli/options.py",
        "    if password and file:",
        "    if False:",
        _CLI,
        "one of them is taken, and nobody knows which",
    ),
    Mutant(
        "a refused password tells the right one",
        "bk_core/client/bookkeeper.py",
        'f"the password of ledger {ledger_id} is another one",',
        'f"the password of ledger {ledger_id} is {metadata.password!r}",',
        _CLI,
        "whoever guesses is told",
    ),
    Mutant(
        "a table keeps which file has its password",
        "bk_spark/options/table_options.py",
        "if each.kind in (Kind.SECRET, Kind.SECRET_PATH, Kind.SECRET_VARIABLE)",
        "if each.kind is Kind.SECRET",
        _TABLES,
        "who makes a table chooses which file of its readers is sent to which cluster",
    ),
    Mutant(
        "a table keeps which file proves who reads it",
        "bk_spark/options/options.py",
        'OptionDefinition("zookeeper.auth.path", Kind.TEXT, _ALL, aliases=("zookeeperAuthPath",)),',
        'OptionDefinition("zookeeper.auth.path", Kind.TEXT, _ALL, aliases=("zookeeperAuthPath",), kept=True),',
        (
            f"{_TABLES[0].partition('::')[0]}::test_who_makes_a_table_does_not_choose_which_file_its_readers_prove"
            "_themselves_with",
        ),
        "who makes a table is sent the passwords of its readers",
    ),
    Mutant(
        "the tests do not look through what was printed",
        "tests/conftest.py",
        "    if heard and report.passed:",
        "    if False:",
        (f"{_CANARIES}::test_a_test_that_prints_or_logs_a_secret_fails",),
        "a leak into a log is noticed by nobody",
    ),
    Mutant(
        "a secret in base64 is not looked for",
        "tests/kit/canaries.py",
        "    return shown | set(_base64(secret))",
        "    return shown",
        (f"{_CANARIES}::test_a_secret_is_found_in_each_form",),
        "a password in a pickled or encoded option is noticed by nobody",
    ),
)
