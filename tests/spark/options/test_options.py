# SPDX-License-Identifier: Apache-2.0
"""Options: names, values, conflicts, and what an error tells the user to type."""

from __future__ import annotations

import pickle
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from bk_core.access.secret_files import SECRET_BYTES_MAX
from bk_core.errors import BookKeeperError, InvalidArgumentError
from bk_spark.options.offsets import AT_EARLIEST, AT_LATEST, EARLIEST, Bound
from bk_spark.options.options import _ALL, OPTIONS, BkOptions, Use, parse_options
from bk_spark.options.selection import LedgerSelection, LedgerSource, LogSelection, LogSource, PatternSelection
from tests.kit.canaries import PASSWORD

URI = {"metadataserviceuri": "zk://localhost:2181/ledgers"}


def parse(use: Use | None = Use.READ, **options: Any) -> BkOptions:
    return parse_options({**URI, "path": "events", **options}, use)


def refusal(use: Use | None = Use.READ, **options: Any) -> str:
    with pytest.raises(BookKeeperError) as caught:
        parse_options({**URI, **options}, use)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("[BK_")
    assert text.endswith("(not applied)")
    return text


def test_defaults_are_those_of_the_table() -> None:
    options = parse()
    assert options.selection == LogSelection(("events",))
    assert (options.starting, options.ending) == (AT_EARLIEST, AT_LATEST)
    assert (options.ensemble_size, options.write_quorum_size, options.ack_quorum_size) == (3, 3, 2)
    assert options.max_bytes_per_partition == 128 << 20
    assert options.max_bytes_per_trigger == 1 << 30
    assert options.read_mode == "lac"
    assert options.fail_on_data_loss
    assert options.max_entries_per_partition is None


@pytest.mark.rule("K7")
def test_one_option_has_one_name_in_three_spellings() -> None:
    for spelling in (
        "writeQuorumSize",
        "writequorumsize",
        "write_quorum_size",
        "write-quorum-size",
        "--write-quorum-size",
    ):
        assert parse(**{spelling: "1", "ackQuorumSize": "1"}).write_quorum_size == 1


def test_every_field_is_made_of_options_and_has_the_name_of_its_one() -> None:
    made_of = {f.name: f.metadata.get("options", ()) for f in fields(BkOptions)}
    several = ["selection", "ledger_password", "starting", "ending", "topics", "client_settings"]
    assert [name for name, rows in made_of.items() if len(rows) != 1] == several
    for name, rows in made_of.items():
        if len(rows) == 1:
            assert re.sub(r"(?<!^)(?=[A-Z])", "_", rows[0].name).lower().removesuffix("_ms") == name.removesuffix("_ms")


def test_where_messages_send_their_readers_there_is_something_to_read() -> None:
    root, found = Path(__file__).parents[3], set()
    for source in (root / "bk_spark").rglob("*.py"):
        for heading, page in re.findall(
            r"""see\(['"]([\w-]+)['"](?:, ['"]([\w.-]+)['"])?\)""", source.read_text("utf-8")
        ):
            lines = (root / "docs" / (page or "spark.md")).read_text(encoding="utf-8").splitlines()
            headings = {line.lstrip("# ").lower().replace(" ", "-") for line in lines if line.startswith("#")}
            assert heading in headings, (source.name, heading)
            found.add(heading)
    assert {"options", "codecs", "selecting", "installing"} <= found
    assert "docs/spark.md#options of project pyspark-bookkeeper" in refusal(path="events", zzzzz="1")


def test_the_documentation_has_the_list_in_order_and_says_what_each_option_means() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    listed = page[page.index("**`metadataServiceUri`**") :].partition("\n\n")[0]
    items = [" ".join(item.split()) for item in listed.split("\n- ")]
    expected = []
    for d in OPTIONS:
        uses = "all" if d.uses == _ALL else ", ".join(use.value for use in d.uses)
        default = f"; default `{d.default}`" if d.default else ""
        also = "".join(f"; also `{alias}`" for alias in d.aliases)
        expected.append(f"**`{d.name}`** ({uses}{default}{also}): ")
    assert [item[: len(head)] for item, head in zip(items, expected, strict=True)] == expected
    assert all(len(item) > len(head) + 20 for item, head in zip(items, expected, strict=True))


