# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of a read that choose its columns, and say what to do with values and with bad entries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bk_core.errors import InvalidArgumentError
from bk_core.pulsar.messages.decoder import DecodeOptions, OnCorrupt, OnEncrypted
from bk_core.pulsar.messages.encryption import Decryptor
from bk_core.pulsar.messages.rows import schema_of
from bk_core.pulsar.model.schemas import BYTES, SchemaChoice, TopicSchemas, version_of
from bk_core.pulsar.reading import Isolation, ReadOptions

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class GivenRows:
    """The rows of a read. ``options`` are complete if values stay bytes; otherwise :meth:`with_schema` completes
    them."""

    columns: Sequence[str] | None
    topic_schema: SchemaChoice
    options: ReadOptions

    @classmethod
    def of(
        cls,
        columns: Sequence[str] | None,
        isolation: Isolation,
        corrupt: OnCorrupt,
        encrypted: OnEncrypted,
        topic_schema: SchemaChoice,
        private_keys: Mapping[str, bytes] | None,
    ) -> GivenRows:
        """Check the arguments. Raises InvalidArgumentError."""
        version_of(topic_schema)
        decryptor = None if private_keys is None else Decryptor(private_keys)
        decode = DecodeOptions(corrupt=corrupt, encrypted=encrypted, decryptor=decryptor)
        as_bytes = topic_schema == BYTES
        if encrypted == "raw" and not as_bytes:
            raise InvalidArgumentError(
                "encrypted messages are returned raw only with values as bytes",
                value=f"topic_schema={topic_schema!r}",
                remedy="leave one of the two out",
            )
        return cls(columns, topic_schema, ReadOptions(schema_of(columns if as_bytes else None), decode, isolation))

    def with_schema(self, schemas: TopicSchemas, newer: Callable[[], Awaitable[TopicSchemas]]) -> ReadOptions:
        """Return the options of a read whose values become columns. ``newer`` returns the schemas with the versions
        that were added since. Raises UnsupportedTopicError for a schema that cannot become columns, and
        InvalidArgumentError for unknown columns."""
        from bk_core.pulsar.values.topic_values import TopicValues

        async def read_again() -> TopicValues:
            return TopicValues(await newer())

        values = TopicValues(schemas)
        return replace(self.options, schema=schema_of(self.columns, values.columns), values=values, newer=read_again)
