# SPDX-License-Identifier: Apache-2.0
"""Spark finds the format by itself, and a failure of ours disables nobody else's (RULES K6)."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def run(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    lines = [f"import sys; sys.path[:0] = {[str(p) for p in (*path, ROOT)]!r}", code]
    return subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)


@pytest.mark.rule("K6")
def test_the_module_imports_nothing_by_itself() -> None:
    done = run("import pyspark_bookkeeper; print(sorted(m for m in sys.modules if m.startswith(('bk_', 'pyspark'))))")
    assert done.stdout.strip() == "['pyspark_bookkeeper']"


@pytest.mark.rule("K6")
def test_a_failure_to_import_is_an_attribute_error_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise ImportError('too old\\nreally')")
    done = run("import pyspark_bookkeeper; print(hasattr(pyspark_bookkeeper, 'DefaultSource'))", tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "False")
    assert done.stderr.count("\n") == 1
    assert "too old really" in done.stderr


@pytest.mark.rule("K6")
def test_another_name_is_a_plain_attribute_error_without_noise() -> None:
    done = run("import pyspark_bookkeeper; print(hasattr(pyspark_bookkeeper, 'Nothing'))")
    assert (done.stdout.strip(), done.stderr) == ("False", "")


def test_the_source_is_light_to_import() -> None:
    code = (
        "import pyspark.sql.datasource; before = set(sys.modules)\n"
        "import bk_spark.source\n"
        "print([m for m in ('grpc', 'kazoo', 'bk_core.client', 'numpy.random') if m in set(sys.modules) - before])"
    )
    assert run(code).stdout.strip() == "[]"


def test_source_reader_and_options_can_be_pickled() -> None:
    from pyspark.sql.types import (
        BinaryType,
        StructField,
        StructType,
    )

    import pyspark_bookkeeper

    source = pyspark_bookkeeper.DefaultSource({"metadataserviceuri": "zk://h/ledgers", "path": "events"})
    schema = StructType([StructField("value", BinaryType())])
    for thing in (source, source.reader(schema), source.streamReader(schema)):
        pickle.loads(pickle.dumps(thing))


@pytest.mark.spark
@pytest.mark.rule("K6")
def test_spark_finds_the_format_and_its_errors_are_ours(spark: Any) -> None:
    from pyspark.errors import AnalysisException

    uri = "zk://127.0.0.1:1/ledgers"
    frame = spark.read.format("BookKeeper").option("metadataServiceUri", uri).load("events")
    assert [field.name for field in frame.schema.fields] == ["value", "log", "ledger_id", "entry_id", "offset"]
    with pytest.raises(AnalysisException, match=r'\.load\("ledger:17"\)'):
        spark.read.format("bookkeeper").option("metadataServiceUri", uri).load("17")


@pytest.mark.spark
def test_bad_writes_fail_before_anything_is_connected(spark: Any) -> None:
    from pyspark.errors import AnalysisException

    rows = spark.range(3)

    def save(frame: Any, mode: str) -> str:
        writer = frame.write.format("bookkeeper").option("metadataServiceUri", "zk://127.0.0.1:1/ledgers")
        with pytest.raises(AnalysisException) as caught:
            writer.mode(mode).save("events")
        return str(caught.value)

    assert "CAST(`id` AS STRING) AS value" in save(rows, "overwrite")
    assert "CAST(`id` AS STRING) AS value" in save(rows, "append")
    assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in save(rows, "ignore")
