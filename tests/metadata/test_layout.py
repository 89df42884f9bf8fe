# SPDX-License-Identifier: Apache-2.0
"""Service URIs, LAYOUT, ledger paths and the names of logs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError, MetadataCorruptError
from bk_core.metadata.layout import (
    LEDGER_ID_MAX,
    SHORT_IDS_END,
    Layout,
    ServiceUri,
    check_bookie_id,
    check_log_name,
    check_new_ledger_id,
    decode_layout,
    encode_layout,
    is_beside_ledgers,
    ledger_id_of,
    ledger_of_mark,
    ledger_path,
    mark_path,
    parse_service_uri,
)


@pytest.mark.rule("M1")
@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("zk://h1:2181/ledgers", ServiceUri(("h1:2181",), "/ledgers")),
        ("zk://h1:1;h2:2/a/b/", ServiceUri(("h1:1", "h2:2"), "/a/b")),
        ("zk://h1:1,h2/ledgers", ServiceUri(("h1:1", "h2:2181"), "/ledgers")),
        ("zk://h1", ServiceUri(("h1:2181",), "/ledgers")),
        ("ZK://h1/l", ServiceUri(("h1:2181",), "/l")),
        ("zk://[::1]:2181/ledgers", ServiceUri(("[::1]:2181",), "/ledgers")),
        ("zk+null://h1/l", ServiceUri(("h1:2181",), "/l")),
        ("zk+hierarchical://h1/l", ServiceUri(("h1:2181",), "/l", Layout.HIERARCHICAL)),
        ("zk+longhierarchical://h1/l", ServiceUri(("h1:2181",), "/l", Layout.LONG_HIERARCHICAL)),
        ("metadata-store:zk:h1:2181,h2:2181/ledgers", ServiceUri(("h1:2181", "h2:2181"), "/ledgers")),
        ("metadata-store:h1:2181", ServiceUri(("h1:2181",), "/ledgers")),
    ],
)
def test_uri_is_understood(uri: str, expected: ServiceUri) -> None:
    assert parse_service_uri(uri) == expected
    assert parse_service_uri(str(expected)) == expected


@pytest.mark.rule("M1")
@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("etcd://h1:2379/ledgers", "etcd is not supported"),
        ("etcd3://h1:2379", "etcd is not supported"),
        ("metadata-store:etcd:h1:2379", "etcd is not supported"),
        ("metadata-store:oxia://h1:6648/ns", "Oxia is not supported"),
        ("oxia://h1", "Oxia is not supported"),
        ("metadata-store:rocksdb:///data", "rocksdb is not supported"),
        ("zk+ms://h1/l", "layout 'ms' is not supported"),
        ("h1:2181", "no scheme"),
        ("", "no scheme"),
        ("zk:///ledgers", "no host"),
        ("zk://;/ledgers", "no host"),
        ("zk://h1:x/l", "not a host and port"),
        ("zk://h1:0/l", "not a host and port"),
        ("zk://h1:65536/l", "not a host and port"),
        ("zk://h 1/l", "not a host and port"),
        ("zk://h1;h1:2181/l", "twice"),
        ("zk://h1/", "root"),
        ("zk://h1/a//b", "root"),
        ("zk://h1/a/../b", "root"),
    ],
)
def test_uri_is_refused_with_a_reason_and_an_example(uri: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        parse_service_uri(uri)
    assert reason in str(raised.value)
    assert raised.value.remedy


@given(st.text(max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    for uri in (text, "zk://" + text, "metadata-store:" + text):
        try:
            parsed = parse_service_uri(uri)
        except InvalidArgumentError:
            continue
        assert parse_service_uri(str(parsed)) == parsed


@pytest.mark.parametrize("layout", Layout)
def test_layout_record_is_apaches_text(layout: Layout) -> None:
    data = encode_layout(layout)
    assert data == f"2\norg.apache.bookkeeper.meta.{type_name(layout)}:1".encode()
    assert decode_layout(data) is layout
    assert decode_layout(data + b"\n") is layout
    assert decode_layout(f"1\n{layout.value}:1".encode()) is layout


def type_name(layout: Layout) -> str:
    words = {"flat": "Flat", "legacyhierarchical": "LegacyHierarchical", "hierarchical": "Hierarchical"}
    return words.get(layout.value, "LongHierarchical") + "LedgerManagerFactory"


@pytest.mark.parametrize("data", [b"", b"2", b"3\nx:1", b"2\norg.x.Y:1", b"2\nhierarchical:2", b"\xff\n\xff:1"])
def test_unknown_layout_record_is_corrupt(data: bytes) -> None:
    with pytest.raises(MetadataCorruptError):
        decode_layout(data)


@pytest.mark.parametrize(
    ("layout", "ledger_id", "path"),
    [
        (Layout.HIERARCHICAL, 0, "/00/0000/L0000"),
        (Layout.HIERARCHICAL, 1234567890, "/12/3456/L7890"),
        (Layout.HIERARCHICAL, 2147483646, "/21/4748/L3646"),
        (Layout.HIERARCHICAL, 2147483647, "/000/0000/0021/4748/L3647"),
        (Layout.HIERARCHICAL, 2**63 - 1, "/922/3372/0368/5477/L5807"),
        (Layout.LONG_HIERARCHICAL, 5, "/000/0000/0000/0000/L0005"),
        (Layout.LEGACY_HIERARCHICAL, 1234567890, "/12/3456/L7890"),
        (Layout.FLAT, 5, "/L0000000005"),
    ],
)
def test_ledger_paths_are_apaches(layout: Layout, ledger_id: int, path: str) -> None:
    assert ledger_path(layout, ledger_id) == path
    assert ledger_id_of(layout, path) == ledger_id


@given(st.sampled_from(Layout), st.integers(0, LEDGER_ID_MAX) | st.integers(SHORT_IDS_END - 3, SHORT_IDS_END + 3))
def test_every_id_is_found_again_from_its_path_and_only_there(layout: Layout, ledger_id: int) -> None:
    try:
        path = ledger_path(layout, ledger_id)
    except InvalidArgumentError:
        assert ledger_id > SHORT_IDS_END
        return
    assert ledger_id_of(layout, path) == ledger_id


@pytest.mark.parametrize(
    ("layout", "path"),
    [
        (Layout.HIERARCHICAL, "/000/0000/0000/0000/L0005"),  # a small id in the long tree is not this cluster's
        (Layout.HIERARCHICAL, "/99/9999/L9999"),
        (Layout.LONG_HIERARCHICAL, "/00/0000/L0005"),
        (Layout.LONG_HIERARCHICAL, "/999/9999/9999/9999/L9999"),
        (Layout.FLAT, "/L5"),
        (Layout.HIERARCHICAL, "/00/0000/X0000"),
        (Layout.HIERARCHICAL, "/٠٠/0000/L0000"),
    ],
)
def test_paths_of_no_ledger_are_passed_over(layout: Layout, path: str) -> None:
    assert ledger_id_of(layout, path) is None


@pytest.mark.parametrize("ledger_id", [-1, 2**63])
def test_id_outside_63_bits_is_refused(ledger_id: int) -> None:
    with pytest.raises(InvalidArgumentError, match="Ledger ids"):
        ledger_path(Layout.HIERARCHICAL, ledger_id)


def test_names_beside_ledgers() -> None:
    beside = [
        "available",
        "cookies",
        "LAYOUT",
        "INSTANCEID",
        "underreplication",
        "idgen",
        "idgen-long",
        "ID-0000000001",
    ]
    assert all(is_beside_ledgers(name) for name in [*beside, "disableHealthCheck"])
    assert not any(is_beside_ledgers(name) for name in ["00", "000", "L0000000001"])


def test_mark_paths_are_apaches() -> None:
    assert mark_path(5) == "/0000/0000/0000/0005/urL0000000005"
    assert mark_path(2**63 - 1) == "/7fff/ffff/ffff/ffff/urL9223372036854775807"
    assert [ledger_of_mark(name) for name in ("urL0000000005", "urL12", "L0000000005")] == [5, None, None]


@pytest.mark.rule("N8")
@pytest.mark.parametrize("name", ["events", "a", "A-1_b.c", "1a", "x" * 200, "1.0"])
def test_log_name_is_accepted(name: str) -> None:
    assert check_log_name(name) == name


@pytest.mark.rule("N8")
@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["", "a/b", "a b", "ä", "x" * 201, "a\n", "٣٣"], "has 1 to 200 characters"),
        ([".", "..", ".a"], "does not begin with a dot"),
        (["17", "0"], "does not consist of digits only"),
    ],
)
def test_a_name_that_no_log_can_have_is_refused_with_the_reason(names: list[str], why: str) -> None:
    for name in names:
        with pytest.raises(InvalidArgumentError, match=f"log's name {why}"):
            check_log_name(name)


def test_bookie_ids_are_those_of_apaches_pattern() -> None:
    apaches = re.compile(r"[a-zA-Z0-9:-_.\-]+")  # from ":" to "_" is a range
    for good in ("127.0.0.1:3181", "host-1.example_x:3181", "custom", "[::1]:3181", "rack=1@host", r"a;b<c>d?e\f^g"):
        assert check_bookie_id(good) == good
    for code in range(128):
        name = f"a{chr(code)}b"
        if apaches.fullmatch(name):
            assert check_bookie_id(name) == name
        else:
            with pytest.raises(InvalidArgumentError):
                check_bookie_id(name)
    for bad in ("", "a/b", "a b", ".", "..", "x" * 256, "a\n", "ä"):
        with pytest.raises(InvalidArgumentError):
            check_bookie_id(bad)


@pytest.mark.parametrize("name", ["readonly", "READONLY", "ReadOnly", "readOnly"])
def test_no_bookie_has_an_id_that_stops_every_java_client(name: str) -> None:
    """Apache's BookieId refuses it while the list of bookies is read."""
    with pytest.raises(InvalidArgumentError, match="in capitals or not"):
        check_bookie_id(name)


@pytest.mark.parametrize("layout", list(Layout))
def test_new_ledger_has_an_id_that_bookies_take_entries_of(layout: Layout) -> None:
    is_short = layout in (Layout.FLAT, Layout.LEGACY_HIERARCHICAL)
    greatest = 2**31 - 1 if is_short else 2**63 - 2
    for good in (0, greatest):
        check_new_ledger_id(layout, good)
    for bad in (-1, greatest + 1, 2**63 - 1, 2**63):
        with pytest.raises(InvalidArgumentError, match=f"from 0 to {greatest} "):
            check_new_ledger_id(layout, bad)


def test_ipv6_hosts_of_a_uri_are_written_in_brackets() -> None:
    parsed = parse_service_uri("zk://[::1]:2182;[fe80::1%eth0];zk3/ledgers")
    assert parsed.hosts == ("[::1]:2182", "[fe80::1%eth0]:2181", "zk3:2181")
    for bad in ("zk://::1/ledgers", "zk://[::1/ledgers", "zk://[1.2.3.4]/ledgers", "zk://[:::]/ledgers"):
        with pytest.raises(InvalidArgumentError):
            parse_service_uri(bad)
