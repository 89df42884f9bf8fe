# SPDX-License-Identifier: Apache-2.0
"""Lists the rules that no test carries, and fails if one of them is built (``docs/rules.md`` defines all rules).

A test carries a rule by ``@pytest.mark.rule("P3")`` (one mark may have several numbers), and a scenario by a first line
``# rule: P3 MUST6``. An unknown number in a test is an error, because it would prove nothing. Tests may also carry the
known defects of other implementations, D1 to D30, and the invariants I1 to I14 of docs/proof.md. These are not listed
here: mutants prove the defects, and the simulator checks the invariants after every step.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"mark\.rule\(([^)]*)\)")
SCENARIO = re.compile(r"\A# rule: (.+)")
RULE = re.compile(r"^- \*\*([A-Z]+\d+)\b(.*?)(?=^- \*\*|^## |\Z)", re.MULTILINE | re.DOTALL)
INVARIANT = re.compile(r"^- \*\*((?:I\d+(?:, )?)+)\*\*:", re.MULTILINE)
NOT_BUILT = "*(Not built yet.)*"


def defined(root: Path) -> dict[str, str]:
    """Return every rule and known defect of ``docs/rules.md`` by its number, with the page's text about it."""
    return dict(RULE.findall((root / "docs" / "rules.md").read_text(encoding="utf-8")))


def invariants(root: Path) -> set[str]:
    """Return the numbers of the invariants in ``docs/proof.md``."""
    rows = INVARIANT.findall((root / "docs" / "proof.md").read_text(encoding="utf-8"))
    return {number for row in rows for number in row.split(", ")}


def carried(tests: Path) -> dict[str, list[Path]]:
    """Return the files whose tests or scenario carry a rule, by the rule's number."""
    found: dict[str, list[Path]] = {}
    for path in sorted(p for p in tests.rglob("*") if p.suffix in (".py", ".txt", ".scenario") and p.is_file()):
        text = path.read_text(encoding="utf-8", errors="replace")
        numbers = {number for mark in MARK.findall(text) for number in re.findall(r"[\"']([A-Z]+\d+)[\"']", mark)}
        if first := SCENARIO.match(text):
            numbers.update(re.findall(r"[A-Z]+\d+", first[1]))
        for number in sorted(numbers):
            found.setdefault(number, []).append(path)
    return found


def main() -> int:
    rules = defined(ROOT)
    later = [number for number, text in rules.items() if NOT_BUILT in text]
    built = [number for number in rules if number not in later and not number.startswith("D")]
    found = carried(ROOT / "tests")
    missing = [number for number in built if number not in found]
    unknown = sorted(set(found) - set(rules) - invariants(ROOT))
    waiting = [number for number in later if number not in found]
    for number in unknown:
        print(
            f"rule {number} is carried by {found[number][0]} and defined neither in docs/rules.md nor in docs/proof.md"
        )
    if waiting:
        print("not built yet, without a test:", " ".join(waiting))
    if missing:
        print("BUILT AND WITHOUT A TEST:", " ".join(missing))
    print(f"rules: {len(built) - len(missing)} of {len(built)} built rules have a test")
    return 1 if missing or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
