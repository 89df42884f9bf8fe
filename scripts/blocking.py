# SPDX-License-Identifier: Apache-2.0
"""Writes the blocking client from the asyncio one. With ``--check`` it only fails if the committed files are stale.

A public name of an asyncio class becomes:

- for a property, a declared attribute or a method that is not ``async``: the same, called on the caller's thread;
- for an ``async`` method: a method that waits for it on the client's thread; a handle that it returns is wrapped;
- for a method that returns a ``BatchIterator``: a method that returns a ``BlockingIterator`` over the same items;
- if its base in ``bk_core/blocking/base.py`` or ``blocking/loop_thread.py`` defines it: nothing, it is written by hand;
- if ``internal`` names it: nothing, because it serves the client itself.

Signatures and docstrings are copied from the source.
"""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BY_HAND = ("bk_core.blocking.loop_thread", "bk_core.blocking.base")
WORDS = (
    ("an async context manager", "a context manager"),
    ("Belongs to the loop it was made on", "Has a thread of its own"),
)
"""Phrases in docstrings of the asyncio client, and the phrases that replace them for the blocking one."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Facade:
    """A class of the blocking client. ``module`` and ``name`` are those of the asyncio class, ``base`` is the base
    written by hand, and ``internal`` are names that are not for users. ``is_made`` means that users make it themselves,
    with the arguments of the asyncio class."""

    module: str
    name: str
    base: str
    internal: tuple[str, ...] = ()
    is_made: bool = False


@dataclass(frozen=True)
class Page:
    """A file to write. ``inner`` is the module that has the asyncio classes; ``functions`` are functions of other
    modules that connect."""

    path: str
    job: str
    inner: str
    facades: tuple[Facade, ...]
    functions: tuple[tuple[str, str], ...] = ()


PAGES = (
    Page(
        "bk_core/blocking/__init__.py",
        """The client without ``await``: the asyncio client on a private daemon thread, one thread a connection.

Written by scripts/blocking.py from :mod:`bk_core.client`; do not edit. The thread starts with :func:`connect`, never at
import: Spark forks its workers (RULES K4). Every call waits for its answer on that thread and raises what it raised.
Handles may be used from several threads.
""",
        "bk_core.client",
        (
            Facade(
                "bk_core.client.writing.writer",
                "LedgerWriter",
                "LedgerWriterBase",
                internal=("append_future", "end", "hold", "release"),
            ),
            Facade(
                "bk_core.client.reading.reader",
                "LedgerReader",
                "BlockHandle",
                internal=("end", "read_parts", "reading", "tailing"),
            ),
            Facade(
                "bk_core.client.bookkeeper",
                "BookKeeper",
                "BookKeeperBase",
                internal=(
                    "recover_ledger",
                    "tell_deleted",
                    "refresh_bookies",
                    "bookies_for_repair",
                    "choose_bookies",
                    "new_session",
                    "digester_of",
                    "check_open",
                    "at_close",
                ),
            ),
            Facade("bk_core.client.detached", "DetachedReader", "DetachedReaderBase", is_made=True),
        ),
        functions=(("bk_core.client.bookkeeper", "connect"),),
    ),
    Page(
        "bk_core/blocking/logs.py",
        """Named logs without ``await``: what ``BookKeeper.log`` of :mod:`bk_core.blocking` returns.

Written by scripts/blocking.py from :mod:`bk_core.logs.named_log`; do not edit.
""",
        "bk_core.logs.named_log",
        (
            Facade("bk_core.logs.leading.leader", "LogLeader", "BlockHandle", internal=("take_over",)),
            Facade("bk_core.logs.named_log", "NamedLog", "Handle", internal=("records", "compactor")),
        ),
    ),
    Page(
        "bk_core/blocking/topics.py",
        """Pulsar's topics without ``await``: what ``BookKeeper.topic`` of :mod:`bk_core.blocking` returns.

