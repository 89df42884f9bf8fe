# SPDX-License-Identifier: Apache-2.0
"""What bookies publish, cookies and marks: Apache's bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError, MetadataCorruptError
from bk_core.metadata.records import (
    Cookie,
    UnderreplicationMark,
    decode_audit_time,
    decode_cookie,
    decode_lock,
    decode_mark,
    decode_service_info,
    decode_vote,
    encode_audit_time,
    encode_cookie,
    encode_lock,
    encode_mark,
    encode_service_info,
    encode_vote,
)
from bk_core.model import BookieServiceInfo, Endpoint


def test_service_info_is_apaches_byte_for_byte() -> None:
    info = BookieServiceInfo("127.0.0.1:3181", (Endpoint("bookie", "127.0.0.1", 3181, "bookie-rpc"),))
    data = bytes.fromhex("32220a06626f6f6b696510ed181a093132372e302e302e31220a626f6f6b69652d727063")
    assert encode_service_info(info) == data
    assert decode_service_info("127.0.0.1:3181", data) == info


def test_service_info_with_everything_reads_back() -> None:
    endpoints = (Endpoint("a", "h", 65535, "grpc", ("sasl",), ("tls", "x")), Endpoint("b", "::1", 1, "direct"))
    info = BookieServiceInfo("custom", endpoints, {"bk.incarnation": "i", "rack": "/r"})
    assert decode_service_info("custom", encode_service_info(info)) == info


@pytest.mark.parametrize(
    ("bookie_id", "endpoint"),
    [
        ("host:3181", ("host", 3181)),
        ("[::1]:3181", ("::1", 3181)),
        ("custom", None),
        ("a:b", None),
        ("host:0", None),
        ("host:65536", None),
        (":3181", None),
        ("host:٣", None),
    ],
)
def test_empty_service_info_is_read_from_the_id(bookie_id: str, endpoint: tuple[str, int] | None) -> None:
    found = decode_service_info(bookie_id, b"").endpoints
    assert [(e.host, e.port, e.protocol) for e in found] == ([(*endpoint, "bookie-rpc")] if endpoint else [])


def test_cookie_is_apaches_text() -> None:
    cookie = Cookie(bookie_host="127.0.0.1:3181", journal_dirs=("/j",), ledger_dirs=("/l",), instance_id="u-u-i-d")
    text = b'5\nbookieHost: "127.0.0.1:3181"\njournalDir: "/j"\nledgerDirs: "1\\t/l"\ninstanceId: "u-u-i-d"\n'
    assert encode_cookie(cookie) == text
    assert decode_cookie(text) == cookie


def test_cookie_with_separate_index_directories_keeps_them() -> None:
    cookie = Cookie(bookie_host="b", journal_dirs=("/j", "/k"), ledger_dirs=("/l", "/m"), index_dirs=("/i", "/ö"))
    assert decode_cookie(encode_cookie(cookie)) == cookie
    assert b'indexDirs: "2\\t/i\\t/\\303\\266"' in encode_cookie(cookie)


def test_cookies_of_older_layouts_are_read() -> None:
    expected = Cookie(bookie_host="h:1", journal_dirs=("/j",), ledger_dirs=("/a", "/b"))
    assert decode_cookie(b"3\nh:1\n/j\n2\t/a\t/b\n") == expected
    assert decode_cookie(b'4\nbookieHost: "h:1"\njournalDir: "/j"\nledgerDirs: "2\\t/a\\t/b"\n') == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"5",
        b"6\n",
        b"5\nbookieHost: 3",
        b'5\nbookieHost: "h"\nledgerDirs: "1\\t/a"\n',
        b'5\nbookieHost: "h"\njournalDir: "/j"\nledgerDirs: "2\\t/a"\n',
        b"3\nh\n",
        b"5\n\xff\xff",
    ],
)
def test_damaged_cookie_is_corrupt(data: bytes) -> None:
    with pytest.raises(MetadataCorruptError):
        decode_cookie(data)


def test_directory_that_the_format_cannot_hold_is_refused() -> None:
    for dirs in ({"journal_dirs": ("a,b",), "ledger_dirs": ()}, {"journal_dirs": (), "ledger_dirs": ("a\tb",)}):
        with pytest.raises(InvalidArgumentError):
            encode_cookie(Cookie(bookie_host="h", **dirs))


def test_marks_are_apaches_text() -> None:
    mark = UnderreplicationMark(("a:1", "b:2"), 1700000000000)
    assert encode_mark(mark) == b'replica: "a:1"\nreplica: "b:2"\nctime: 1700000000000\n'
    assert decode_mark(encode_mark(mark)) == mark
    assert decode_mark(b"") == UnderreplicationMark(())


def test_locks_votes_and_times_of_audits_are_apaches_bytes() -> None:
    assert encode_lock("host1") == b'bookieId: "host1"\n'
    assert (decode_lock(encode_lock("host1")), decode_lock(b"")) == ("host1", "")
    assert encode_vote("b1:3181") == b'bookieId: "b1:3181"\n'
    assert decode_vote(encode_vote("b1:3181")) == "b1:3181"
    assert encode_audit_time(300) == b"\x08\xac\x02"
    assert (decode_audit_time(b"\x08\xac\x02"), decode_audit_time(b"")) == (300, None)


@given(st.binary(max_size=200))
def test_garbage_is_corrupt_and_nothing_else(data: bytes) -> None:
    decoders: list[Callable[[bytes], object]] = [
        lambda d: decode_service_info("b", d),
        decode_cookie,
        lambda d: decode_cookie(b"5\n" + d),
        lambda d: decode_cookie(b"3\n" + d),
        decode_mark,
        decode_lock,
        decode_vote,
        decode_audit_time,
    ]
    for decode in decoders:
        try:
            decode(data)
        except MetadataCorruptError:
            continue