def test_options_survive_pickling_and_hide_the_password() -> None:
    options = parse(ledgerpassword="hush")
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.ledger_password == b"hush"
    assert "hush" not in repr(options)


def test_a_password_is_in_a_file_or_a_variable_and_in_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    for written, read in ((PASSWORD, PASSWORD), (PASSWORD + b"\n", PASSWORD), (b"\xff\x00 \r\n", b"\xff\x00 ")):
        file.write_bytes(written)
        assert parse(**{"ledgerpassword.path": str(file)}).ledger_password == read
    monkeypatch.setenv("OF_THE_LOG", PASSWORD.decode())
    named = parse(ledgerPasswordEnv="OF_THE_LOG")
    assert named.ledger_password == PASSWORD
    assert PASSWORD.decode() not in repr(named)
    assert "keep ledgerPassword.env" in refusal(path="e", ledgerpassword="hush", ledgerPasswordEnv="OF_THE_LOG")
    assert "NOT_SET" in refusal(path="e", ledgerPasswordEnv="NOT_SET")
    assert "No such file" in refusal(path="e", ledgerPasswordPath=str(tmp_path / "none"))
    file.write_bytes(b"\n")
    assert "is empty" in refusal(path="e", ledgerPasswordPath=str(file))
    file.write_bytes(bytes(SECRET_BYTES_MAX + 1))
    assert "more than 65536 bytes" in refusal(path="e", ledgerPasswordPath=str(file))
    twice = refusal(path="e", ledgerpassword="hush", ledger_password="lull")
    assert "given twice" in twice
    assert "hush" not in twice
    assert "lull" not in twice
    assert "use option ledgerPassword.path" in refusal(path="e", **{"bookkeeper.ledgerPassword.path": str(file)})


def test_unknown_option_names_the_nearest() -> None:
    assert "did you mean ensembleSize?" in refusal(path="events", ensamblesize="3")
    assert "docs/spark.md" in refusal(path="events", zzzzqq="3")


def test_a_transaction_has_a_version_from_0_upwards() -> None:
    options = parse_options({**URI, "log": "events", "txnappid": "job", "txnversion": "0"}, Use.WRITE)
    assert (options.txn_app_id, options.txn_version) == ("job", 0)
    assert "txnVersion" in refusal(path="events", txnversion="-1")


