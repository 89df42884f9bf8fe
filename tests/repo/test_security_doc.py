# SPDX-License-Identifier: Apache-2.0
"""``docs/security.md`` names every action of the audit logs (§8.2) and every role (§6.2), and each action has a
test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from bk_core.access.roles import CLUSTER_ONLY, Role
from tests.repo.test_tidy import PACKAGES, ROOT, files_of

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
AUDITED = re.search(r"^### 8\.2 .*?(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
WRITE = {"audit", "audited", "ledgers", "say"}
"""The functions that write an event. Their first argument is the action."""


def actions(source: str) -> Iterator[str]:
    """Yield the actions that a file writes to an audit log. The names of refused operations are not literals."""
    if not any(f"{name}(" in source for name in WRITE):
        return
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        did = node.args[0]
        for each in (did.body, did.orelse) if isinstance(did, ast.IfExp) else (did,):
            if name in WRITE and isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value


@cache
def written() -> set[str]:
    paths = files_of(*(f"{package}/*.py" for package in PACKAGES))
    return {did for path in paths for did in actions(path.read_text(encoding="utf-8"))}


def test_the_page_names_every_action_of_the_audit_logs() -> None:
    assert AUDITED is not None
    assert len(written()) > 25
    assert written() - set(re.findall(r"`([\w-]+)`", AUDITED[0])) == set()


def test_every_action_of_the_audit_logs_has_a_test() -> None:
    texts = [path.read_text(encoding="utf-8") for path in files_of("tests/*.py")]
    tests = "".join(text for text in texts if re.search(r"\b(?:bk_core|bookie_server)\.audit\"", text))
    assert {did for did in written() if f'"{did}"' not in tests and f'"did": "{did}"' not in tests} == set()


def test_an_action_is_found_however_it_is_written() -> None:
    source = 'audit("a", why)\nself.log.say("b" if it else "c")\nslow.say(lambda: text("d"))\nsay(f"{name} e")\n'
    assert sorted(actions(source)) == ["a", "b", "c"]


def test_the_page_has_every_role_with_where_it_can_be_given() -> None:
    rows = re.findall(r"^\| (\w+) \| (cluster\b[^|]*) \|", PAGE, re.MULTILINE)
    assert [name for name, _ in rows] == [role.value for role in Role]
    assert {name for name, on in rows if on == "cluster"} == {role.value for role in CLUSTER_ONLY}
