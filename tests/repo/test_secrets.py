# SPDX-License-Identifier: Apache-2.0
"""The repr of a record shows no secret, and no setting of a bookie is a secret."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

from bookie_server.config import BookieConfig
from tests.kit.canaries import PASSWORD

_SECRET = re.compile(r"passw|passphrase|secret|token|credential|(^|_)key$")
_HOLDS = re.compile(r"bytes|str")
NO_SECRETS = {
    ("BookieConfig", "token_issuer"),  # a name, which tokens must have
    ("Scope", "key"),  # the name of a custom metadata entry
    ("Stored", "key"),  # the schema of an entry
    ("TxnWrite", "key"),  # the hash of a transaction's id
}


def _records() -> Iterator[type]:
    for package in ("bk_core", "bookie_server", "bk_spark", "bk_cli"):
        found = importlib.import_module(package)
        for each in pkgutil.walk_packages(found.__path__, f"{package}."):
            yield from _of(importlib.import_module(each.name))


def _of(module: ModuleType) -> Iterator[type]:
    for each in vars(module).values():
        if inspect.isclass(each) and each.__module__ == module.__name__:
            yield each


def _shows(record: Any) -> Iterator[str]:
    """Yield the fields of a record that look like secrets and appear in its repr."""
    if is_dataclass(record):
        yield from (each.name for each in fields(record) if each.repr and _HOLDS.search(str(each.type)))
    elif issubclass(record, tuple) and hasattr(record, "_fields"):
        made = record._make([PASSWORD] * len(record._fields))
        if PASSWORD.decode() in repr(made):
            yield from (name for name, kind in record.__annotations__.items() if _HOLDS.search(str(kind)))


def test_no_record_shows_the_secret_that_it_holds() -> None:
    records = list(_records())
    names = {record.__name__ for record in records}
    assert {"LedgerMetadata", "FenceRequested", "LogHead", "Pem", "BkOptions"} <= names
    shown = {(record.__name__, name) for record in records for name in _shows(record) if _SECRET.search(name)}
    assert {each for each in shown - NO_SECRETS if not each[1].endswith("_path")} == set()  # a path names a file


def test_a_setting_of_a_bookie_names_the_file_of_a_secret_and_holds_none() -> None:
    """A setting names the file of a secret, so that ``/config`` and the file of settings contain none."""
    names = {field.name: str(field.type) for field in fields(BookieConfig) if _SECRET.search(field.name)}
    named = {name: kind for name, kind in names.items() if ("BookieConfig", name) not in NO_SECRETS}
    assert "upkeep_passwords_file" in {field.name for field in fields(BookieConfig)}
    assert {name for name, kind in named.items() if "Path" not in kind} == set()
