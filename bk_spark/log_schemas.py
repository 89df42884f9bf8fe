# SPDX-License-Identifier: Apache-2.0
"""Looks up the schemas of the logs that a read selects, for a codec whose columns stand in the log (RULES K8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bk_spark import clients, codecs, resolve
from bk_spark.options import BkOptions
from bk_spark.selection import LogSource

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper


def log_schemas(options: BkOptions) -> codecs.LogSchemas:
    """The schemas of each log, as they are now; nothing for codecs that need none, and then without I/O.

    Raises NoSuchLogError, WrongPasswordError, MetadataUnavailableError.
    """
    if not codecs.needs_schemas(options):
        return {}
    return clients.patiently(options, lambda bookkeeper: _schemas(bookkeeper, options))


def _schemas(bookkeeper: BookKeeper, options: BkOptions) -> codecs.LogSchemas:
    logs = [
        source.name for source in resolve.sources_of(bookkeeper, options.selection) if isinstance(source, LogSource)
    ]
    return {name: bookkeeper.log(name, password=options.ledger_password).schemas() for name in logs}