def test_metadata_service_uri_is_required() -> None:
    with pytest.raises(InvalidArgumentError, match=r'\.option\("metadataServiceUri"'):
        parse_options({"path": "events"}, Use.READ)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"path": "events"}, LogSelection(("events",))),
        ({"log": "events"}, LogSelection(("events",))),
        ({"path": "ledger:17"}, LedgerSelection((17,))),
        ({"ledgerid": "17"}, LedgerSelection((17,))),
        ({"paths": '["events"]'}, LogSelection(("events",))),
        ({"ledgerids": "5, 3,9-12,10"}, LedgerSelection((3, 5, 9, 10, 11, 12))),
        ({"path": "ledger:3,5-6"}, LedgerSelection((3, 5, 6))),
        ({"paths": '["ledger:5","ledger:3"]'}, LedgerSelection((3, 5))),
        ({"logs": "b, a,b"}, LogSelection(("a", "b"))),
        ({"paths": '["b","a"]'}, LogSelection(("a", "b"))),
        ({"logpattern": "ev.*"}, PatternSelection("ev.*")),
        ({"ledgerid": str(2**63 - 1)}, LedgerSelection((2**63 - 1,))),
    ],
)
def test_selection(options: dict[str, str], expected: object) -> None:
    assert parse_options({**URI, **options}, Use.READ).selection == expected


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"path": "17"}, '.load("ledger:17")'),
        ({"log": "17"}, '.load("ledger:17")'),
        ({"path": "/data/events"}, "A-Z a-z 0-9"),
        ({"path": ".hidden"}, "no dot in front"),
        ({"path": "ledger:x"}, "for instance ledger:17"),
        ({"ledgerid": "-1"}, "for instance 17"),
        ({"ledgerid": str(2**63)}, "for instance 17"),
        ({}, '.load("events")'),
        ({"path": "events", "ledgerid": "17"}, "keep exactly one"),
        ({"log": "events", "ledgerid": "17"}, "keep exactly one"),
        ({"path": "ledger:"}, "for instance ledger:17"),
        ({"logs": "a,,b"}, "A-Z a-z 0-9"),
        ({"logs": "a,17"}, '.load("ledger:17")'),
        ({"logs": "a", "log": "a"}, "keep exactly one"),
        ({"ledgerids": "3,x"}, "'x' is none"),
        ({"ledgerids": "3,"}, "'' is none"),
        ({"ledgerids": "3--5"}, "'-5' is none"),
        ({"ledgerids": "9-3"}, "upwards, such as 9-12, not 9-3"),
        ({"ledgerids": "0-100000"}, "more than 100000 ledgers"),
        ({"ledgerids": f"0-{2**62}"}, "in several parts"),
        ({"ledgerids": f"3,{2**63}"}, "3,5,9-12"),
        ({"logpattern": "ev(.*"}, "at character 3"),
        ({"logpattern": ""}, "ev.*"),
        ({"paths": '["a","ledger:3"]'}, "union"),
        ({"paths": "[]"}, "expected paths"),
    ],
)
def test_a_bad_selection_says_what_to_write(options: dict[str, str], hint: str) -> None:
    assert hint in refusal(**options)


@pytest.mark.rule("K2")
def test_fencing_needs_a_ledger_id_and_a_batch() -> None:
    assert parse_options({**URI, "ledgerid": "17", "readmode": "fence"}, Use.READ).read_mode == "fence"
    assert "needs ledgerId" in refusal(path="events", readmode="fence")
    assert "not for a stream" in refusal(Use.STREAM, ledgerid="17", readmode="fence")


@pytest.mark.rule("K2")
def test_a_stored_table_cannot_fence() -> None:
    stored = {"ledgerid": "17", "readmode": "fence", "option.readmode": "fence", "provider": "bookkeeper"}
    assert "stored in a table" in refusal(None, **stored)


def test_streams_refuse_what_would_change_their_meaning() -> None:
    assert "availableNow" in refusal(Use.STREAM, path="events", endingoffsets='{"events":3}')
    assert "availableNow" in refusal(Use.STREAM, ledgerid="1", endingentryid="3")
    assert parse_options({**URI, "path": "events"}, Use.STREAM).starting == AT_LATEST
    for mode in ("closedOnly", "fence"):
        assert "follows the writer" in refusal(Use.STREAM, ledgerid="1", readmode=mode)


def test_a_batch_from_latest_or_to_earliest_is_refused() -> None:
    assert "startingOffsets" in refusal(path="events", startingoffsets="latest")
    assert "endingOffsets" in refusal(path="events", endingoffsets="earliest")
    assert parse(None, startingoffsets="latest").starting == AT_LATEST


@pytest.mark.rule("N7")
def test_users_write_the_short_form_of_positions() -> None:
    options = parse(startingoffsets='{"events":10}', endingoffsets='{"events":20}')
    events = LogSource("events")
    assert (options.starting.at(events), options.ending.at(events)) == (10, 20)
    ledger = parse_options({**URI, "ledgerid": "17", "startingoffsets": '{"17":23}'}, Use.READ)
    assert ledger.starting.at(LedgerSource(17)) == 23
    for text in ('{"events":"1"}', '{"events":true}', '{"events":-3}', '{"events":1.0}', "soon", "[1]", "{}", "1"):
        assert '{"events":N}' in refusal(path="events", startingoffsets=text)
    full = '{"cluster":"c","logs":{"events":{"epoch":0,"next":1,"uuid":"u"}},"v":1}'
    assert '{"events":N}' in refusal(path="events", startingoffsets=full)


