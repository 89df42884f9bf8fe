# SPDX-License-Identifier: Apache-2.0
"""A bookie process for the trial of storage: small segments, impatient upkeep, and disks that lose what is not synced.

Only for tests: the product has no such switches. It is the production's bookie over another file layer.
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

from bookie_server import main
from bookie_server.config import BookieConfig
from bookie_server.opening import open_storage
from tests.trials.power import PowerLossFiles

BOOKIE_ID = "b1"
SEGMENT_BYTES = 1 << 20
_IMPATIENT: dict[str, Any] = {
    "gc_grace_s": 0.15,
    "checkpoint_interval_s": 0.3,
    "compaction_interval_s": 0.1,
    "compaction_threshold": 0.7,
    "segments_kept_free": 2,
}
"""Settings that make rare things happen often; those that the bookie does not have are left out."""


def run(data: str, uri: str, power_seed: int | None = None) -> int:
    """Serve until the end; prints ``ready`` as a bookie does. With ``power_seed`` what is not synced is lost."""
    files = None if power_seed is None else PowerLossFiles(data, power_seed)
    main.open_storage = partial(open_storage, files=files, segment_size_bytes=SEGMENT_BYTES)  # type: ignore[assignment]
    known = {field.name for field in fields(BookieConfig)}
    settings = {name: value for name, value in _IMPATIENT.items() if name in known}
    config = BookieConfig(
        data_dir=data,  # type: ignore[arg-type]
        metadata_service_uri=uri,
        port=0,
        bookie_id=BOOKIE_ID,
        listen_address="127.0.0.1",
        advertised_address="127.0.0.1",
        allow_loopback=True,
        **settings,
    )
    return main.run(config)
