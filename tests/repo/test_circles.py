# SPDX-License-Identifier: Apache-2.0
"""No module imports itself through other modules, imports for type checkers included. ``lint-imports`` checks the
layers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from tests.repo.test_tidy import files_of, relative, statements

FOLDERS = ("bk_core", "bookie_server", "bk_spark", "bk_cli", "benchmarks")


def imports_of(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Return, for each of these modules, which of the others it imports. ``modules`` maps names to sources."""
    found: dict[str, set[str]] = {}
    for name, source in modules.items():
        nodes = list(statements(source))
        wanted = {
            f"{node.module}.{each.name}" for node in nodes if isinstance(node, ast.ImportFrom) for each in node.names
        }
        wanted |= {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
        wanted |= {each.rpartition(".")[0] for each in wanted if each not in modules}
        found[name] = wanted & modules.keys() - {name}
    return found


def circles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the modules that import each other. Modules that import no remaining module, or that no remaining module
    imports, are removed again and again; what remains is a circle."""
    left = {name: set(wanted) for name, wanted in imports.items()}
    while True:
        imported = {each for wanted in left.values() for each in wanted}
        gone = {name for name, wanted in left.items() if not wanted & left.keys() or name not in imported}
        if not gone:
            return [sorted(left)] if left else []
        left = {name: wanted - gone for name, wanted in left.items() if name not in gone}


def test_no_module_imports_itself_by_way_of_others() -> None:
    sources = {
        relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path.read_text(encoding="utf-8")
        for path in files_of(*(f"{folder}/*.py" for folder in FOLDERS))
    }
    assert len(sources) > 300
    assert circles(imports_of(sources)) == []


def test_a_circle_is_found_whatever_way_it_is_imported() -> None:
    sources = {
        "a.top": "from a import middle\n",
        "a.middle": "if TYPE_CHECKING:\n    from a.low import Thing\n",
        "a.low": "def f():\n    import a.middle\n",
        "a.alone": "import os\n",
    }
    assert circles(imports_of(sources)) == [["a.low", "a.middle"]]
    assert circles(imports_of({**sources, "a.low": ""})) == []