def test_each_selected_source_needs_its_position_and_no_other_has_one() -> None:
    options = parse_options({**URI, "logs": "a,b", "startingoffsets": '{"b":-2,"a":7}'}, Use.READ)
    assert [options.starting.at(LogSource(name)) for name in "ab"] == [7, EARLIEST]
    missing = refusal(logs="a,b,c", startingoffsets='{"b":1,"d":2}')
    assert "missing: a, c; not selected: d" in missing
    many = refusal(ledgerids="1-30", endingoffsets='{"2":1,"02":1}')
    assert "missing: 1, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 19 more; not selected: 02" in many
    pattern = parse_options({**URI, "logpattern": "a.*", "startingoffsets": '{"x":1}'}, Use.READ)
    with pytest.raises(InvalidArgumentError, match="missing: ab; not selected: x"):
        pattern.starting.check("startingOffsets", [LogSource("ab")])


def test_malformed_offsets_say_where() -> None:
    assert "line 2 column 2: Expecting property name" in refusal(path="events", startingoffsets='{"events":1,\n 1}')
    assert "twice: events" in refusal(path="events", startingoffsets='{"events":1,"events":1}')
    assert "not b=1.5, c=null" in refusal(logs="a,b,c", startingoffsets='{"a":1,"b":1.5,"c":null}')


def test_entry_ids_are_short_for_offsets_of_one_ledger() -> None:
    options = parse_options({**URI, "ledgerid": "17", "startingentryid": "0", "endingentryid": "5"}, Use.READ)
    assert (options.starting.at(LedgerSource(17)), options.ending.at(LedgerSource(17))) == (0, 5)
    assert "needs one ledger" in refusal(path="events", startingentryid="1")
    assert "needs one ledger" in refusal(ledgerids="1,2", startingentryid="1")
    assert "exclude each other" in refusal(ledgerid="17", startingentryid="1", startingoffsets="earliest")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("1769860800123", 1769860800123),
        ("2026-01-31T12:00:00Z", 1769860800000),
        (" 2026-01-31T13:00:00.1239+01:00 ", 1769860800123),
    ],
)
def test_a_time_is_milliseconds_or_iso_with_a_zone(text: str, milliseconds: int) -> None:
    options = parse(startingtimestamp=text, endingtimestamp=text)
    assert (options.starting_timestamp, options.ending_timestamp) == (Bound(milliseconds), Bound(milliseconds))
    assert (options.starting, options.ending) == (AT_EARLIEST, AT_LATEST)
    assert parse_options({**URI, "log": "a", "startingtimestamp": text}, Use.STREAM).starting == AT_EARLIEST


@pytest.mark.parametrize("name", ["Timestamp", "OffsetsByTimestamp"])
def test_each_log_may_have_a_time_of_its_own_as_with_kafka(name: str) -> None:
    text = '{"a":1769860800123,"b":"2026-01-31T12:00:00Z"}'
    options = parse_options({**URI, "logs": "a,b", f"starting{name}": text, f"ending{name}": text}, Use.READ)
    each = Bound(EARLIEST, {"a": 1769860800123, "b": 1769860800000})
    assert (options.starting_timestamp, options.ending_timestamp) == (each, each)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1769860800", "if these are seconds, write 1769860800000"),
        ('{"events":1769860800}', "if these are seconds, write 1769860800000"),
        ("1769860800123456", "divide it by 1000"),
        ('{"events":{"0":1769860800123}}', "without Kafka's partitions"),
        ('{"events":true}', "ISO 8601 with a zone"),
        ('{"other":1769860800123}', "missing: events; not selected: other"),
        ("{}", "a time, or"),
    ],
)
def test_a_time_that_means_something_else_is_refused_with_the_remedy(text: str, message: str) -> None:
    assert message in refusal(log="events", startingtimestamp=text)
    assert message in refusal(log="events", endingtimestamp=text)


def test_a_stream_has_no_ending_time() -> None:
    with pytest.raises(InvalidArgumentError, match="a stream has no end"):
        parse_options({**URI, "log": "a", "endingTimestamp": "1769860800123"}, Use.STREAM)


