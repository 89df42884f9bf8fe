# SPDX-License-Identifier: Apache-2.0
"""The bookie's configuration: checked with its relations, read from TOML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import InvalidArgumentError
from bookie_server.config import BookieConfig, load_config
from bookie_server.garbage.collector import CollectorConfig
from bookie_server.identity.opening import open_storage
from bookie_server.machine.state import MachineLimits
from bookie_server.storage.index.cache import INDEX_CACHE_BYTES
from bookie_server.storage.log.segment_log import SEGMENT_SIZE_BYTES
from bookie_server.storage.log.segment_pool import SEGMENTS_KEPT_FREE
from bookie_server.storage.maintenance.schedule import MaintenanceLimits
from tests.sim.disk import SimDisk
from tests.sim.storage import own_store

GOOD: dict[str, Any] = {"data_dir": Path("/data"), "metadata_service_uri": "zk://host/ledgers"}


@pytest.mark.parametrize(
    "bad",
    [
        {"port": 65536},
        {"port": -1},
        {"port": 64_600},
        {"grpc_port": 65536},
        {"port": 3181, "grpc_port": 3181},
        {"segment_size_bytes": 100_000_001},
        {"segment_size_bytes": 4 << 20},
        {"group_bytes_max": 0},
        {"stream_bytes_max": 8 << 20},
        {"in_flight_bytes_max": 16 << 20},
        {"read_part_bytes": 64 << 20},
        {"bookie_id": "a/b"},
        {"bookie_id": "a b"},
        {"bookie_id": ""},
        {"bookie_id": "é" * 200},
        {"metadata_timeout_s": 0},
        {"compaction_threshold": 0.9},
        {"major_compaction_threshold": 1.0},
        {"checkpoint_interval_s": 0},
        {"scrub_bytes_per_s": 0},
        {"segments_kept_free": 0},
        {"index_cache_bytes": 0},
        {"tls_certificate_path": "a.pem"},
        {"tls_key_path": "a.key", "tls_ca_path": "ca.pem"},
        {"tls_zookeeper": True},
        {"limits_exempt": "10.0.0.0/8"},
        {"connections_per_principal_max": 5},
        {"in_flight_bytes_per_principal_max": 1 << 20},
        {"admin_writes": "nobody"},
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        BookieConfig(**{**GOOD, **bad})
    assert next(iter(bad)) in str(refused.value)


def test_maintenance_gets_what_is_configured() -> None:
    values = {
        "checkpoint_interval_s": 1.0,
        "compaction_threshold": 0.2,
        "major_compaction_threshold": 0.3,
        "major_compaction_interval_s": 4.0,
        "compaction_bytes_per_s": 5,
        "scrub_bytes_per_s": 6,
    }
    config = BookieConfig(**{**GOOD, **values, "disk_usage_low_water": 0.7})
    assert config.maintenance_limits() == MaintenanceLimits(**values, space_low_share=0.7)


def test_storage_gets_what_is_configured() -> None:
    config = BookieConfig(**{**GOOD, "index_cache_bytes": 12_345, "segments_kept_free": 2, "bookie_id": "b1"})
    [opened] = open_storage(config, own_store(), "bookie", 3181, files=SimDisk(), segment_size_bytes=64 << 10)
    assert opened.index.cache.bytes_max == 12_345
    assert opened.log.pool.kept_free_max == 2


def test_file_gives_values_and_arguments_win(tmp_path: Path) -> None:
    path = tmp_path / "bookie.toml"
    path.write_text('data_dir = "/data"\nmetadata_service_uri = "zk://a/ledgers"\nport = 4000\nallow_loopback = true\n')
    config = load_config(path, port=5000)
    assert (config.data_dir, config.port, config.allow_loopback) == (Path("/data"), 5000, True)
    assert (config.grpc_port, load_config(path, port=0).grpc_port) == (6000, 0)
    assert load_config(path, grpc_port=7000).grpc_port == 7000


def test_the_admin_port_follows_the_port_and_gives_way_to_others() -> None:
    """A configuration from before there was one must not be refused because of it."""
    ports = [{}, {"port": 0}, {"port": 4000, "grpc_port": 7000}, {"port": 63_000, "grpc_port": 0, "direct_port": 0}]
    assert [BookieConfig(**GOOD | each).admin_port for each in ports] == [6181, 0, 0, 0]
    assert BookieConfig(**GOOD, admin_port=9000).admin_port == 9000
    with pytest.raises(InvalidArgumentError, match="share a port"):
        BookieConfig(**GOOD, admin_port=3181)


@pytest.mark.parametrize(
    "text",
    [
        'metadata_service_uri = "zk://a/ledgers"\n',
        'data_dir = "/d"\nmetadata_service_uri = "zk://a"\nprot = 1\n',
        'data_dir = "/d"\nmetadata_service_uri = "zk://a"\nport = "3181"\n',
        'data_dir = "/d"\nmetadata_service_uri = "zk://a"\nport = true\n',
        'data_dir = "/d"\nmetadata_service_uri = 5\n',
        'data_dir = "/d\n',
    ],
)
def test_file_that_is_wrong_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bookie.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError):
        load_config(path)


COMMON = 'data_dir = "/d"\nmetadata_service_uri = "zk://a/ledgers"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 4000", "no such setting: prot; {path}, line 3; did you mean port?"),
        ("# a comment\n\n'adminPort' = 1", "no such setting: adminPort; {path}, line 5; did you mean admin_port?"),
        ("[tls]\nca_path = 1", "no such setting: tls; {path}, line 3; docs/configuration.md has all settings"),
        ("zebra = 1\nbookiePort = 2", "no such setting: zebra; {path}, line 3"),
        ("bookie.port = 2", "no such setting: bookie; {path}, line 3"),
        ('port = "3181"', "port has another type; port='3181'; {path}, port is in line 3; wanted: int"),
        (
            "\nin_flight_bytes_max = 1000\nstream_bytes_max = 17000000",
            "must not exceed in_flight_bytes_max; stream_bytes_max=17000000, in_flight_bytes_max=1000; "
            "{path}, in_flight_bytes_max is in line 4, stream_bytes_max is in line 5",
        ),
        ("stream_bytes_max = 1000", "{path}, stream_bytes_max is in line 3"),
        ("port = 1\nport = 2", "{path}: Cannot overwrite a value (at line 4"),
        ("port = ", "{path}: Invalid value (at line 3"),
    ],
)
def test_refusal_of_a_file_names_the_line_and_what_may_be_meant(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bookie.toml"
    path.write_text(f"{COMMON}{text}\n")
    with pytest.raises(InvalidArgumentError) as refused:
        load_config(path)
    assert says.format(path=path) in str(refused.value)


def test_refusal_of_what_was_typed_does_not_blame_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bookie.toml"
    path.write_text(f"{COMMON}port = 4000\n")
    with pytest.raises(InvalidArgumentError) as refused:
        load_config(path, port=70000)
    assert "port=70000" in str(refused.value)
    assert "line" not in str(refused.value)


def test_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError):
        load_config(tmp_path / "none.toml")


def test_defaults_of_the_parts_are_those_of_the_configuration() -> None:
    """Tests and simulators use the parts alone, and must not try other figures than a bookie runs with."""
    config = BookieConfig(**GOOD)
    assert config.machine_limits() == MachineLimits()
    assert config.maintenance_limits() == MaintenanceLimits()
    assert config.collector() == CollectorConfig()
    assert config.segment_size_bytes == SEGMENT_SIZE_BYTES
    assert config.segments_kept_free == SEGMENTS_KEPT_FREE
    assert config.index_cache_bytes == INDEX_CACHE_BYTES


def test_several_data_directories_are_a_list(tmp_path: Path) -> None:
    path = tmp_path / "bookie.toml"
    path.write_text('data_dirs = ["/a", "/b"]\nmetadata_service_uri = "zk://a/ledgers"\n')
    assert load_config(path).directories == (Path("/a"), Path("/b"))
    assert load_config(path, data_dirs=(Path("/c"),)).directories == (Path("/c"),)
    assert load_config(path, data_dir=Path("/d")).directories == (Path("/d"),)
    assert BookieConfig(**GOOD).directories == (Path("/data"),)


@pytest.mark.parametrize(
    "line",
    ['data_dirs = "/a"', "data_dirs = []", 'data_dirs = ["/a", "/b/../a"]', 'data_dir = "/a"\ndata_dirs = ["/b"]', ""],
)
def test_data_directories_that_are_none_or_unclear_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bookie.toml"
    path.write_text(f'{line}\nmetadata_service_uri = "zk://a/ledgers"\n')
    with pytest.raises(InvalidArgumentError, match="data_dir"):
        load_config(path)
