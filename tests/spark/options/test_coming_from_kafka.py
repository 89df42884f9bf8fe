# SPDX-License-Identifier: Apache-2.0
"""docs/coming-from-kafka.md says what the code does: options, defaults, columns, limits, commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bk_cli.main import run
from bk_core.client import ClientConfig
from bk_core.errors import InvalidArgumentError
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX
from bk_spark import codecs, compat
from bk_spark.options.options import OPTIONS, BkOptions, Use, parse_options
from bk_spark.write import fan_out

PAGE = (Path(__file__).parents[3] / "docs" / "coming-from-kafka.md").read_text(encoding="utf-8")
NAMES = {name for definition in OPTIONS for name in (definition.name, *definition.aliases)}
WORD = re.compile(r"`([^`]+)`")
NO_OPTIONS = {"key", "value", "headers", "timestamp"}
"""Names of columns in the list of writes."""


def pairs(heading: str) -> list[tuple[str, str]]:
    """What stands before and behind the arrow of each item below a heading; the behind ends at a colon."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    items = [" ".join(item.split()) for item in re.findall(r"^- (.*(?:\n  .*)*)", section, re.MULTILINE)]
    parts = [item.partition(" → ") for item in items]
    assert all(arrow for _, arrow, _ in parts), items
    return [(theirs, ours.partition(": ")[0]) for theirs, _, ours in parts]


def words(cell: str) -> list[str]:
    return WORD.findall(cell)


def parsed(use: Use = Use.READ, **more: str) -> BkOptions:
    return parse_options({"metadataserviceuri": "zk://localhost:2181/ledgers", "log": "events", **more}, use)


READS, WRITES, COLUMNS = pairs("Options of reads and streams"), pairs("Options of writes"), pairs("Columns")


def test_every_option_that_the_page_names_exists() -> None:
    assert len(READS) > 15
    assert len(WRITES) >= 7
    named = [word for row in (*READS, *WRITES) for word in words(row[1])]
    plain = {word.split("=")[0] for word in named if not word.startswith((".", "bookkeeper."))}
    assert plain - NO_OPTIONS - NAMES - {"codec", "log"} == set()
    assert {"logs", "logPattern", "txnAppId", "minEntriesPerTrigger"} <= plain


def test_an_option_of_kafka_that_has_no_counterpart_of_its_name_is_an_error() -> None:
    theirs = {word for row in (*READS, *WRITES) for word in words(row[0])}
    options = {word for word in theirs if re.fullmatch(r"[a-zA-Z]+(\.[a-zA-Z.]+)?", word)} - NO_OPTIONS
    options -= {"partition", "topic"}  # a column, and the name of an option for topics of Pulsar
    foreign = sorted(option for option in options if option not in NAMES)
    assert {"subscribe", "assign", "kafka.bootstrap.servers", "includeHeaders"} <= set(foreign)
    for option in foreign:
        with pytest.raises(InvalidArgumentError, match=re.escape(option)):
            parsed(**{option: "1"})
    for option in sorted(options & NAMES):
        given = {"startingOffsets": "earliest", "endingOffsets": "latest", "failOnDataLoss": "true"}.get(option, "1")
        given = "1700000000000" if "Timestamp" in option else given
        assert parsed(**{option: given})


def test_an_option_of_kafka_is_answered_with_its_counterpart() -> None:
    for row in (*READS, *WRITES):
        theirs = [word for word in words(row[0]) if re.fullmatch(r"[a-zA-Z]+(\.[a-zA-Z.]+)?", word)]
        for option in theirs:
            if option in NAMES | NO_OPTIONS | {"partition", "topic"}:
                continue
            with pytest.raises(InvalidArgumentError, match="coming-from-kafka") as caught:
                parsed(**{option: "1"})
            remedy, counterparts = caught.value.remedy, [word.split("=")[0] for word in words(row[1])]
            plain = [word for word in counterparts if word in NAMES]
            if plain and "*" not in row[0]:
                assert any(word in remedy for word in plain), (option, remedy)
    with pytest.raises(InvalidArgumentError, match=r"bookkeeper\.\*"):
        parsed(**{"kafka.security.protocol": "SSL"})
    with pytest.raises(InvalidArgumentError, match="without Kafka's partitions"):
        parsed(startingoffsets='{"events":{"0":23,"1":-2}}')


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("maxOffsetsPerTrigger", "max_entries_per_trigger"),
        ("minOffsetsPerTrigger", "min_entries_per_trigger"),
        ("maxRecordsPerPartition", "max_entries_per_partition"),
    ],
)
def test_the_names_of_kafka_that_the_page_promises_mean_ours(alias: str, name: str) -> None:
    assert getattr(parsed(Use.STREAM, **{alias: "77"}), name) == 77


def test_the_defaults_are_those_of_the_page() -> None:
    found = parsed(Use.STREAM)
    assert (found.max_bytes_per_trigger, found.max_bytes_per_partition) == (1 << 30, 128 << 20)
    assert (found.fail_on_data_loss, found.max_trigger_delay_ms) == (True, 15 * 60_000)
    assert (found.starting.everywhere, parsed().starting.everywhere) == (-1, -2), "latest of a stream, earliest else"


def test_the_columns_are_those_of_the_codec() -> None:
    schema = codecs.default_schema(parsed(codec="envelope"))
    found = {name: kind.upper() for name, kind, _ in compat.columns_of(schema)}
    headers = "ARRAY<STRUCT<KEY:STRING,VALUE:BINARY>>"
    assert found["headers"] == headers
    for row in COLUMNS:
        for name, kind in re.findall(r"`(\w+)` ([A-Z]+)", row[1]):
            assert found[name] == kind, row
    assert {"key", "value", "timestamp", "headers", "log", "offset"} <= found.keys()


def test_limits_and_settings_are_those_of_the_code() -> None:
    page = " ".join(PAGE.split())
    assert "5 MiB − 1 KiB" in page
    assert ENTRY_BYTES_MAX == (5 << 20) - (1 << 10)
    assert f"At most {fan_out.LOGS_MAX} logs a write" in page
    assert ClientConfig().frame_bytes == 1 << 20
    assert parsed(**{"bookkeeper.readTimeoutMs": "500"}).client_settings


def test_the_commands_of_the_page_exist(capsys: pytest.CaptureFixture[str]) -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    commands = {" ".join(words_of[:3]) for word in words(prose) if (words_of := word.split())[0] == "bk"}
    assert {"bk log set", "bk log trim", "bk log vacuum", "bk log compact", "bk spark offsets"} <= commands
    for command in sorted(commands):
        assert run([*command.split()[1:3], "--help"]) == 0, command
    assert "--expired" in capsys.readouterr().out
