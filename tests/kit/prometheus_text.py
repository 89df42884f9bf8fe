# SPDX-License-Identifier: Apache-2.0
"""A strict reader of Prometheus' text format, version 0.0.4. It refuses everything that a Prometheus server refuses."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_COMMENT = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.+)")

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    kind: str
    help: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, **labels: str) -> float:
        """Return the value of the only sample that has these labels."""
        (found,) = [value for (_, known), value in self.samples.items() if labels.items() <= dict(known).items()]
        return found


def parse(text: str) -> dict[str, Family]:
    """Return the families by name. Raises AssertionError, which names the fault."""
    assert text.endswith("\n"), "the last line has no newline"
    families: dict[str, Family] = {}
    helps: dict[str, str] = {}
    name = ""
    for line in text[:-1].split("\n"):
        if line.startswith("#"):
            comment = _COMMENT.fullmatch(line)
            assert comment is not None, line
            name = comment[2]
            if comment[1] == "HELP":
                assert name not in helps, f"{name} has two HELP lines"
                helps[name] = comment[3]
            else:
                assert comment[3] in ("counter", "gauge", "histogram"), line
                families[name] = Family(comment[3], helps[name])
        else:
            _take(families[name], name, line)
    for name, family in families.items():
        assert family.samples, f"{name} has no sample"
        if family.kind == "histogram":
            _check_histogram(name, family)
    return families


def _take(family: Family, name: str, line: str) -> None:
    sample = _SAMPLE.fullmatch(line)
    assert sample is not None, line
    endings = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    assert sample[1] in [name + ending for ending in endings], f"{name} has a sample named {sample[1]}"
    shown = sample[2] or ""
    labels = tuple((label[1], label[2]) for label in _LABEL.finditer(shown))
    assert ",".join(f'{label}="{text}"' for label, text in labels) == shown, line
    key = sample[1], labels
    assert key not in family.samples, f"two samples have the key of {line}"
    value = float(sample[3])
    assert family.kind == "gauge" or value >= 0, line
    family.samples[key] = value


def _check_histogram(name: str, family: Family) -> None:
    rows: dict[Labels, list[tuple[float, float]]] = {}
    for (sample, labels), value in family.samples.items():
        if sample.endswith("_bucket"):
            others = tuple(pair for pair in labels if pair[0] != "le")
            rows.setdefault(others, []).append((float(dict(labels)["le"]), value))
    for labels, buckets in rows.items():
        assert buckets == sorted(buckets), f"{name}: bounds must ascend"
        assert [count for _, count in buckets] == sorted(count for _, count in buckets), f"{name} is not cumulative"
        assert buckets[-1] == (math.inf, family.samples[f"{name}_count", labels])
        assert (f"{name}_sum", labels) in family.samples