Written by scripts/blocking.py from :mod:`bk_core.pulsar.topic`; do not edit.
""",
        "bk_core.pulsar.topic",
        (Facade("bk_core.pulsar.topic", "Topic", "BlockHandle"),),
    ),
)


class Source:
    """A module in source form: its classes and functions, and the modules that its names come from."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.text = (ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
        self.defined: dict[str, ast.stmt] = {}
        self._imported: dict[str, str] = {}
        self.for_types = set[str]()
        for node in ast.parse(self.text).body:
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self.defined[name] = node
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    self.defined[name] = node
                case ast.ImportFrom(module=str(origin), names=names):
                    self._imported.update({each.name: origin for each in names})
                case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body):
                    found = {e.name: n.module or "" for n in body if isinstance(n, ast.ImportFrom) for e in n.names}
                    self._imported.update(found)
                    self.for_types.update(found)

    def class_of(self, name: str) -> ast.ClassDef:
        found = self.defined[name]
        assert isinstance(found, ast.ClassDef), f"{self.module}.{name} is no class"
        return found

    def origin(self, name: str) -> str:
        """Return the module that ``name`` is imported from here, or this module if it is defined here."""
        return self.module if name in self.defined else self._imported[name]


class Writer:
    """Writes one page."""

    def __init__(self, page: Page) -> None:
        self._page = page
        package, _, self._inner = page.inner.rpartition(".")
        self._names = {each.name for each in page.facades}
        self._imports: set[tuple[str, str]] = {(package, self._inner)}
        self._type_imports: set[tuple[str, str]] = set()

    def write(self) -> str:
        """Return the whole file, formatted."""
        parts = [self._class(facade) for facade in self._page.facades]
        parts += [self._function(Source(module), name) for module, name in self._page.functions]
        imports = [f"from {module} import {name}" for module, name in sorted(self._imports)]
        if self._type_imports:
            imports += ["from typing import TYPE_CHECKING", "if TYPE_CHECKING:"]
            imports += [f"    from {module} import {name}" for module, name in sorted(self._type_imports)]
        head = f'# SPDX-License-Identifier: Apache-2.0\n"""{self._page.job}"""\n\nfrom __future__ import annotations\n'
        return formatted("\n".join([head, *imports, *parts]), self._page.path)

    def _class(self, facade: Facade) -> str:
        source = Source(facade.module)
        node = source.class_of(facade.name)
        left_out = {*by_hand(facade.base), *facade.internal}
        (module,) = (each for each in BY_HAND if facade.base in Source(each).defined)
        self._imports.add((module, facade.base))
        generic = "" if module == BY_HAND[1] else f"[{self._inner}.{facade.name}]"
        lines = [f"class {facade.name}({facade.base}{generic}):", "    " + docstring(source, node), ""]
        if facade.is_made:
            lines += self._constructor(source, facade.name, method_of(node, "__init__"))
        for name, member, doc in members(source, node):
            if name not in left_out:
                lines += self._member(source, member, doc)
        return "\n".join(lines)

    def _constructor(self, source: Source, name: str, init: Function) -> list[str]:
        made = f"{self._inner}.{name}"
        return [
            f"    def __init__({self._parameters(source, init)}) -> None:",
            f"        async def make() -> {made}:",
            f"            return {made}({arguments(init)})",
            "",
            "        super().__init__(make)",
            "",
        ]

    def _member(self, source: Source, member: ast.stmt, doc: str) -> list[str]:
        if isinstance(member, ast.AnnAssign):
            name, parameters, returns = ast.unparse(member.target), "self", self._annotation(source, member.annotation)
        else:
            assert isinstance(member, Function)
            name, parameters, returns = (
                member.name,
                self._parameters(source, member),
                self._annotation(source, member.returns),
            )
        answer = f"self._inner.{name}"
        is_asked = isinstance(member, ast.AnnAssign) or is_property(member)
        if not is_asked:
            answer += f"({arguments(member)})"
        if returns.startswith("BatchIterator["):
            item = returns.removeprefix("BatchIterator[").removesuffix("]")
            self._imports.add((BY_HAND[0], "BlockingIterator"))
            returns, answer = f"BlockingIterator[{item}]", f"BlockingIterator(self._thread, {answer})"
        elif isinstance(member, ast.AsyncFunctionDef):
            answer = f"self._thread.call({answer})"
            answer = f"{returns}({answer}, self._thread)" if returns in self._names else answer
        return [
            *(["    @property"] if is_asked else ()),
            f"    def {name}({parameters}) -> {returns}:",
            *([f"        {doc}"] if doc else ()),
            f"        {answer if returns == 'None' else f'return {answer}'}",
            "",
        ]

    def _function(self, source: Source, name: str) -> str:
        node = source.defined[name]
        assert isinstance(node, ast.AsyncFunctionDef), f"{name} is to connect"
        returns = self._annotation(source, node.returns)
        return "\n".join(
            [
                f"def {name}({self._parameters(source, node)}) -> {returns}:",
                f"    {docstring(source, node)}",
                f"    return {returns}(lambda: {self._inner}.{name}({arguments(node)}))",
            ]
        )

    def _parameters(self, source: Source, function: Function) -> str:
        args = function.args
        for each in [*args.args, *args.kwonlyargs]:
            self._annotation(source, each.annotation)
        for default in [*args.defaults, *args.kw_defaults]:
            self._annotation(source, default)
        return ast.unparse(args)

    def _annotation(self, source: Source, node: ast.expr | None) -> str:
        """Return the text of an annotation or default, and import its names from where the source has them."""
        for each in ast.walk(node) if node is not None else ():
            if isinstance(each, ast.Name) and not hasattr(builtins, each.id) and each.id not in self._names:
                imports = self._type_imports if each.id in source.for_types else self._imports
                imports.add((source.origin(each.id), each.id))
        return "" if node is None else ast.unparse(node)


