# SPDX-License-Identifier: Apache-2.0
"""``bk token``: keys that bookies read, tokens that they believe, and no key in any message."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from bk_cli.operate.token import token
from bk_core.errors import InvalidArgumentError
from bookie_server.ports.access.tokens import parse_keys, verify

KEYS: dict[str, Any] = {
    "ed25519": ed25519.Ed25519PrivateKey.generate(),
    "p256": ec.generate_private_key(ec.SECP256R1()),
    "rsa": rsa.generate_private_key(65537, 2048),
    "p384": ec.generate_private_key(ec.SECP384R1()),
    "weak": rsa.generate_private_key(65537, 1024),
}
_PEM, _PRIVATE = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, key in KEYS.items():
        (tmp_path / name).write_bytes(key.private_bytes(_PEM, _PRIVATE, serialization.NoEncryption()))
        (tmp_path / name).chmod(0o600)
        public = key.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        (tmp_path / f"{name}.pub").write_bytes(public)
    locked = KEYS["ed25519"].private_bytes(_PEM, _PRIVATE, serialization.BestAvailableEncryption(b"x"))
    (tmp_path / "locked").write_bytes(locked)
    (tmp_path / "text").write_text("no key")
    return tmp_path


def run(*arguments: object) -> str:
    """What it prints. Raises what it raises."""
    done = CliRunner().invoke(token, [str(each) for each in arguments], catch_exceptions=False, standalone_mode=False)
    return done.output


@pytest.mark.parametrize("kind", ["ed25519", "p256", "rsa"])
def test_a_token_that_is_made_is_believed_by_the_keys_that_are_made(kind: str, files: Path) -> None:
    keys = run("keys", files / kind)
    assert keys == run("keys", files / f"{kind}.pub")
    assert "PRIVATE" not in keys
    assert not {"d", "p", "q", "k"} & set(json.loads(keys)["keys"][0])
    made = run("create", "--key", files / kind, "--subject", "CN=ingest,O=Example", "--audience", "i", "--hours", "2")
    claims = verify(made.strip().encode(), parse_keys(keys.encode()), "i")
    assert claims.subject == "CN=ingest,O=Example"
    assert 7100 < claims.until_s - time.time() < 7300


def test_a_file_of_several_keys_is_for_an_overlap(files: Path) -> None:
    keys = parse_keys(run("keys", files / "ed25519", files / "rsa.pub").encode())
    assert sorted(each.algorithm for each in keys.values()) == ["EdDSA", "RS256"]
    for kind in ("ed25519", "rsa"):
        made = run("create", "--key", files / kind, "--subject", "a", "--audience", "i")
        assert verify(made.strip().encode(), keys, "i").subject == "a"


def test_a_token_goes_into_a_file_that_others_cannot_read(files: Path) -> None:
    path = files / "token"
    path.write_text("old")
    path.chmod(0o644)
    told = run("create", "--key", files / "ed25519", "--subject", "a", "--audience", "i", "--output", path)
    assert (told, path.stat().st_mode & 0o777, path.read_text().count(".")) == ("", 0o600, 2)
    assert not list(files.glob("*.new"))


def test_a_file_that_others_have_laid_ready_does_not_become_the_token(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner could read it, or the file that a link leads to, whatever the mode."""
    trap, path = files / "trap", files / "token"
    trap.touch()
    monkeypatch.setattr("secrets.token_hex", lambda size: "guessed")
    (files / "token.guessed.new").symlink_to(trap)
    path.write_text("old")
    with pytest.raises(InvalidArgumentError, match="cannot be written"):
        run("create", "--key", files / "ed25519", "--subject", "a", "--audience", "i", "--output", path)
    assert (trap.read_text(), path.read_text()) == ("", "old")


def test_a_token_is_never_readable_by_others_nor_left_half_made(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []

    def replace(new: Path, old: Path) -> None:
        modes.append(new.stat().st_mode & 0o777)
        raise OSError(5, "a disk that is gone")

    monkeypatch.setattr("os.replace", replace)
    before = os.umask(0)
    try:
        with pytest.raises(InvalidArgumentError, match="cannot be written"):
            run("create", "--key", files / "ed25519", "--subject", "a", "--audience", "i", "--output", files / "token")
    finally:
        os.umask(before)
    assert modes == [0o600]
    assert not list(files.glob("token*"))


def test_a_key_that_everybody_may_read_signs_nothing(files: Path) -> None:
    for mode in (0o604, 0o602):
        (files / "rsa").chmod(mode)
        with pytest.raises(InvalidArgumentError, match="may read or change the key") as raised:
            run("create", "--key", files / "rsa", "--subject", "a", "--audience", "i")
        assert "chmod" in raised.value.remedy


def test_a_token_names_its_issuer_where_that_is_wanted(files: Path) -> None:
    keys = parse_keys(run("keys", files / "rsa").encode())
    made = run("create", "--key", files / "rsa", "--subject", "a", "--audience", "i", "--issuer", "ops")
    assert verify(made.strip().encode(), keys, "i", "ops").subject == "a"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("keys", "none"), "No such file"),
        (("keys", "text"), "no key in PEM"),
        (("keys", "locked"), "it is encrypted"),
        (("keys", "p384"), "of this kind"),
        (("keys", "weak"), "1024 bits"),
        (("keys", "rsa", "rsa.pub"), "given twice"),
        (("create", "--subject=a", "--audience=i", "--key", "none"), "No such file"),
        (("create", "--subject=a", "--audience=i", "--key", "rsa.pub"), "a public key signs nothing"),
        (("create", "--subject=", "--audience=i", "--key", "rsa"), "1 to 256 characters"),
        (("create", "--subject=a\nb", "--audience=i", "--key", "rsa"), "that can be seen"),
        (("create", "--subject=a", "--audience=i", "--key", "rsa", "--output", "none/x"), "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said_without_a_part_of_a_key(
    arguments: tuple[str, ...], why: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    with pytest.raises(InvalidArgumentError, match=why) as raised:
        run(*arguments)
    for path in files.iterdir():
        for line in path.read_text().splitlines()[1:-1]:
            assert line not in str(raised.value)
