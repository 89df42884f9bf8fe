# SPDX-License-Identifier: Apache-2.0
"""The rows that a caller asks a topic for: which columns, and what becomes of values and of bad entries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from bk_core.errors import InvalidArgumentError
from bk_core.pulsar.messages.decoder import DecodeOptions, OnCorrupt, OnEncrypted
from bk_core.pulsar.messages.encryption import Decryptor
from bk_core.pulsar.messages.rows import schema_of
from bk_core.pulsar.model.schemas import TopicSchemas
from bk_core.pulsar.reading import Isolation, ReadOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

SchemaChoice: TypeAlias = "Literal['bytes', 'latest'] | int"
"""The form of values: bytes, or columns of the newest version of the topic's schema, or of the version with a
number."""
BYTES, LATEST = "bytes", "latest"


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
        check_choice(topic_schema)
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

    @property
    def version(self) -> int | None:
        """The number of the wanted version of the schema, or None for the newest."""
        return self.topic_schema if isinstance(self.topic_schema, int) else None

    def with_schema(self, schemas: TopicSchemas, newer: Callable[[], Awaitable[TopicSchemas]]) -> ReadOptions:
        """Return the options of a read whose values become columns. ``newer`` returns the schemas with the versions
        that were added since. Raises UnsupportedTopicError for a schema that cannot become columns, and
        InvalidArgumentError for unknown columns."""
        from bk_core.pulsar.values.topic_values import TopicValues

        async def read_again() -> TopicValues:
            return TopicValues(await newer())

        values = TopicValues(schemas)
        return replace(self.options, schema=schema_of(self.columns, values.columns), values=values, newer=read_again)


def check_choice(topic_schema: object) -> None:
    """Raises InvalidArgumentError unless this is ``bytes``, ``latest`` or the number of a version."""
    is_number = isinstance(topic_schema, int) and not isinstance(topic_schema, bool) and topic_schema >= 0
    if topic_schema not in (BYTES, LATEST) and not is_number:
        raise InvalidArgumentError(
            "there is no such topic_schema",
            value=f"topic_schema={topic_schema!r}",
            remedy="choose bytes, latest, or the number of a version of the topic's schema",
        )