@pytest.mark.parametrize("text", ["", "soon", "-1", "2026-01-31T12:00:00", "1960-01-01T00:00:00Z", "1.5", "9" * 30])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    assert "ISO 8601 with a zone" in refusal(path="events", startingtimestamp=text)


def test_a_time_goes_with_logs_and_without_offsets() -> None:
    now = "1769860800123"
    assert "exclude each other" in refusal(path="events", startingtimestamp=now, startingoffsets="earliest")
    assert "exclude each other" in refusal(path="events", endingtimestamp=now, endingoffsets="latest")
    assert "exclude each other" in refusal(ledgerid="1", startingtimestamp=now, startingentryid="1")
    assert "one time for all its entries" in refusal(ledgerid="1", startingtimestamp=now)
    assert "one time for all its entries" in refusal(ledgerid="1", endingtimestamp=now)


@pytest.mark.parametrize(
    "options",
    [
        {"maxbytesperpartition": "0"},
        {"maxbytesperpartition": "lots"},
        {"minpartitions": "0"},
        {"minpartitions": "1.5"},
        {"failondataloss": "maybe"},
        {"readmode": "peek"},
        {"digesttype": "MD5"},
        {"ensemblesize": "2"},
        {"ackquorumsize": "4"},
    ],
)
def test_a_bad_value_is_refused_whatever_the_use(options: dict[str, str]) -> None:
    for use in (None, *Use):
        refusal(use, path="events", **options)


def test_options_of_another_use_are_ignored_because_views_share_them() -> None:
    assert parse(Use.WRITE, startingoffsets='{"events":3}', minpartitions="4").log == "events"
    assert parse(Use.READ, ensemblesize="5").ensemble_size == 5


@pytest.mark.parametrize("options", [{"ledgerid": "17"}, {"ledgerids": "1-3"}, {"logs": "a,b"}, {"logpattern": "a.*"}])
def test_writing_to_anything_but_one_log_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match=r'\.save\("events"\)'):
        _ = parse_options({**URI, **options}, Use.WRITE).log


def test_client_settings_pass_through_and_protected_ones_do_not() -> None:
    options = parse(**{"bookkeeper.addTimeoutMs": "5000", "BookKeeper.read_bytes_max": "1"})
    assert options.client_settings == (("addtimeoutms", "5000"), ("readbytesmax", "1"))
    assert "use option ledgerPassword" in refusal(path="events", **{"bookkeeper.password": "x"})
    assert "use option ackQuorumSize" in refusal(path="events", **{"bookkeeper.ack_quorum_size": "x"})


def test_keys_that_spark_adds_are_no_mistake() -> None:
    parse(provider="bookkeeper", owner="root", **{"option.log": "events"})


def test_the_same_option_twice_with_two_values_is_refused() -> None:
    assert "given twice" in refusal(path="events", maxentriespertrigger="1", maxoffsetspertrigger="2")


@pytest.mark.rule("P15")
def test_entries_above_the_lac_are_asked_for_by_ledger_id_and_with_a_time_to_wait() -> None:
    options = parse_options({**URI, "ledgerId": "17", "readMode": "quorum", "quorumSettleMs": "65000"}, Use.READ)
    assert (options.read_mode, options.quorum_settle_ms) == ("quorum", 65_000)
    assert parse_options({**URI, "ledgerId": "17", "readMode": "quorum"}, Use.READ).quorum_settle_ms == 60_000
    with pytest.raises(InvalidArgumentError, match="readMode=quorum needs ledgerId"):
        parse_options({**URI, "log": "events", "readMode": "quorum"}, Use.READ)
    with pytest.raises(InvalidArgumentError, match="quorumSettleMs"):
        parse_options({**URI, "ledgerId": "17", "readMode": "quorum", "quorumSettleMs": "10"}, Use.READ)
    with pytest.raises(InvalidArgumentError, match="readMode=quorum is not for a stream"):
        parse_options({**URI, "ledgerId": "17", "readMode": "quorum"}, Use.STREAM)
