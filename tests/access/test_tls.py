# SPDX-License-Identifier: Apache-2.0
"""Files of TLS, the identity in a certificate, and who is let in by it."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from bk_cli.access import Access
from bk_core.access.tls import Admission, Names, Tls, TlsPaths, names_of
from bk_core.client.config import ClientConfig
from bk_core.errors import InvalidArgumentError, TlsError
from tests.kit.certificates import Authority
from tests.kit.lanes import bookie_config


def test_a_subject_is_written_as_rfc_2253_and_no_value_looks_like_two_parts() -> None:
    names = names_of(
        {
            "subject": (
                (("organizationName", "Example, Inc"),),
                (("commonName", "a+b,CN=admin"), ("userId", "7")),
                (("jurisdictionCountryName", " #x "),),
            ),
            "subjectAltName": (("DNS", "a.example"), ("URI", "spiffe://x/y"), ("IP Address", "127.0.0.1")),
        }
    )
    assert names.subject == "jurisdictionCountryName=\\ #x\\ ,CN=a\\+b\\,CN=admin+UID=7,O=Example\\, Inc"
    assert (names.dns, names.uris) == (["a.example"], ["spiffe://x/y"])
    assert names_of({}) == Names("", [], [])


@pytest.mark.parametrize(
    ("rule", "identity"), [("subject", "CN=a,O=b"), ("dns", "a.example"), ("spiffe", "spiffe://x/y")]
)
def test_the_rule_says_which_name_is_the_identity(rule: str, identity: str) -> None:
    names = Names("CN=a,O=b", ["a.example", "b.example"], ["https://x", "spiffe://x/y"])
    assert Admission(rule).admit(names) == identity


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("subject", Names("", ["a.example"], ["spiffe://x"])),
        ("dns", Names("CN=a", [], ["spiffe://x"])),
        ("spiffe", Names("CN=a", ["a.example"], ["https://x"])),
        ("spiffe", Names("CN=a", [], ["spiffe://x", "spiffe://y"])),
        ("subject", Names("CN=a\n2026-01-01 INFO all is well")),
        ("spiffe", Names("CN=a", [], ["spiffe://x\x1b[2J"])),
    ],
)
def test_a_certificate_without_such_a_name_is_refused(rule: str, names: Names) -> None:
    with pytest.raises(TlsError, match="tls_identity"):
        Admission(rule).admit(names)


@pytest.mark.parametrize(
    ("pattern", "identity", "let_in"),
    [
        ("CN=a,O=b", "CN=a,O=b", True),
        ("CN=a", "CN=ab", False),
        ("CN=*,O=b", "CN=a,O=b", True),
        ("CN=*,O=b", "CN=a,O=b,C=x", False),
        ("CN=[a-z],O=b", "CN=q,O=b", False),
        ("CN=[a-z],O=b", "CN=[a-z],O=b", True),
        ("CN=?,O=b", "CN=q,O=b", False),
        ("cn=a,o=b", "CN=a,O=b", False),
    ],
)
def test_only_a_star_in_a_pattern_stands_for_other_text(pattern: str, identity: str, let_in: bool) -> None:
    admission = Admission("subject", ("CN=other", pattern))
    if let_in:
        assert admission.admit(Names(identity)) == identity
        return
    with pytest.raises(TlsError, match="not let in"):
        admission.admit(Names(identity))


@pytest.mark.parametrize(
    "given",
    [
        {"ca_path": "", "certificate_path": "c", "key_path": "k"},
        {"ca_path": "a", "certificate_path": "c"},
        {"ca_path": "a", "key_path": "k"},
    ],
)
def test_half_a_pair_of_files_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="go together"):
        TlsPaths(**given)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files, other = authority.issue("right"), authority.issue("other")

    def refused(**changed: Any) -> str:
        own: dict[str, Any] = {"ca_path": files.ca, "certificate_path": files.certificate, "key_path": files.key}
        settings: dict[str, Any] = {name: str(path) for name, path in (own | changed).items()}
        with pytest.raises(InvalidArgumentError) as raised:
            Tls(TlsPaths(**settings))
        return str(raised.value)

    assert "missing.crt: No such file" in refused(ca_path=tmp_path / "missing.crt")
    assert str(other.key) in refused(key_path=other.key)
    assert str(files.key) in refused(ca_path=files.key)
    encrypted = tmp_path / "encrypted.key"
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"canary"),
        )
    )
    said = refused(key_path=encrypted)
    assert "encrypted" in said
    assert "canary" not in said


def test_a_client_is_told_before_it_connects_that_its_settings_do_not_fit() -> None:
    lacking: tuple[dict[str, Any], ...] = ({"tls_certificate_path": "c", "tls_key_path": "k"}, {"tls_zookeeper": True})
    for settings in lacking:
        with pytest.raises(InvalidArgumentError, match="tls_ca_path"):
            ClientConfig(**settings)
    with pytest.raises(InvalidArgumentError, match="https or none"):
        ClientConfig(tls_ca_path="x", tls_endpoint_identification="")
    assert ClientConfig().tls() is None


def test_every_door_has_the_tls_that_its_settings_say(tmp_path: Path) -> None:
    paths = Authority(tmp_path).issue("client").settings()
    uri = "zk://127.0.0.1/ledgers"
    for zookeeper in (False, True):
        settings: dict[str, Any] = {**{name: str(path) for name, path in paths.items()}, "tls_zookeeper": zookeeper}
        client, bookie = ClientConfig(**settings), bookie_config(tmp_path, uri, **settings)
        of_bookie, access = ClientConfig(**bookie.client_settings()), Access(uri, settings=settings)
        for caller in (client.caller("id"), of_bookie.caller("id"), access.caller("id", "test")):
            assert caller.tls is not None
        assert access.admin_ports(1).tls is not None
        for each in (client, bookie, of_bookie, access.config()):
            assert (each.store_settings()["tls"] is not None) is zookeeper


def test_a_client_context_of_a_protocol_offers_that_protocol_and_no_other_context_does(tmp_path: Path) -> None:
    tls = Authority(tmp_path).issue("peer").tls()
    server = tls.server()
    server.set_alpn_protocols(["h2"])
    assert _agreed(tls.client_of("h2"), server) == "h2"
    assert _agreed(tls.client(), server) is None


def _agreed(client: ssl.SSLContext, server: ssl.SSLContext) -> str | None:
    """The protocol that a client and a server agree on in their handshake, in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(down, up, server_hostname="localhost")
    called = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (caller, called):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert caller.version() == called.version() is not None
    return caller.selected_alpn_protocol()
