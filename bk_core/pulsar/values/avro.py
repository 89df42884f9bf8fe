# SPDX-License-Identifier: Apache-2.0
"""Decodes values of AVRO schemas, each with the version of the schema that it was written with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as made_by

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import I64
from bk_core.pulsar.messages.rows import TooManyValuesError
from bk_core.pulsar.values.avro_rows import Datums
from bk_core.pulsar.values.avro_schema import Node, arrow_type
from bk_core.pulsar.values.avro_values import Convert, UnresolvableError, has_limits, record_fields, resolver
from bk_core.pulsar.values.decoded import Column
from bk_core.pulsar.values.part import NO_VERSION, VALUE, Part, Places, complain


@dataclass(slots=True)
class AvroReader:
    """Decodes AVRO values into the columns of ``reader``. ``writers`` has the schemas of the known versions, or the
    reason why values of a version cannot be decoded. A value without a version is read as one of ``reader``, as by
    Pulsar's clients."""

    reader: Node
    writers: Mapping[int, Node | str]
    _converts: dict[int, dict[str, Convert] | str] = made_by(default_factory=dict, init=False)

    def __reduce__(self) -> tuple[object, ...]:
        return AvroReader, (self.reader, self.writers)

    @property
    def is_record(self) -> bool:
        return self.reader.kind == "record"

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        if self.is_record:
            return {each.name: arrow_type(each.node) for each in self.reader.fields}
        return {VALUE: arrow_type(self.reader)}

    def read(self, places: Places, wanted: frozenset[str]) -> Part:
        problems, pieces, order = dict[int, str](), list[Mapping[str, pa.Array]](), list[I64]()
        for version in np.unique(places.version).tolist():
            at = np.flatnonzero(places.version == version)
            converts = self._of_version(version)
            if isinstance(converts, str):
                complain(problems, places.version == version, converts)
                continue
            whole = places if at.size == len(places) else places.take(at)
            try:
                pieces.append(self._of_one(version, converts, whole, at, wanted, problems))
            except TooManyValuesError as error:
                if at.size > 1:
                    raise
                complain(problems, places.version == version, str(error))
                continue
            order.append(at)
        return Part(_placed(self.columns, wanted, pieces, order, len(places)), problems)

    def _of_version(self, version: int) -> dict[str, Convert] | str:
        """Return the conversions of a version's columns, or why there are none."""
        if version not in self._converts:
            writer = self._writer(version)
            try:
                self._converts[version] = writer if isinstance(writer, str) else self._resolved(writer)
            except UnresolvableError as error:
                self._converts[version] = f"its schema version {version} does not resolve to the newest: {error}"
        return self._converts[version]

    def _resolved(self, writer: Node) -> dict[str, Convert]:
        if not self.is_record:
            return {VALUE: resolver(writer, self.reader)}
        if writer.kind != "record":
            raise UnresolvableError(f"a {writer.kind} is not a record")
        return record_fields(writer, self.reader)

    def _writer(self, version: int) -> Node | str:
        if version == NO_VERSION:
            return self.reader
        return self.writers.get(version, f"its schema version {version} is not known")

    def _of_one(
        self,
        version: int,
        converts: Mapping[str, Convert],
        places: Places,
        at: I64,
        wanted: frozenset[str],
        problems: dict[int, str],
    ) -> Mapping[str, pa.Array]:
        datums, writer = Datums(places.data), self._writer(version)
        assert isinstance(writer, Node)
        found: Column = datums.read(writer, places.begin, places.begin + places.length)
        for place, why in datums.problems.items():
            problems[int(at[place])] = why
        made = dict[str, pa.Array]()
        for name, convert in converts.items():
            if name not in wanted and not self._may_fail(writer, name):
                continue
            made[name], wrong = convert(found, places.data)
            if wrong is not None:
                whole = np.zeros(at.max() + 1, dtype=np.bool_)
                whole[at[wrong]] = True
                complain(problems, whole, f"its {name} has no value in the newest schema")
        return made

    def _may_fail(self, writer: Node, name: str) -> bool:
        """Return whether a conversion may fail for some values. It must then be made even if nobody wants the column,
        because which values are bad must not depend on the columns."""
        field = next((each for each in self.reader.fields if each.name == name), None)
        return field is None or field not in writer.fields or has_limits(field.node)


def _placed(
    columns: Mapping[str, pa.DataType],
    wanted: frozenset[str],
    pieces: list[Mapping[str, pa.Array]],
    order: list[I64],
    count: int,
) -> dict[str, pa.Array]:
    """Return the wanted columns with each piece's values at their places, and null elsewhere."""
    names = [name for name in columns if name in wanted]
    if len(pieces) == 1 and order[0].size == count:
        return {name: pieces[0][name] for name in names}
    index = np.full(count, -1, dtype=np.int64)
    if order:
        places = np.concatenate(order)
        index[places] = np.arange(places.size)
    made = dict[str, pa.Array]()
    for name in names:
        whole = pa.concat_arrays([pa.nulls(1, columns[name]), *(each[name] for each in pieces)])
        made[name] = whole.take(pa.array(index + 1))
    return made
