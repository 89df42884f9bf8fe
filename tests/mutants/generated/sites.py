# SPDX-License-Identifier: Apache-2.0
"""Finds every place of a source text where a small defect can be planted, and every defect for that place.

A defect is an edit of some bytes of the text, so that everything else keeps its place and its formatting. Pure: text
in, sites out. Texts for people (docstrings, logs, messages of errors), type annotations, asserts and ``__repr__`` are
not changed, because no behaviour depends on them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
}
BOUNDARIES = {"<=": "<", "<": "<=", ">=": ">", ">": ">="}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
    ast.BitXor: ("^", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
LOGS = re.compile(r"^(self\.)?_?(log|logger|logging|_log|LOG|slow|warnings)\.(\w+)$")
FOR_PEOPLE = {"help", "description", "metavar", "short_help", "epilog", "prog", "title", "remedy"}
"""Keyword arguments whose texts only people read."""
TYPING = {"cast", "TypeVar", "NewType", "ParamSpec", "overload", "isinstance", "issubclass", "dataclass"}
"""Calls whose arguments name a type, or say how a class is built."""
LIMIT = re.compile(r"(_S|_MS|_MAX|_KEPT)$")
LIMIT_MIN = 10
"""The smallest limit that is not changed by one. A limit of ten or more that is off by one is the same program for
every user, and a test that finds the change fixes a value that may be tuned. Limits below ten, and the values that a
limit is computed from, are changed."""
SYMMETRIC = {"min", "max", "gcd"}
"""Calls whose arguments may come in any order."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of the bytes from ``start`` to ``end``, which are at ``line`` and ``column`` (both from 1)."""

    start: int
    end: int
    line: int
    column: int
    kind: str
    before: str
    after: str
    statement: int
    """The line on which the statement begins. A line inside the statement, as in a list, may not count as executed."""
    is_at_import: bool
    """Whether the code runs when its module is imported. Tests that run later do not execute its line then."""

    def plant(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


def sites(source: bytes) -> list[list[Edit]]:
    """Return all edits of this text, grouped by the place where they begin, in the order of the text."""
    by_start: dict[int, list[Edit]] = {}
    for edit in _Finder(source).edits():
        by_start.setdefault(edit.start, []).append(edit)
    return [by_start[start] for start in sorted(by_start)]


def compiles(planted: bytes) -> bool:
    """Whether a planted text is a program at all. A few are not, such as one whose default comes too late."""
    try:
        compile(planted, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder:
    """Walks one syntax tree. ``_functions`` are the functions around the current node."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._tree = ast.parse(source)
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._functions: list[Function | ast.Lambda] = []
        self._line = 1

    def edits(self) -> Iterator[Edit]:
        yield from self._walk(self._tree)

    # --- the walk ---

    def _walk(self, node: ast.AST) -> Iterator[Edit]:
        if self._is_left_alone(node):
            return
        if isinstance(node, ast.stmt):
            self._line = node.lineno
        if isinstance(node, Function):
            yield from self._function(node)
            return
        yield from self._of(node)
        inside = isinstance(node, ast.Lambda)
        if isinstance(node, ast.Lambda):
            self._functions.append(node)
        for child in self._children(node):
            yield from self._walk(child)
        if inside:
            self._functions.pop()

    def _function(self, node: Function) -> Iterator[Edit]:
        for decorator in node.decorator_list:
            yield from self._walk(decorator)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                yield from self._default(default)
        self._functions.append(node)
        yield from self._early(node)
        for child in node.body:
            yield from self._walk(child)
        self._functions.pop()

    def _children(self, node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, ast.AnnAssign):
            yield from [node.value] if node.value else []
        elif isinstance(node, ast.Call):
            yield node.func
            yield from node.args
            yield from (keyword.value for keyword in node.keywords if keyword.arg not in FOR_PEOPLE)
        elif isinstance(node, ast.Try):
            yield from [*node.body, *node.handlers, *node.orelse, *node.finalbody]
        else:
            yield from ast.iter_child_nodes(node)

    def _is_left_alone(self, node: ast.AST) -> bool:
        match node:
            case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
                return True
            case ast.Expr(value=ast.Constant()):
                return True
            case ast.FunctionDef(name="__repr__" | "__str__"):
                return True
            case ast.If(test=test):
                said = self._text(test)
                return "TYPE_CHECKING" in said or "__name__" in said
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int() | float() as number)):
                return not self._functions and bool(LIMIT.search(name)) and number >= LIMIT_MIN
            case ast.Assign(targets=[ast.Name(id=name)]):
                return name in ("__all__", "__slots__") or (not self._functions and _is_type(node.value))
            case ast.Call():
                return self._is_for_people(node)
        return False

    def _is_for_people(self, call: ast.Call) -> bool:
        name = self._text(call.func)
        last = name.rpartition(".")[2]
        return bool(LOGS.match(name)) or last.endswith(("Error", "Warning")) or last in TYPING

    # --- the edits of each node ---

    def _of(self, node: ast.AST) -> Iterator[Edit]:  # noqa: C901 - one case for each kind of node
        match node:
            case ast.Compare(ops=[operator], comparators=[right]):
                yield from self._comparison(node, operator, right)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield from self._condition(test)
            case ast.comprehension(ifs=tests):
                for test in tests:
                    yield from self._condition(test)
            case ast.BoolOp():
                yield self._logic(node)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._edit(node, "not dropped", f"({self._text(operand)})")
            case ast.BinOp():
                yield from self._arithmetic(node, node.left, node.op, node.right)
            case ast.AugAssign():
                yield from self._arithmetic(node, node.target, node.op, node.value)
                yield from self._assignment(node, node.target)
            case ast.Call():
                yield from self._arguments(node)
            case ast.Constant():
                yield from self._constant(node, "constant")
            case ast.Assign() | ast.AnnAssign():
                yield from self._assignment(node, node.targets[0] if isinstance(node, ast.Assign) else node.target)
            case _:
                yield from self._statement(node)

    def _statement(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.Expr(value=ast.Call() as call) if not self._is_for_people(call):
                yield self._edit(node, "call dropped", "pass")
            case ast.Expr(value=ast.Await()):
                yield self._edit(node, "await dropped", "pass")
            case ast.Raise() if "NotImplementedError" not in self._text(node):
                yield self._edit(node, "raise dropped", "pass")
            case ast.ExceptHandler(body=body) if not isinstance(body[0], ast.Pass | ast.Raise):
                yield self._edit_between(body[0], body[-1], "exception swallowed", "pass")
            case ast.Return(value=value) if value is not None:
                yield from self._return(node, value)
            case ast.Break():
                yield self._edit(node, "break continues", "continue")
            case ast.Continue():
                yield self._edit(node, "continue breaks", "break")
            case ast.Delete():
                yield self._edit(node, "delete dropped", "pass")

    def _comparison(self, node: ast.Compare, operator: ast.cmpop, right: ast.expr) -> Iterator[Edit]:
        start, end = self._end(node.left), self._start(right)
        between = self._source[start:end].decode()
        found = re.search(r"not\s+in|is\s+not|in|is|[=!<>]=|[<>]", between)
        if not found:
            return
        old = found[0]
        for new in COMPARISONS[type(operator)]:
            kind = "boundary moved" if BOUNDARIES.get(old) == new else "comparison changed"
            yield self._edit_at(start + found.start(), start + found.end(), node, kind, new)

    def _condition(self, test: ast.expr) -> Iterator[Edit]:
        if isinstance(test, ast.Constant):
            return
        if not isinstance(test, ast.Compare) and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            yield self._edit(test, "condition negated", f"(not ({self._text(test)}))")
        if not any(isinstance(each, ast.NamedExpr) for each in ast.walk(test)):
            yield self._edit(test, "condition forced", "True")
            yield self._edit(test, "condition forced", "False")

    def _logic(self, node: ast.BoolOp) -> Edit:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        text = self._text(node.values[0])
        for left, right in zip(node.values, node.values[1:], strict=False):
            between = self._source[self._end(left) : self._start(right)].decode()
            text += re.sub(rf"\b{old}\b", new, between, count=1) + self._text(right)
        return self._edit_between(node.values[0], node.values[-1], "and/or swapped", text)

    def _arithmetic(self, node: ast.AST, left: ast.expr, operator: ast.operator, right: ast.expr) -> Iterator[Edit]:
        if type(operator) not in ARITHMETIC or any(_is_text(each) for each in (left, right)):
            return
        if isinstance(operator, ast.BitOr) and (_is_type(left) or _is_type(right)):
            return
        old, new = ARITHMETIC[type(operator)]
        start, end = self._end(left), self._start(right)
        at = self._source[start:end].find(old.encode())
        if at >= 0:
            yield self._edit_at(start + at, start + at + len(old), node, "arithmetic changed", new)

    def _arguments(self, node: ast.Call) -> Iterator[Edit]:
        if self._text(node.func) in SYMMETRIC:
            return
        for left, right in zip(node.args, node.args[1:], strict=False):
            if isinstance(left, ast.Starred) or isinstance(right, ast.Starred):
                continue
            texts = self._text(left), self._text(right)
            if texts[0] != texts[1]:
                between = self._source[self._end(left) : self._start(right)].decode()
                yield self._edit_between(left, right, "arguments swapped", texts[1] + between + texts[0])

    def _constant(self, node: ast.Constant, kind: str) -> Iterator[Edit]:
        value = node.value
        if isinstance(value, bool):
            yield self._edit(node, f"{kind} changed", str(not value))
        elif isinstance(value, int | float):
            yield self._edit(node, f"{kind} + 1", repr(value + 1))
            if value:
                yield self._edit(node, f"{kind} - 1", f"({value - 1!r})")
        elif isinstance(value, str | bytes) and not _is_said_to_people(value):
            yield self._edit(
                node, f"{kind} changed", repr(value + type(value)(b"X" if isinstance(value, bytes) else "X"))
            )

    def _default(self, node: ast.expr) -> Iterator[Edit]:
        if isinstance(node, ast.Constant):
            yield from self._constant(node, "default")
        else:
            yield from self._walk(node)

    def _early(self, node: Function) -> Iterator[Edit]:
        body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
        is_abstract = not body or self._text(body[0]) in ("...", "pass") or "NotImplementedError" in self._text(body[0])
        if is_abstract or node.name == "__init__" or (len(body) == 1 and isinstance(body[0], ast.Return)):
            return
        first = body[0]
        start = self._start(first.decorator_list[0]) - 1 if _decorated(first) else self._start(first)
        indent = " " * (start - self._source.rfind(b"\n", 0, start) - 1)
        yield self._edit_at(start, start, first, "return early", f"return None\n{indent}")

    def _return(self, node: ast.Return, value: ast.expr) -> Iterator[Edit]:
        if not isinstance(value, ast.Constant):  # a constant has an edit of its own
            yield self._edit(value, "return None", "None")

    def _assignment(self, node: ast.stmt, target: ast.expr) -> Iterator[Edit]:
        in_init = self._functions and getattr(self._functions[-1], "name", "") == "__init__"
        if isinstance(target, ast.Attribute | ast.Subscript) and not in_init:
            yield self._edit(node, "assignment dropped", "pass")

    # --- places ---

    def _start(self, node: ast.AST) -> int:
        return self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]  # statements and expressions have places

    def _end(self, node: ast.AST) -> int:
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]  # statements and expressions have places

    def _text(self, node: ast.AST) -> str:
        return self._source[self._start(node) : self._end(node)].decode()

    def _edit(self, node: ast.AST, kind: str, after: str) -> Edit:
        return self._edit_at(self._start(node), self._end(node), node, kind, after)

    def _edit_between(self, first: ast.AST, last: ast.AST, kind: str, after: str) -> Edit:
        return self._edit_at(self._start(first), self._end(last), first, kind, after)

    def _edit_at(self, start: int, end: int, node: ast.AST, kind: str, after: str) -> Edit:
        line = self._source.count(b"\n", 0, start) + 1
        column = len(self._source[self._starts[line - 1] : start].decode()) + 1
        before = self._source[start:end].decode()
        return Edit(start, end, line, column, kind, before, after, self._line, not self._functions)


def _decorated(node: ast.stmt) -> bool:
    return bool(getattr(node, "decorator_list", ()))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_type(node: ast.expr) -> bool:
    """Whether this expression looks like a type: ``None``, ``Name``, ``a.Name``, ``Name[...]`` or an "or" of them."""
    match node:
        case ast.Constant(value=None):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in ("int", "str", "bytes", "bool", "float") or (name[:1].isupper() and not name.isupper())
        case ast.Subscript(value=value):
            return _is_type(value) or (isinstance(value, ast.Name) and value.id in ("tuple", "dict", "list", "set"))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_type(left) and _is_type(right)
    return False


def _is_said_to_people(value: str | bytes) -> bool:
    """Whether a text is for people. One with a blank inside is a sentence; names, keys and formats have none."""
    return bool(value.strip()) and len(value.split()) > 1
