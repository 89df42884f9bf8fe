# SPDX-License-Identifier: Apache-2.0
"""``bk spark offsets``: whole, damaged and foreign checkpoints, and what their positions meet in a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bk_cli import main
from bk_cli.local.cluster import LocalCluster
from bk_core import blocking
from bk_core.errors import InvalidArgumentError
from bk_core.logs.model.head import PublishId
from bk_core.logs.model.position import LogPosition, StreamOffset, encode_offset
from bk_spark.stream.checkpoint import find_checkpoints, read_checkpoint
from tests.kit.canaries import PASSWORD

QUERY = "8a3b1c9e-0000-4000-8000-000000000001"
CLUSTER = "11111111-2222-3333-4444-555555555555"
UUID = "12345678-9abc-def0-1234-56789abcdef0"
ABOUT = '{"batchWatermarkMs":0,"batchTimestampMs":1790000000000,"conf":{"spark.sql.shuffle.partitions":"2"}}'

Write = Callable[..., Path]


def log_at(position: int, *, name: str = "events", epoch: int = 0, uuid: str = UUID, cluster: str = CLUSTER) -> str:
    return encode_offset(StreamOffset(cluster, logs={name: LogPosition(uuid, epoch, position)}))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Write:
    """Writes a checkpoint as Spark does: the positions of each planned batch, and how many are committed."""

    def write(*batches: list[str], committed: int, name: str = "query", version: str = "v1") -> Path:
        path = tmp_path / name
        for part in ("offsets", "commits", "sources", "state"):
            (path / part).mkdir(parents=True)
        (path / "metadata").write_text(json.dumps({"id": QUERY}))
        (path / ".metadata.crc").write_bytes(b"crc\0")
        for number, positions in enumerate(batches):
            (path / "offsets" / str(number)).write_text("\n".join([version, ABOUT, *positions]))
            (path / "offsets" / f".{number}.crc").write_bytes(b"crc\0")
        for number in range(committed):
            (path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (path / "offsets" / ".7.0a-tmp").write_text("half")
        return path

    return write


class Offsets:
    """``bk spark offsets`` as a function, without a cluster in the environment."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.out = self.err = ""

    def __call__(self, *arguments: object) -> int:
        code = main.run(["spark", "offsets", *map(str, arguments)])
        self.out, self.err = self._capture.readouterr()
        return code

    def json(self, *arguments: object, code: int = 0) -> list[dict[str, Any]]:
        """The objects it prints; it must end with ``code``."""
        assert self(*arguments, "--json") == code, self.out + self.err
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def offsets(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Offsets:
    monkeypatch.delenv("BK_METADATA_SERVICE_URI", raising=False)
    capfd.readouterr()
    return Offsets(capfd)


@pytest.mark.rule("N7")
def test_planned_and_committed_positions_are_told_apart(checkpoint: Write, offsets: Offsets) -> None:
    path = checkpoint([log_at(10)], [log_at(25)], [log_at(40)], committed=2)
    assert offsets.json(path) == [
        {
            "checkpoint": str(path),
            "queryId": QUERY,
            "source": "0",
            "log": "events",
            "cluster": CLUSTER,
            "uuid": UUID,
            "epoch": 0,
            "plannedBatch": 2,
            "plannedNext": 40,
            "committedBatch": 1,
            "committedNext": 25,
        }
    ]
    assert offsets(path) == 0
    assert "batch 2 was planned and not committed" in offsets.out
    (path / "commits" / "2").write_text("v1\n{}")
    (done,) = offsets.json(path)
    assert (done["committedBatch"], done["committedNext"], done["plannedNext"]) == (2, 40, 40)
    assert offsets(path) == 0
    assert "every planned batch is committed" in offsets.out


def test_a_query_of_several_sources_and_one_that_has_done_nothing_yet(checkpoint: Write, offsets: Offsets) -> None:
    ledgers = encode_offset(StreamOffset(CLUSTER, ledgers={17: 24, 3: 9}))
    logs = encode_offset(StreamOffset(CLUSTER, logs={n: LogPosition(UUID, 1, 5) for n in ("b", "a")}))
    path = checkpoint([ledgers, '{"topic":{"0":12}}', "-", "5", logs], committed=0)
    found = offsets.json(path)
    places = [(each["source"], each.get("log", each.get("ledger")), each["plannedNext"]) for each in found]
    assert places == [("0", 17, 24), ("0", 3, 9), ("4", "a", 5), ("4", "b", 5)]
    assert {each["committedBatch"] for each in found} == {each["committedNext"] for each in found} == {None}


def test_the_second_version_of_the_offset_log_names_its_sources(checkpoint: Write, offsets: Offsets) -> None:
    path = checkpoint([f"orders:{log_at(7)}", "other:-"], committed=1, version="v2")
    (found,) = offsets.json(path)
    assert (found["source"], found["committedNext"]) == ("orders", 7)


def test_checkpoints_of_other_sources_have_nothing_of_ours(checkpoint: Write, offsets: Offsets) -> None:
    path = checkpoint(['{"topic":{"0":12}}', "41"], committed=1)
    assert offsets(path) == 0
    assert "none of its sources" in offsets.out
    assert QUERY in offsets.out  # the name of its transactions, if it writes to a log
    assert offsets.json(path) == []


def test_a_query_that_has_planned_nothing_yet_is_not_damaged(checkpoint: Write, offsets: Offsets) -> None:
    path = checkpoint(committed=0)
    assert offsets.json(path) == []
    assert offsets(path) == 0
    assert "begins at startingOffsets" in offsets.out


def test_a_directory_of_checkpoints_and_a_file_uri(checkpoint: Write, offsets: Offsets, tmp_path: Path) -> None:
    checkpoint([log_at(1)], committed=1, name="b")
    path = checkpoint([log_at(2)], committed=1, name="a")
    assert [each["committedNext"] for each in offsets.json(tmp_path)] == [2, 1]
    assert [each["committedNext"] for each in offsets.json(f"file://{path}")] == [2]
    assert find_checkpoints(f"file:{path}") == [path]


def test_what_is_no_checkpoint_is_told_so(offsets: Offsets, tmp_path: Path) -> None:
    for wrong, why in (
        (tmp_path / "nowhere", "no such directory"),
        (tmp_path, "no directory offsets"),
        ("hdfs://namenode/checkpoints/q", "only local"),
        ("s3a://bucket/q", "only local"),
    ):
        assert offsets(wrong) == 2
        assert why in offsets.err
        assert offsets.err.count("\n") == 1


CUT = log_at(40)[:50]
DAMAGES: list[tuple[str, str | None, str, str]] = [
    # the file, what stands in it (None: it is missing), where that is told, and how
    ("metadata", None, "metadata", "missing"),
    ("metadata", "", "metadata", "empty"),
    ("metadata", '{"i', "metadata line 1", "no query id"),
    ("metadata", "[]", "metadata line 1", "no query id"),
    ("offsets/3", "", "offsets/3", "empty"),
    ("offsets/3", "v9\n{}\n-", "offsets/3 line 1", "unknown version"),
    ("offsets/3", "v1", "offsets/3 line 2", "cut"),
    ("offsets/3", 'v1\n{"batchWat', "offsets/3 line 2", "cut"),
    ("offsets/3", f"v1\n{ABOUT}", "offsets/3 line 3", "cut"),
    ("offsets/3", f"v1\n{ABOUT}\n{CUT}", "offsets/3 line 3", "not a position"),
    ("offsets/3", f"v1\n{ABOUT}\n-\n" + '{"clu', "offsets/3 line 4", "not a position"),
    ("offsets/3", f"v2\n{ABOUT}\nno colon", "offsets/3 line 3", "no source's name"),
    ("offsets/3", f"v1\n{ABOUT}\n" + '{"cluster":"x","v":2}', "offsets/3 line 3", "version 2"),
    ("offsets/1", None, "offsets/1", "between"),
    ("offsets/3", None, "offsets/3", "its plan is missing"),
    ("commits/1", None, "commits/1", "between"),
    ("commits/3", "", "commits/3", "empty"),
    ("commits/3", "v1\n{", "commits/3 line 2", "not JSON"),
    ("commits/3", "what", "commits/3 line 1", "unknown version"),
]


@pytest.mark.parametrize(("name", "text", "place", "why"), DAMAGES)
def test_what_is_damaged_is_named_with_its_place(
    checkpoint: Write, offsets: Offsets, name: str, text: str | None, place: str, why: str
) -> None:
    path = checkpoint(*[[log_at(10 * n)] for n in range(4)], committed=4)
    if text is None:
        (path / name).unlink()
    else:
        (path / name).write_text(text)
    problems = [each for each in offsets.json(path, code=6) if "problem" in each]
    assert any(each["at"].endswith(place) and why in each["problem"] for each in problems), problems
    assert offsets(path) == 6
    assert f"{place}: " in offsets.out


def test_binary_noise_is_a_problem_and_no_crash(checkpoint: Write) -> None:
    path = checkpoint([log_at(1)], [log_at(2)], committed=1)
    (path / "offsets" / "1").write_bytes(b"\xff\xfe\0")
    found = read_checkpoint(path)
    assert (found.planned, found.committed_number) == (None, 0)
    assert found.committed is not None
    assert [problem.where for problem in found.problems] == ["offsets/1"]


def test_commits_that_are_missing_at_the_end_are_told(checkpoint: Write, offsets: Offsets) -> None:
    path = checkpoint(*[[log_at(10 * n)] for n in range(4)], committed=2)
    (problem,) = (each for each in offsets.json(path, code=6) if "problem" in each)
    assert "batch 1" in problem["problem"]


def test_old_batches_that_spark_has_deleted_are_no_damage(checkpoint: Write, offsets: Offsets) -> None:
    path = checkpoint(*[[log_at(10 * n)] for n in range(4)], committed=4)
    for name in ("offsets/0", "offsets/1", "commits/0"):
        (path / name).unlink()
    assert offsets(path) == 0


# --- with a cluster ---------------------------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.rule("N7")
def test_positions_are_compared_with_the_cluster(
    checkpoint: Write, offsets: Offsets, cluster: LocalCluster, bk: Any
) -> None:
    names = iter("abcdefghijklmnop")
    with blocking.connect(cluster.uri) as bookkeeper:
        log = bookkeeper.log("watched", password=PASSWORD)
        with log.lead() as leader:
            for n in range(10):
                leader.append(b"%d" % n)
            uuid, instance = log.head().value.uuid, bookkeeper.instance_id

            def look(position: int, *more: str, code: int = 0, **at: Any) -> dict[str, Any]:
                text = log_at(position, **{"name": "watched", "uuid": uuid, "cluster": instance, **at})
                path = checkpoint([text], committed=1, name=next(names))
                arguments = ("--metadata-service-uri", cluster.uri, *(more or ("--ledger-password", PASSWORD.decode())))
                (found,) = offsets.json(path, *arguments, code=code)
                return found

            found = look(4)
            assert (found["state"], found["end"], found["lag"], found["isExact"]) == ("fits", 10, 6, True)
            found = look(0, "--ledger-password", "wrong")
            assert (found["state"], found["isExact"]) == ("fits", False)  # what the leader has open takes the password
        assert look(10)["lag"] == 0
        assert look(11, code=4)["state"] == "beyond"
        assert look(4, code=4, cluster=CLUSTER)["state"] == "otherCluster"
        assert look(4, code=4, name="nobody")["state"] == "missing"
        assert look(4, code=4, uuid=UUID)["state"] == "recreated"
        log.overwrite([], PublishId.job("empty"))
        found = look(4, code=4)
        assert (found["state"], found["epoch"]) == ("overwritten", 0)
        assert "epoch 1" in found["text"]
        found = look(4, code=4, epoch=1)
        assert (found["state"], found["lag"]) == ("trimmed", 6)
        assert "6 entries were trimmed" in found["text"]

        with bookkeeper.create_ledger() as writer:
            writer.append(b"a")
            ledger = encode_offset(StreamOffset(instance, ledgers={writer.ledger_id: 1, 987654: 0}))
            path = checkpoint([ledger], committed=1, name=next(names))
            both = offsets.json(path, "--metadata-service-uri", cluster.uri, code=4)
        assert {each["ledger"]: each["state"] for each in both} == {writer.ledger_id: "fits", 987654: "missing"}
    assert offsets(path, "--metadata-service-uri", "zk://127.0.0.1:1/ledgers") == 5


def test_file_uris_of_other_machines_are_not_guessed() -> None:
    with pytest.raises(InvalidArgumentError, match="no such directory"):
        find_checkpoints("file:///nowhere/at/all")
