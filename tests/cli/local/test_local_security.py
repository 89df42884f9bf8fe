# SPDX-License-Identifier: Apache-2.0
"""The certificates of a local cluster: made once, used again, made anew before they end, and for their owner alone."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bk_cli.local import local_security
from bk_cli.local.local_security import ADMIN, BOOKIE, CLIENT, ZOOKEEPER, LocalSecurity
from bk_core.access.tls import Tls, TlsPaths
from bk_spark.options.options import Use, parse_options
from bk_spark.workers.clients import client_config

WHO = (ADMIN, CLIENT, BOOKIE, ZOOKEEPER)


def prepared(path: Path) -> LocalSecurity:
    security = LocalSecurity(path / "security")
    security.prepare()
    return security


def contents(security: LocalSecurity) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in security.path.iterdir()}


def test_a_second_start_has_the_same_files_which_nobody_else_can_read(tmp_path: Path) -> None:
    first = prepared(tmp_path)
    first.save_environments("zk://127.0.0.1:2181/ledgers")
    before = contents(first)
    assert len(before) == 14
    assert first.path.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in first.path.iterdir()} == {0o600}
    assert contents(prepared(tmp_path)) == before


def test_a_certificate_is_good_for_client_and_server_by_strict_rules(tmp_path: Path) -> None:
    security = prepared(tmp_path)
    for who in WHO:
        context = ssl.create_default_context(cafile=str(security.ca))
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
        context.load_cert_chain(str(security.certificate(who)), str(security.key(who)))
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(str(security.certificate(who)), str(security.key(who)))
        server.load_verify_locations(str(security.ca))
        server.verify_mode = ssl.CERT_REQUIRED
        assert _shaken(context, server) == security.identity(who)


def _shaken(client: ssl.SSLContext, server: ssl.SSLContext) -> str:
    """What the server knows of the client: its subject as in RFC 2253."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    its = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    for _ in range(5):
        for each in (ours, its):
            try:
                each.do_handshake()
                done.add(each)
            except ssl.SSLWantReadError:
                pass
    assert len(done) == 2
    found: Any = its.getpeercert()
    names = dict(pair for part in found["subject"] for pair in part)
    return f"CN={names['commonName']},O={names['organizationName']}"


def test_what_ends_soon_is_made_anew_and_with_a_new_authority_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_security, "CERTIFICATE_DAYS", 20)
    before = contents(prepared(tmp_path))
    monkeypatch.undo()
    security = prepared(tmp_path)
    after = contents(security)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {f"{who}.{kind}" for who in WHO for kind in ("crt", "key")} | {"zookeeper.pem"}
    (security.path / "ca.key").unlink()
    anew = contents(prepared(tmp_path))
    assert {name for name in anew if anew[name] == after.get(name)} == {"grant.keys"}
    (security.path / "client.key").unlink()  # as after a crash between the two files
    again = contents(prepared(tmp_path))
    assert {name for name in again if again[name] != anew[name]} == {"client.crt", "client.key"}


def test_the_settings_of_each_are_files_that_fit_together(tmp_path: Path) -> None:
    security = prepared(tmp_path)
    for who in (ADMIN, CLIENT, BOOKIE):
        told = security.settings(who)
        paths = TlsPaths(
            ca_path=told["tls_ca_path"], certificate_path=told["tls_certificate_path"], key_path=told["tls_key_path"]
        )
        Tls(paths).client()
    assert timedelta(days=local_security.RENEW_DAYS) < timedelta(days=local_security.CERTIFICATE_DAYS) / 2


def test_options_of_spark_are_the_settings_of_a_client_by_the_names_that_the_source_knows(tmp_path: Path) -> None:
    security = prepared(tmp_path)
    given = {"metadataserviceuri": "zk://h/ledgers", "path": "x", **security.spark_options()}
    config = client_config(parse_options(given, Use.READ))
    assert config.tls_certificate_path == str(security.certificate(CLIENT))
    assert (config.tls_zookeeper, config.security) == (True, "secure")
