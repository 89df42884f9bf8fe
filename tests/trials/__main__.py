# SPDX-License-Identifier: Apache-2.0
"""The commands ``scripts/trial NAME``, which runs real processes under faults, and ``scripts/prove NAME``, which
searches.

``scripts/trial`` without a name is ``scripts/trial bookie``.
"""

from __future__ import annotations

import sys
from importlib import import_module

from tests.trials import harness

TRIALS = {
    "bookie": "tests.trials.bookie.trial:BookieTrial",
    "storage": "tests.trials.storage.trial:StorageTrial",
    "heal": "tests.trials.heal.trial:HealTrial",
    "spark": "tests.trials.spark.trial:SparkTrial",
    "topics": "tests.trials.topics.trial:TopicsTrial",
    "zookeeper": "tests.trials.zookeeper.trial:ZooKeeperTrial",
    "interop chaos": "tests.interop.chaos:ChaosTrial",
    "interop matrix": "tests.interop.matrix:MatrixTrial",
    "interop tools": "tests.interop.tools:main",
    "interop distributedlog": "tests.interop.distributedlog:main",
    "interop pulsar": "tests.interop.pulsar:main",
}
PROOFS = {
    "corrupt": "tests.sim.corruption_proof:CorruptProof",
    "fuzz": "tests.wire.bookie_rpc.fuzz_proof:FuzzProof",
    "differ": "tests.interop.differ:DifferProof",
}


def main(words: list[str]) -> int:
    """Run the command. ``words`` are "trial" or "prove", the name, and its options. Return the exit code."""
    kind, *words = words
    named = TRIALS if kind == "trial" else PROOFS
    if kind == "trial" and words[:1] != ["--help"] and (not words or words[0].startswith("-")):
        words = ["bookie", *words]
    size = 2 if words[:1] == ["interop"] else 1
    target = named.get(" ".join(words[:size]))
    if target is None:
        print(f"scripts/{kind} NAME [--help]; NAME is one of: {', '.join(named)}", file=sys.stderr)
        return 2
    module, _, member = target.partition(":")
    found = getattr(import_module(module), member)
    if isinstance(found, type) and issubclass(found, harness.Trial):
        return harness.run(f"scripts/{kind}", found, words[size:])
    code = found(words[size:])
    assert isinstance(code, int)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
