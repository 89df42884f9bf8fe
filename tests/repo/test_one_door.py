# SPDX-License-Identifier: Apache-2.0
"""Each program connects in one place, so that a new setting of connections is added only there.

A command gets its client, its configuration, its store and its callers of bookies from ``bk_cli/access.py``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.repo.test_tidy import PACKAGES, files_of, relative

DOORS = {
    "Caller": {"bk_core/client/config.py"},
    "ClientConfig": {
        *("bk_core/client/bookkeeper.py", "bk_core/client/detached.py"),  # used if a program passes none
        *("bk_cli/access.py", "bk_spark/workers/clients.py", "bookie_server/main.py"),
    },
    "connect": {
        "bk_core/blocking/__init__.py",
        "bk_cli/access.py",
        "bk_spark/workers/clients.py",
        "bookie_server/main.py",
    },
    "open_store": {
        *(
            "bk_core/client/bookkeeper.py",
            "bk_core/pulsar/cluster.py",  # Pulsar's metadata, if they are not beside the ledgers
            "bk_cli/access.py",
            "bookie_server/main.py",
            "bookie_server/admin/endpoints.py",
        ),
    },
    "open_tree": {"bk_cli/access.py"},
    "AdminPorts": {"bk_cli/access.py"},
    "Tls": {"bk_core/client/config.py", "bookie_server/config.py"},
}
"""The names that make a connection, each with the files that may call it."""
MODULES = ("blocking", "client", "bk_core", "metadata", "port", "config", "others")


def called(tree: ast.Module) -> Iterator[str]:
    """Yield the names of DOORS that a file calls: a name that it imports, or one of a module."""
    imported = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in DOORS
    }
    callees = _callees(tree) if imported else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in imported and id(node) in callees:
            yield imported[node.id]
        elif isinstance(node, ast.Attribute) and node.attr in DOORS and _last(node.value) in MODULES:
            yield node.attr


def _callees(tree: ast.Module) -> set[int]:
    """Return the ids of functions that are called, or are passed to another to be called (``to_thread(open_store,
    …)``)."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {id(each) for call in calls for each in (call.func, *call.args)}


def _last(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def test_each_program_connects_in_one_place() -> None:
    found: dict[str, set[str]] = {name: set() for name in DOORS}
    for path in files_of(*(f"{package}/*.py" for package in PACKAGES)):
        text = path.read_text(encoding="utf-8")
        for name in called(ast.parse(text)) if any(f"{each}{end}" in text for each in DOORS for end in "(,)") else ():
            found[name].add(relative(path))
    assert found == DOORS, "a command takes what it needs of bk_cli/access.py (ARCHITECTURE.md)"


def test_a_call_is_found_however_it_is_written() -> None:
    for text in (
        "from bk_core.client import connect as c\nasync def f(): await c(uri)",
        "from bk_core import blocking\nblocking.connect(uri)",
        "import bk_core.blocking\nbk_core.blocking.connect(uri)",
        "from bk_core.client import connect\nrun(connect, uri)",
    ):
        assert list(called(ast.parse(text))) == ["connect"], text
    assert list(called(ast.parse("from bk_core.client import connect\ntree.connect()"))) == []
