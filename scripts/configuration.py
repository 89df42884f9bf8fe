# SPDX-License-Identifier: Apache-2.0
"""Writes ``docs/configuration.md``, which lists every setting, option and environment variable, from the code that
reads them. With ``--check`` it only fails if that page is stale.

The meaning of a setting is the docstring under its field, or else the sentences of its class's docstring that name it.
A paragraph of the class that begins with ``**Name.**`` makes a chapter of the settings that it names.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"
sys.path.insert(0, str(ROOT))

from bk_cli.main import bk  # noqa: E402 - the checkout must come first on the path
from bk_core.client.config import ClientConfig  # noqa: E402 - as above
from bk_spark.options.options import OPTIONS, OptionDefinition, OptionKind  # noqa: E402 - as above
from bookie_server.config import BookieConfig  # noqa: E402 - as above

COLUMNS = 100
HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Written by scripts/configuration.py from the code that reads the settings; do not edit. -->
# Configuration

Every setting of a bookie and of the client, every option of the Spark data source, and every
environment variable. In brackets: the type, the unit, the default.

"""
BOOKIE = """## A bookie

A bookie reads its settings from a TOML file with these names, `bk bookie run --config FILE`; the
command line overrides the file ([bookie.md](bookie.md#settings)). *Restart* means that a change
takes effect at the next start.

"""
CLIENT = """## The client

These are the fields of `bk_core.client.ClientConfig`. In Spark each is an option `bookkeeper.` and
its name, written like `bookkeeper.addTimeoutMs`. They hold for the life of a client: connect again
to change one, except where a setting says *no restart*.

"""
SPARK = """## Spark

Options of `spark.read`, `spark.readStream` and `df.write`. [spark.md](spark.md#options) lists them
by task, and says in which use each applies. They apply to the query that they are given to.

"""
ENVIRONMENT = """## Environment variables

`bk` reads these; an option on the command line overrides them. No other part of the project reads
the environment, except variables that Spark itself sets in its workers.

"""

OTHER_VARIABLES = {
    "BOOKKEEPER_HOME": "An unpacked distribution of Apache BookKeeper, for `bk local --apache`.",
    "JAVA_HOME": "The folder of Java. Without it, the first `java` on `PATH` that is new enough is used.",
    "PYSPARK_BOOKKEEPER_JARS": "The folder for Apache's jars, instead of a folder of the user's cache.",
    "SPARK_CONF_DIR": "Spark's own variable. `bk doctor --spark` looks for a cluster's settings there.",
    "SPARK_HOME": "Spark's own variable. `bk local` takes ZooKeeper's jars from there.",
    "XDG_CACHE_HOME": "The folder of the user's cache, for what `bk` downloads.",
    "_BK_COMPLETE": "Set by the script of `bk completion`.",
}
NOT_SETTINGS = {"PATH", "PYTHONPATH", "GRPC_ENABLE_FORK_SUPPORT", "PYSPARK_SPARK_SESSION_UUID", "name"}
"""Environment variables that the code reads and that configure nothing here. ``name`` is a variable in the code, which
holds a name that an option gives."""

# The first pattern that fits decides. The last two are for names without a unit in them.
UNITS: tuple[tuple[str, str], ...] = (
    (r"_bytes_per_s$", "bytes a second"),
    (r"_bytes_per_hour$", "bytes an hour"),
    (r"_per_s$", "a second"),
    (r"_bytes(_max)?$", "bytes"),
    (r"_ms$", "milliseconds"),
    (r"_s$", "seconds"),
    (r"(^|_)port$", "TCP port"),
    (r"_(threshold|water|share|ratio)$", "share, 0 to 1"),
)
TYPES = {
    "bool": "true or false",
    "int": "whole number",
    "float": "number",
    "str": "text",
    "Path": "path",
    "tuple[str, ...]": "list of texts",
    "tuple[Path, ...]": "list of paths",
}
KINDS = {
    OptionKind.SECRET: "text, secret",
    OptionKind.COUNT: "whole number",
    OptionKind.BYTES: "size",
    OptionKind.CHOICE: "one word",
}


