# SPDX-License-Identifier: Apache-2.0
"""Lists the rules that no test carries, and fails when one of them is built (``tests/rules.toml``).

A test carries a rule by ``@pytest.mark.rule("P3")`` (several numbers may stand in one mark), a scenario by a first line
``# rule: P3 MUST6``. An unknown number in a test is an error: it would prove nothing. The known defects of other
implementations, D1 to D30, and the invariants I1 to I14 of docs/proof.md may be carried too; they are proven by mutants
and checked after every step, and not listed here.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
MARK = re.compile(r"mark\.rule\(([^)]*)\)")
SCENARIO = re.compile(r"\A# rule: (.+)")
DEFECTS = frozenset(f"D{number}" for number in range(1, 31))
INVARIANTS = frozenset(f"I{number}" for number in range(1, 15))


def carried(tests: Path) -> dict[str, list[Path]]:
    """Rule number → the files whose tests or scenario carry it."""
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
    rules = tomllib.loads((TESTS / "rules.toml").read_text(encoding="utf-8"))
    built, later = rules["built"], rules["later"]
    found = carried(TESTS)
    missing = [number for number in built if number not in found]
    unknown = sorted(set(found) - set(built) - set(later) - DEFECTS - INVARIANTS)
    waiting = [number for number in later if number not in found]
    for number in unknown:
        print(f"rule {number} is carried by {found[number][0]} and listed nowhere in tests/rules.toml")
    if waiting:
        print("not built yet, without a test:", " ".join(waiting))
    if missing:
        print("BUILT AND WITHOUT A TEST:", " ".join(missing))
    print(f"rules: {len(built) - len(missing)} of {len(built)} built rules have a test")
    return 1 if missing or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