def members(source: Source, node: ast.ClassDef) -> Iterator[tuple[str, ast.stmt, str]]:
    """Yield public methods, properties and declared attributes of a class, each with its docstring or an empty text."""
    following = [*node.body[1:], None]
    for member, after in zip(node.body, following, strict=True):
        match member:
            case ast.AnnAssign(target=ast.Name(id=name)):
                text = ast.get_source_segment(source.text, after) if is_text(after) else ""
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                text = docstring(source, member)
            case _:
                continue
        if not name.startswith("_"):
            yield name, member, text or ""


def is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def is_property(node: Function) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)


def docstring(source: Source, node: ast.ClassDef | Function) -> str:
    """Return a docstring in source form, quotes included, in the words of the blocking client; empty if there is
    none."""
    if not is_text(node.body[0]):
        return ""
    text = ast.get_source_segment(source.text, node.body[0]) or ""
    for asyncio, blocking in WORDS:
        text = text.replace(asyncio, blocking)
    return text


def method_of(node: ast.ClassDef, name: str) -> Function:
    (found,) = (each for each in node.body if isinstance(each, Function) and each.name == name)
    return found


def arguments(function: Function) -> str:
    """Return the text with which a method passes its own arguments on."""
    names = [each.arg for each in function.args.args if each.arg != "self"]
    return ", ".join([*names, *(f"{each.arg}={each.arg}" for each in function.args.kwonlyargs)])


def by_hand(base: str) -> Iterator[str]:
    """Yield the names that a base written by hand defines, its own bases included."""
    for source in map(Source, BY_HAND):
        if base in source.defined:
            node = source.class_of(base)
            yield from (each.name for each in node.body if isinstance(each, Function))
            for parent in node.bases:
                yield from by_hand(ast.unparse(parent).partition("[")[0])


def formatted(text: str, path: str) -> str:
    """Format the text as ``ruff`` formats every other file. In an ``__init__.py`` ruff would keep unused imports."""
    path = path.replace("__init__", "generated")
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--quiet", "--select", "I,F401", "--fix", "-"], ["format", "--quiet", "-"]):
        options = [*ruff, *command, "--stdin-filename", path]
        text = subprocess.run(options, cwd=ROOT, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> int:
    stale = []
    for page in PAGES:
        path, text = ROOT / page.path, Writer(page).write()
        if sys.argv[1:] != ["--check"]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(page.path)
    if stale:
        print(f"out of date: {', '.join(stale)}; type: .venv/bin/python scripts/blocking.py", file=sys.stderr)
        return 1
    print("the blocking client is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
