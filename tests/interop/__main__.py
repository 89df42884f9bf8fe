# SPDX-License-Identifier: Apache-2.0
"""``scripts/interop``: what is tried on clusters of both kinds of bookies, in full length."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tests.interop import chaos, matrix


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/interop", description=__doc__)
    commands = parser.add_subparsers(required=True)
    cells = commands.add_parser("matrix", help="every client on every kind of bookie: one line a cell, then a table")
    cells.add_argument("--resume", type=Path, metavar="FILE", help="keep results there; go on with what did not pass")
    cells.add_argument("--only", default="", metavar="TEXT", help="cells whose name has this: java-4.18.0/mixed/v2")
    cells.add_argument("--pairwise", action="store_true", help="the selection that CI runs")
    cells.add_argument("--minutes", type=float, default=90.0, help="end after so long [default: 90]")
    cells.add_argument("--quiet", action="store_true", help="no line for combinations that are no cells")
    cells.set_defaults(run=matrix.run)
    rounds = commands.add_parser("chaos", help="faults on a mixed ensemble, and what became of every entry")
    rounds.add_argument("--rounds", type=int, default=20, help="how many in all, those of the resumed file included")
    rounds.add_argument("--seed", type=int, default=1)
    rounds.add_argument("--secure", action="store_true", help="certificates for all, roles on our bookies")
    rounds.add_argument("--resume", type=Path, metavar="FILE", help="keep the figures there and go on from them")
    rounds.add_argument("--only", type=int, metavar="NUMBER", help="this round alone")
    rounds.add_argument("--minutes", type=float, default=600.0, help="end after so long [default: 600]")
    rounds.set_defaults(run=chaos.run)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up then too
    result = arguments.run(arguments)
    assert isinstance(result, int)
    return result


if __name__ == "__main__":
    sys.exit(main())
