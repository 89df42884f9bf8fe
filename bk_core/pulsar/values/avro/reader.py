# SPDX-License-Identifier: Apache-2.0
"""Decodes values of AVRO schemas. Each value is decoded with the version of the schema with which it was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as made_by

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import I64
from bk_core.pulsar.messages.rows import VALUE, TooManyValuesError
from bk_core.pulsar.values.avro.rows import Datums
from bk_core.pulsar.values.avro.schema import Node, columns_of
from bk_core.pulsar.values.avro.values import Convert, UnresolvableError, has_limits, record_fields, resolver
from bk_core.pulsar.values.decoded import Column
from bk_core.pulsar.values.part import NO_VERSION, Part, Places, complain, spread


@dataclass(frozen=True, slots=True)
class _Resolved:
    """A version of the schema whose values can be decoded. ``converts`` has the functions that make the columns.
    ``may_fail`` has the columns that cannot be made for some values. They are made even if the caller does not want
    them, so that the same values are bad for every choice of columns."""

    writer: Node
    converts: Mapping[str, Convert]
    may_fail: frozenset[str]


@dataclass(slots=True)
class AvroReader:
    """Decodes AVRO values into the columns of the schema ``reader``. ``writers`` has, by version, the schema, or the
    reason why values of that version cannot be decoded. A value without a version is decoded with ``reader``, as by
    Pulsar's clients."""

    reader: Node
    writers: Mapping[int, Node | str]
    _versions: dict[int, _Resolved | str] = made_by(default_factory=dict, init=False)

    @property
    def is_record(self) -> bool:
        return self.reader.kind == "record"

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        return columns_of(self.reader)

    def read(self, places: Places, wanted: frozenset[str]) -> Part:
        problems, pieces, order = dict[int, str](), list[Mapping[str, pa.Array]](), list[I64]()
        for version in np.unique(places.version).tolist():
            here = places.version == version
            at = np.flatnonzero(here)
            try:
                made, wrong = self._of_one(version, places if at.size == len(places) else places.take(at), wanted)
            except UnresolvableError as error:
                complain(problems, here, str(error))
                continue
            except TooManyValuesError as error:
                if at.size > 1:
                    raise
                complain(problems, here, str(error))
                continue
            problems.update((int(at[place]), why) for place, why in wrong.items())
            pieces.append(made)
            order.append(at)
        return Part(_placed(self.columns, wanted, pieces, order, len(places)), problems)

    def _of_one(
        self, version: int, places: Places, wanted: frozenset[str]
    ) -> tuple[Mapping[str, pa.Array], dict[int, str]]:
        """Return the columns of values that have the same version, and the reasons for values that cannot be decoded.
        Raises UnresolvableError if no value of this version can be decoded."""
        resolved = self._of_version(version)
        datums = Datums(places.data)
        found: Column = datums.read(resolved.writer, places.begin, places.begin + places.length)
        made, problems = dict[str, pa.Array](), datums.problems
        for name, convert in resolved.converts.items():
            if name in wanted or name in resolved.may_fail:
                made[name], wrong = convert(found, places.data)
                if wrong is not None:
                    complain(problems, wrong, f"its {name} has no value in the newest schema")
        return made, problems

    def _of_version(self, version: int) -> _Resolved:
        """Return a version of the schema, from the cache if it was resolved before. Raises UnresolvableError if no
        value of this version can be decoded."""
        if version not in self._versions:
            try:
                self._versions[version] = self._resolved(version)
            except UnresolvableError as error:
                self._versions[version] = str(error)
        found = self._versions[version]
        if isinstance(found, str):
            raise UnresolvableError(found)
        return found

    def _resolved(self, version: int) -> _Resolved:
        writer = self.writers.get(version, f"its schema version {version} is not known")
        if version == NO_VERSION:
            writer = self.reader
        if isinstance(writer, str):
            raise UnresolvableError(writer)
        try:
            if not self.is_record:
                return _Resolved(writer, {VALUE: resolver(writer, self.reader)}, frozenset({VALUE}))
            if writer.kind != "record":
                raise UnresolvableError(f"a {writer.kind} is not a record")
            converts = record_fields(writer, self.reader)
        except UnresolvableError as error:
            raise UnresolvableError(f"its schema version {version} does not resolve to the newest: {error}") from error
        same = {each.name: each for each in writer.fields}
        fields = (each for each in self.reader.fields if same.get(each.name) != each or has_limits(each.node))
        return _Resolved(writer, converts, frozenset(each.name for each in fields))


def _placed(
    columns: Mapping[str, pa.DataType],
    wanted: frozenset[str],
    pieces: list[Mapping[str, pa.Array]],
    order: list[I64],
    count: int,
) -> dict[str, pa.Array]:
    """Return the wanted columns, joined from ``pieces``. ``order`` has, for each piece, the indices of its values.
    Other values are null."""
    names = [name for name in columns if name in wanted]
    places = np.concatenate([np.zeros(0, dtype=np.int64), *order])
    return {
        name: spread(pa.concat_arrays([pa.nulls(0, columns[name]), *(each[name] for each in pieces)]), places, count)
        for name in names
    }