class UndocumentedError(Exception):
    """A setting whose meaning the code does not say."""


def field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstring under each field of the class."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    (made,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    found = {}
    for node, below in zip(made.body, made.body[1:], strict=False):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            found[node.target.id] = flat(below.value.value)
    return found


def flat(text: str) -> str:
    return " ".join(text.split())


def paragraphs(cls: type) -> list[tuple[str, str]]:
    """Return (chapter, text) of each paragraph of the class's docstring. A chapter goes on until the next one."""
    found, chapter = [], ""
    for paragraph in (inspect.getdoc(cls) or "").split("\n\n"):
        text = flat(paragraph)
        if headed := re.match(r"\*\*([^*]+?)\.?\*\* ?", text):
            chapter, text = headed[1], text[headed.end() :]
        found.append((chapter, text))
    return found


def meaning_of(name: str, own: dict[str, str], of_class: list[tuple[str, str]]) -> str:
    if name in own:
        return own[name]
    sentences = [each for _, text in of_class for each in re.split(r"(?<=\.) (?=[A-Z`*0-9])", text)]
    said = [each for each in sentences if f"``{name}``" in each]
    if not said:
        raise UndocumentedError(f"{name}: write under its field what it means, in a docstring")
    return " ".join(said)


def markdown(text: str) -> str:
    """Return a docstring's text for a page in docs/, with code and links to other pages."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))
    return re.sub(r"docs/([\w-]+\.md)(#[\w-]+)?", r"[\1](\1\2)", text)


def unit_of(name: str) -> str:
    return next((unit for pattern, unit in UNITS if re.search(pattern, name)), "")


def shown(value: Any, unit: str) -> str:
    if value is dataclasses.MISSING:
        return "required"
    if value is None or value == () or value == "":
        return "default none"
    if isinstance(value, bool):
        return f"default {str(value).lower()}"
    if isinstance(value, int) and unit.startswith("bytes") and value and value % (1 << 20) == 0:
        return f"default {value >> 20} MiB"
    return f"default {value:g}" if isinstance(value, float) and value < 1e6 else f"default {value}"


def item(name: str, brackets: Iterable[str], meaning: str) -> str:
    return textwrap.fill(
        f"- **`{name}`** ({'; '.join(filter(None, brackets))}): {meaning}",
        COLUMNS,
        subsequent_indent="  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def settings_of(cls: type, restart: str) -> Iterator[tuple[str, str]]:
    """Yield (chapter, item) of each setting, in the order of the fields. ``restart`` says when a change takes effect,
    unless the setting's meaning says that no restart is needed."""
    own, of_class = field_docstrings(cls), paragraphs(cls)
    chapter = next((name for name, _ in of_class if name), "")
    for field in dataclasses.fields(cls):
        chapter = next((each for each, text in of_class if each and f"``{field.name}``" in text), chapter)
        unit, meaning = unit_of(field.name), meaning_of(field.name, own, of_class)
        kind = str(field.type).replace(" | None", "")
        brackets = [TYPES.get(kind, kind), unit, shown(field.default, unit)]
        brackets.append("no restart" if "without a restart" in meaning else restart)
        yield chapter, item(field.name, brackets, markdown(meaning))


def chapters(cls: type, restart: str = "") -> str:
    """Return the settings below a heading for each chapter, in the order in which the class's docstring has them."""
    sorted_out: dict[str, list[str]] = {name: [] for name, _ in paragraphs(cls) if name}
    for chapter, line in settings_of(cls, restart):
        sorted_out.setdefault(chapter, []).append(line)
    parts = []
    for chapter, lines in sorted_out.items():
        if lines:
            parts.append(f"### {chapter}\n\n" if chapter else "")
            parts.append("\n".join(lines) + "\n\n")
    return "".join(parts)


