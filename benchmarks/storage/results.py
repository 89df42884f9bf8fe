# SPDX-License-Identifier: Apache-2.0
"""The file and the page that keep what was measured: ``docs/results/0.1.0-storage.json`` and ``.md``."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from pathlib import Path

from benchmarks.storage.figures import Kept, StorageFigure, merged, page
from benchmarks.storage.machine import describe


def keep(stem: Path, figures: Iterable[StorageFigure], measured_in: Path) -> None:
    """Put these figures into ``<stem>.json``, in the place of older ones of the same names, and write ``<stem>.md``."""
    path = stem.with_name(stem.name + ".json")
    kept: Kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    kept = merged(kept, figures, describe(measured_in), today)
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(page(kept), encoding="utf-8")
