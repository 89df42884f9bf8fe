# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Fragment(_message.Message):
    __slots__ = ("first_entry_id", "bookies")
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    BOOKIES_FIELD_NUMBER: _ClassVar[int]
    first_entry_id: int
    bookies: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, first_entry_id: _Optional[int] = ..., bookies: _Optional[_Iterable[int]] = ...) -> None: ...

class Extent(_message.Message):
    __slots__ = ("ledger_id", "first_entry_id", "entry_count", "bytes", "base_offset", "created_ms", "codec", "schema_number", "fragments", "ensemble_size", "write_quorum_size", "ack_quorum_size", "open")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUORUM_SIZE_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_SIZE_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    first_entry_id: int
    entry_count: int
    bytes: int
    base_offset: int
    created_ms: int
    codec: str
    schema_number: int
    fragments: _containers.RepeatedCompositeFieldContainer[Fragment]
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    open: bool
    def __init__(self, ledger_id: _Optional[int] = ..., first_entry_id: _Optional[int] = ..., entry_count: _Optional[int] = ..., bytes: _Optional[int] = ..., base_offset: _Optional[int] = ..., created_ms: _Optional[int] = ..., codec: _Optional[str] = ..., schema_number: _Optional[int] = ..., fragments: _Optional[_Iterable[_Union[Fragment, _Mapping]]] = ..., ensemble_size: _Optional[int] = ..., write_quorum_size: _Optional[int] = ..., ack_quorum_size: _Optional[int] = ..., open: bool = ...) -> None: ...

class PageRef(_message.Message):
    __slots__ = ("name", "base_offset", "next_offset", "extents", "bytes", "level")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    base_offset: int
    next_offset: int
    extents: int
    bytes: int
    level: int
    def __init__(self, name: _Optional[str] = ..., base_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., extents: _Optional[int] = ..., bytes: _Optional[int] = ..., level: _Optional[int] = ...) -> None: ...

class Published(_message.Message):
    __slots__ = ("publish_id", "base_offset", "rows", "time_ms")
    PUBLISH_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    publish_id: bytes
    base_offset: int
    rows: int
    time_ms: int
    def __init__(self, publish_id: _Optional[bytes] = ..., base_offset: _Optional[int] = ..., rows: _Optional[int] = ..., time_ms: _Optional[int] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("number", "page")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    number: int
    page: str
    def __init__(self, number: _Optional[int] = ..., page: _Optional[str] = ...) -> None: ...

class LogHead(_message.Message):
    __slots__ = ("uuid", "epoch", "created_ms", "digest_type", "ledger_key", "start_offset", "next_offset", "pages", "tail", "bookies", "published", "condemned", "schemas", "retention_ms", "retention_bytes")
    UUID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_TYPE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_KEY_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    BOOKIES_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    CONDEMNED_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    epoch: int
    created_ms: int
    digest_type: int
    ledger_key: bytes
    start_offset: int
    next_offset: int
    pages: _containers.RepeatedCompositeFieldContainer[PageRef]
    tail: _containers.RepeatedCompositeFieldContainer[Extent]
    bookies: _containers.RepeatedScalarFieldContainer[str]
    published: _containers.RepeatedCompositeFieldContainer[Published]
    condemned: _containers.RepeatedScalarFieldContainer[int]
    schemas: _containers.RepeatedCompositeFieldContainer[Schema]
    retention_ms: int
    retention_bytes: int
    def __init__(self, uuid: _Optional[bytes] = ..., epoch: _Optional[int] = ..., created_ms: _Optional[int] = ..., digest_type: _Optional[int] = ..., ledger_key: _Optional[bytes] = ..., start_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., pages: _Optional[_Iterable[_Union[PageRef, _Mapping]]] = ..., tail: _Optional[_Iterable[_Union[Extent, _Mapping]]] = ..., bookies: _Optional[_Iterable[str]] = ..., published: _Optional[_Iterable[_Union[Published, _Mapping]]] = ..., condemned: _Optional[_Iterable[int]] = ..., schemas: _Optional[_Iterable[_Union[Schema, _Mapping]]] = ..., retention_ms: _Optional[int] = ..., retention_bytes: _Optional[int] = ...) -> None: ...

class LogPage(_message.Message):
    __slots__ = ("extents", "bookies", "pages", "schema")
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    BOOKIES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    extents: _containers.RepeatedCompositeFieldContainer[Extent]
    bookies: _containers.RepeatedScalarFieldContainer[str]
    pages: _containers.RepeatedCompositeFieldContainer[PageRef]
    schema: bytes
    def __init__(self, extents: _Optional[_Iterable[_Union[Extent, _Mapping]]] = ..., bookies: _Optional[_Iterable[str]] = ..., pages: _Optional[_Iterable[_Union[PageRef, _Mapping]]] = ..., schema: _Optional[bytes] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("version", "publish_id", "rows", "time_ms", "plan")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    version: int
    publish_id: bytes
    rows: int
    time_ms: int
    plan: bytes
    def __init__(self, version: _Optional[int] = ..., publish_id: _Optional[bytes] = ..., rows: _Optional[int] = ..., time_ms: _Optional[int] = ..., plan: _Optional[bytes] = ...) -> None: ...

class LogTransactions(_message.Message):
    __slots__ = ("app_id", "versions", "last_used_ms")
    APP_ID_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_MS_FIELD_NUMBER: _ClassVar[int]
    app_id: str
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    last_used_ms: int
    def __init__(self, app_id: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ..., last_used_ms: _Optional[int] = ...) -> None: ...

class LogUnlinked(_message.Message):
    __slots__ = ("pages", "names", "ledgers")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    pages: _containers.RepeatedCompositeFieldContainer[PageRef]
    names: _containers.RepeatedScalarFieldContainer[str]
    ledgers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pages: _Optional[_Iterable[_Union[PageRef, _Mapping]]] = ..., names: _Optional[_Iterable[str]] = ..., ledgers: _Optional[_Iterable[int]] = ...) -> None: ...