def spark_meanings() -> dict[str, str]:
    """Return what docs/spark.md says about each option. A test checks that its list is complete."""
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    listed = page[page.index("- **`metadataServiceUri`**") :].partition("\n\n")[0]
    items = (flat(each) for each in listed.removeprefix("- ").split("\n- "))
    return {m[1]: m[2] for each in items if (m := re.match(r"\*\*`([\w.]+)`\*\* \(.*?\): (.*)", each))}


def spark_option(option: OptionDefinition, meanings: dict[str, str]) -> str:
    kind = KINDS.get(option.kind, option.kind.value)
    unit = (
        "such as `128m`"
        if option.kind is OptionKind.BYTES
        else "such as `30s`"
        if option.kind is OptionKind.DURATION
        else ""
    )
    if option.name not in meanings:
        raise UndocumentedError(f"{option.name}: write in docs/spark.md#options what it means")
    choices = " or ".join(f"`{each}`" for each in option.choices)
    default = f"default `{option.default}`" if option.default else "default none"
    return item(option.name, [kind, unit, choices, default], meanings[option.name])


def variables(command: click.Command) -> Iterator[tuple[str, str, str]]:
    """Yield (variable, option, help of the option) of a command and all commands below it."""
    for parameter in command.params:
        names = parameter.envvar if isinstance(parameter.envvar, list | tuple) else [parameter.envvar]
        for name in filter(None, names):
            text = getattr(parameter, "help", "") or ""
            yield name, parameter.opts[0], re.sub(rf" \((or|also) {name}\)", "", text)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from variables(child)


def read_of_environment() -> set[str]:
    """Return the names that the packages look up in the environment themselves."""
    found = set()
    for package in ("bk_core", "bookie_server", "bk_spark", "bk_cli"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            constants = dict(re.findall(r'^(\w+) = "(\w+)"', text, re.MULTILINE))
            looked_up = re.findall(r"""environ(?:\.get|\.pop|\.setdefault)?[\[(]["']?(\w+)""", text)
            looked_up += re.findall(r"""["'](\w+)["'] in (?:os\.)?environ""", text)
            found |= {constants.get(name, name) for name in looked_up}
            found |= set(re.findall(r'"(_BK_COMPLETE)"', text))
    return found


def environment() -> str:
    options: dict[str, tuple[str, str]] = {name: (option, text) for name, option, text in variables(bk)}
    undocumented = read_of_environment() - set(options) - set(OTHER_VARIABLES) - NOT_SETTINGS
    if undocumented:
        raise UndocumentedError(f"{sorted(undocumented)}: say in scripts/configuration.py what they do")
    said = {name: f"As `{option}`: {text}" for name, (option, text) in options.items()} | OTHER_VARIABLES
    lines = []
    for name in sorted(said, key=lambda name: (not name.startswith("BK_"), name.lstrip("_"))):
        lines.append(
            textwrap.fill(
                f"- **`{name}`**: {flat(said[name])}", COLUMNS, subsequent_indent="  ", break_on_hyphens=False
            )
        )
    return "\n".join(lines) + "\n"


def render() -> str:
    meanings = spark_meanings()
    spark = "\n".join(spark_option(each, meanings) for each in OPTIONS) + "\n\n"
    page = HEAD + BOOKIE + chapters(BookieConfig, "restart") + CLIENT + chapters(ClientConfig) + SPARK + spark
    return page + ENVIRONMENT + environment()


def main() -> int:
    try:
        page = render()
    except UndocumentedError as error:
        print(f"configuration: {error}", file=sys.stderr)
        return 1
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
            print(
                "docs/configuration.md is out of date; type: .venv/bin/python scripts/configuration.py", file=sys.stderr
            )
            return 1
        print("docs/configuration.md is up to date")
        return 0
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
