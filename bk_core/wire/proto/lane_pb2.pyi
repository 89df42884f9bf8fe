# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_NONE: _ClassVar[Reason]
    FENCED: _ClassVar[Reason]
    UNAUTHORIZED: _ClassVar[Reason]
    READ_ONLY: _ClassVar[Reason]
    NO_SPACE: _ClassVar[Reason]
    OVERLOADED: _ClassVar[Reason]
    INTEGRITY: _ClassVar[Reason]
    BAD_REQUEST: _ClassVar[Reason]
    TOO_LARGE: _ClassVar[Reason]
    LIMBO: _ClassVar[Reason]
    DAMAGED: _ClassVar[Reason]
    IO_ERROR: _ClassVar[Reason]
    STORAGE_FAILED: _ClassVar[Reason]
    WRONG_CLUSTER: _ClassVar[Reason]
    WRONG_BOOKIE: _ClassVar[Reason]
    WRONG_INCARNATION: _ClassVar[Reason]
    UNSUPPORTED_VERSION: _ClassVar[Reason]
    UNAUTHENTICATED: _ClassVar[Reason]
    UNIMPLEMENTED: _ClassVar[Reason]
    DELETED: _ClassVar[Reason]
    SHUTTING_DOWN: _ClassVar[Reason]
    NOT_ATTACHED: _ClassVar[Reason]
    COPY_DROPPED: _ClassVar[Reason]
    TIMEOUT: _ClassVar[Reason]
    PERMISSION_DENIED: _ClassVar[Reason]
    GRANT_NEEDED: _ClassVar[Reason]

class AttachMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WRITE: _ClassVar[AttachMode]
    RECOVER: _ClassVar[AttachMode]
REASON_NONE: Reason
FENCED: Reason
UNAUTHORIZED: Reason
READ_ONLY: Reason
NO_SPACE: Reason
OVERLOADED: Reason
INTEGRITY: Reason
BAD_REQUEST: Reason
TOO_LARGE: Reason
LIMBO: Reason
DAMAGED: Reason
IO_ERROR: Reason
STORAGE_FAILED: Reason
WRONG_CLUSTER: Reason
WRONG_BOOKIE: Reason
WRONG_INCARNATION: Reason
UNSUPPORTED_VERSION: Reason
UNAUTHENTICATED: Reason
UNIMPLEMENTED: Reason
DELETED: Reason
SHUTTING_DOWN: Reason
NOT_ATTACHED: Reason
COPY_DROPPED: Reason
TIMEOUT: Reason
PERMISSION_DENIED: Reason
GRANT_NEEDED: Reason
WRITE: AttachMode
RECOVER: AttachMode

class Hello(_message.Message):
    __slots__ = ("version_min", "version_max", "instance_id", "bookie_id", "incarnation", "frame_bytes_max", "client", "token", "mechanism", "grants")
    VERSION_MIN_FIELD_NUMBER: _ClassVar[int]
    VERSION_MAX_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    version_min: int
    version_max: int
    instance_id: str
    bookie_id: str
    incarnation: str
    frame_bytes_max: int
    client: str
    token: bytes
    mechanism: str
    grants: bool
    def __init__(self, version_min: _Optional[int] = ..., version_max: _Optional[int] = ..., instance_id: _Optional[str] = ..., bookie_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., frame_bytes_max: _Optional[int] = ..., client: _Optional[str] = ..., token: _Optional[bytes] = ..., mechanism: _Optional[str] = ..., grants: bool = ...) -> None: ...

class HelloAnswer(_message.Message):
    __slots__ = ("reason", "message", "version", "instance_id", "bookie_id", "incarnation", "frame_bytes_max", "entry_bytes_max", "in_flight_bytes_max", "read_only", "token", "server", "parts", "secure")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    ENTRY_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SECURE_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    message: str
    version: int
    instance_id: str
    bookie_id: str
    incarnation: str
    frame_bytes_max: int
    entry_bytes_max: int
    in_flight_bytes_max: int
    read_only: bool
    token: bytes
    server: str
    parts: bool
    secure: bool
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., message: _Optional[str] = ..., version: _Optional[int] = ..., instance_id: _Optional[str] = ..., bookie_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., frame_bytes_max: _Optional[int] = ..., entry_bytes_max: _Optional[int] = ..., in_flight_bytes_max: _Optional[int] = ..., read_only: bool = ..., token: _Optional[bytes] = ..., server: _Optional[str] = ..., parts: bool = ..., secure: bool = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("session", "ledger_id", "ledger_key", "mode", "explicit_ids")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_KEY_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    EXPLICIT_IDS_FIELD_NUMBER: _ClassVar[int]
    session: int
    ledger_id: int
    ledger_key: bytes
    mode: AttachMode
    explicit_ids: bool
    def __init__(self, session: _Optional[int] = ..., ledger_id: _Optional[int] = ..., ledger_key: _Optional[bytes] = ..., mode: _Optional[_Union[AttachMode, str]] = ..., explicit_ids: bool = ...) -> None: ...

class AddRequest(_message.Message):
    __slots__ = ("frames", "hello", "attach", "detach", "traceparent", "grants")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    DETACH_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    frames: bytes
    hello: Hello
    attach: _containers.RepeatedCompositeFieldContainer[Attach]
    detach: _containers.RepeatedScalarFieldContainer[int]
    traceparent: str
    grants: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, frames: _Optional[bytes] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., attach: _Optional[_Iterable[_Union[Attach, _Mapping]]] = ..., detach: _Optional[_Iterable[int]] = ..., traceparent: _Optional[str] = ..., grants: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SessionEnded(_message.Message):
    __slots__ = ("session", "frames", "reason", "message")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    session: int
    frames: int
    reason: Reason
    message: str
    def __init__(self, session: _Optional[int] = ..., frames: _Optional[int] = ..., reason: _Optional[_Union[Reason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class RangeAck(_message.Message):
    __slots__ = ("session", "first_entry_id", "last_entry_id")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    session: int
    first_entry_id: int
    last_entry_id: int
    def __init__(self, session: _Optional[int] = ..., first_entry_id: _Optional[int] = ..., last_entry_id: _Optional[int] = ...) -> None: ...

class AddResponse(_message.Message):
    __slots__ = ("sessions", "frames", "ended", "ranges", "hello")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedScalarFieldContainer[int]
    frames: _containers.RepeatedScalarFieldContainer[int]
    ended: _containers.RepeatedCompositeFieldContainer[SessionEnded]
    ranges: _containers.RepeatedCompositeFieldContainer[RangeAck]
    hello: HelloAnswer
    def __init__(self, sessions: _Optional[_Iterable[int]] = ..., frames: _Optional[_Iterable[int]] = ..., ended: _Optional[_Iterable[_Union[SessionEnded, _Mapping]]] = ..., ranges: _Optional[_Iterable[_Union[RangeAck, _Mapping]]] = ..., hello: _Optional[_Union[HelloAnswer, _Mapping]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("id", "hello", "ledger_id", "first_entry_id", "last_entry_id", "bytes_max", "fence", "ledger_key", "high_priority", "cancel", "ids_only", "head_bytes", "range_counts", "range_offsets", "range_sizes", "traceparent", "grants")
    ID_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_KEY_FIELD_NUMBER: _ClassVar[int]
    HIGH_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    IDS_ONLY_FIELD_NUMBER: _ClassVar[int]
    HEAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    RANGE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    RANGE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RANGE_SIZES_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    id: int
    hello: Hello
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    bytes_max: int
    fence: bool
    ledger_key: bytes
    high_priority: bool
    cancel: _containers.RepeatedScalarFieldContainer[int]
    ids_only: bool
    head_bytes: int
    range_counts: _containers.RepeatedScalarFieldContainer[int]
    range_offsets: _containers.RepeatedScalarFieldContainer[int]
    range_sizes: _containers.RepeatedScalarFieldContainer[int]
    traceparent: str
    grants: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, id: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., ledger_id: _Optional[int] = ..., first_entry_id: _Optional[int] = ..., last_entry_id: _Optional[int] = ..., bytes_max: _Optional[int] = ..., fence: bool = ..., ledger_key: _Optional[bytes] = ..., high_priority: bool = ..., cancel: _Optional[_Iterable[int]] = ..., ids_only: bool = ..., head_bytes: _Optional[int] = ..., range_counts: _Optional[_Iterable[int]] = ..., range_offsets: _Optional[_Iterable[int]] = ..., range_sizes: _Optional[_Iterable[int]] = ..., traceparent: _Optional[str] = ..., grants: _Optional[_Iterable[bytes]] = ...) -> None: ...

class EntryRange(_message.Message):
    __slots__ = ("first_entry_id", "last_entry_id", "reason", "message")
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    first_entry_id: int
    last_entry_id: int
    reason: Reason
    message: str
    def __init__(self, first_entry_id: _Optional[int] = ..., last_entry_id: _Optional[int] = ..., reason: _Optional[_Union[Reason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class ReadTrailer(_message.Message):
    __slots__ = ("answered_through", "absent", "unknown", "fenced", "reason", "message")
    ANSWERED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    answered_through: int
    absent: _containers.RepeatedCompositeFieldContainer[EntryRange]
    unknown: _containers.RepeatedCompositeFieldContainer[EntryRange]
    fenced: bool
    reason: Reason
    message: str
    def __init__(self, answered_through: _Optional[int] = ..., absent: _Optional[_Iterable[_Union[EntryRange, _Mapping]]] = ..., unknown: _Optional[_Iterable[_Union[EntryRange, _Mapping]]] = ..., fenced: bool = ..., reason: _Optional[_Union[Reason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("frames", "hello", "id", "trailer")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TRAILER_FIELD_NUMBER: _ClassVar[int]
    frames: bytes
    hello: HelloAnswer
    id: int
    trailer: ReadTrailer
    def __init__(self, frames: _Optional[bytes] = ..., hello: _Optional[_Union[HelloAnswer, _Mapping]] = ..., id: _Optional[int] = ..., trailer: _Optional[_Union[ReadTrailer, _Mapping]] = ...) -> None: ...

class FenceRequest(_message.Message):
    __slots__ = ("ledger_id", "ledger_key")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_KEY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    ledger_key: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., ledger_key: _Optional[bytes] = ...) -> None: ...

class ReadLacRequest(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class WriteLacRequest(_message.Message):
    __slots__ = ("ledger_id", "ledger_key", "lac_body")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_KEY_FIELD_NUMBER: _ClassVar[int]
    LAC_BODY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    ledger_key: bytes
    lac_body: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., ledger_key: _Optional[bytes] = ..., lac_body: _Optional[bytes] = ...) -> None: ...

class WatchLacRequest(_message.Message):
    __slots__ = ("ledger_id", "previous_lac", "timeout_ms")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_LAC_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    previous_lac: int
    timeout_ms: int
    def __init__(self, ledger_id: _Optional[int] = ..., previous_lac: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ForceRequest(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class ListEntriesRequest(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class BookieInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteHintRequest(_message.Message):
    __slots__ = ("ledger_ids",)
    LEDGER_IDS_FIELD_NUMBER: _ClassVar[int]
    ledger_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ledger_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class GrantRequest(_message.Message):
    __slots__ = ("ledger_id", "wanted")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    wanted: int
    def __init__(self, ledger_id: _Optional[int] = ..., wanted: _Optional[int] = ...) -> None: ...

class LacAnswer(_message.Message):
    __slots__ = ("last_entry_id", "last_entry_frame", "lac_body", "lac_frame", "fenced", "known")
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FRAME_FIELD_NUMBER: _ClassVar[int]
    LAC_BODY_FIELD_NUMBER: _ClassVar[int]
    LAC_FRAME_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    last_entry_id: int
    last_entry_frame: bytes
    lac_body: bytes
    lac_frame: bytes
    fenced: bool
    known: bool
    def __init__(self, last_entry_id: _Optional[int] = ..., last_entry_frame: _Optional[bytes] = ..., lac_body: _Optional[bytes] = ..., lac_frame: _Optional[bytes] = ..., fenced: bool = ..., known: bool = ...) -> None: ...

class EntryList(_message.Message):
    __slots__ = ("encoded",)
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    encoded: bytes
    def __init__(self, encoded: _Optional[bytes] = ...) -> None: ...

class BookieInfo(_message.Message):
    __slots__ = ("total_bytes", "free_bytes", "read_only", "ledgers", "version", "limbo_ledgers", "damaged_ledgers")
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LIMBO_LEDGERS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_LEDGERS_FIELD_NUMBER: _ClassVar[int]
    total_bytes: int
    free_bytes: int
    read_only: bool
    ledgers: int
    version: str
    limbo_ledgers: int
    damaged_ledgers: int
    def __init__(self, total_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., read_only: bool = ..., ledgers: _Optional[int] = ..., version: _Optional[str] = ..., limbo_ledgers: _Optional[int] = ..., damaged_ledgers: _Optional[int] = ...) -> None: ...

class GrantAnswer(_message.Message):
    __slots__ = ("grant", "rights", "life_ms")
    GRANT_FIELD_NUMBER: _ClassVar[int]
    RIGHTS_FIELD_NUMBER: _ClassVar[int]
    LIFE_MS_FIELD_NUMBER: _ClassVar[int]
    grant: bytes
    rights: int
    life_ms: int
    def __init__(self, grant: _Optional[bytes] = ..., rights: _Optional[int] = ..., life_ms: _Optional[int] = ...) -> None: ...

class ControlRequest(_message.Message):
    __slots__ = ("id", "hello", "deadline_ms", "traceparent", "grants", "fence", "read_lac", "write_lac", "watch_lac", "force", "list_entries", "bookie_info", "delete_hint", "cancel", "grant")
    ID_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    READ_LAC_FIELD_NUMBER: _ClassVar[int]
    WRITE_LAC_FIELD_NUMBER: _ClassVar[int]
    WATCH_LAC_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    LIST_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_INFO_FIELD_NUMBER: _ClassVar[int]
    DELETE_HINT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    id: int
    hello: Hello
    deadline_ms: int
    traceparent: str
    grants: _containers.RepeatedScalarFieldContainer[bytes]
    fence: FenceRequest
    read_lac: ReadLacRequest
    write_lac: WriteLacRequest
    watch_lac: WatchLacRequest
    force: ForceRequest
    list_entries: ListEntriesRequest
    bookie_info: BookieInfoRequest
    delete_hint: DeleteHintRequest
    cancel: CancelRequest
    grant: GrantRequest
    def __init__(self, id: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., deadline_ms: _Optional[int] = ..., traceparent: _Optional[str] = ..., grants: _Optional[_Iterable[bytes]] = ..., fence: _Optional[_Union[FenceRequest, _Mapping]] = ..., read_lac: _Optional[_Union[ReadLacRequest, _Mapping]] = ..., write_lac: _Optional[_Union[WriteLacRequest, _Mapping]] = ..., watch_lac: _Optional[_Union[WatchLacRequest, _Mapping]] = ..., force: _Optional[_Union[ForceRequest, _Mapping]] = ..., list_entries: _Optional[_Union[ListEntriesRequest, _Mapping]] = ..., bookie_info: _Optional[_Union[BookieInfoRequest, _Mapping]] = ..., delete_hint: _Optional[_Union[DeleteHintRequest, _Mapping]] = ..., cancel: _Optional[_Union[CancelRequest, _Mapping]] = ..., grant: _Optional[_Union[GrantRequest, _Mapping]] = ...) -> None: ...

class ControlResponse(_message.Message):
    __slots__ = ("id", "hello", "reason", "message", "lac", "entries", "info", "grant")
    ID_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LAC_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    id: int
    hello: HelloAnswer
    reason: Reason
    message: str
    lac: LacAnswer
    entries: EntryList
    info: BookieInfo
    grant: GrantAnswer
    def __init__(self, id: _Optional[int] = ..., hello: _Optional[_Union[HelloAnswer, _Mapping]] = ..., reason: _Optional[_Union[Reason, str]] = ..., message: _Optional[str] = ..., lac: _Optional[_Union[LacAnswer, _Mapping]] = ..., entries: _Optional[_Union[EntryList, _Mapping]] = ..., info: _Optional[_Union[BookieInfo, _Mapping]] = ..., grant: _Optional[_Union[GrantAnswer, _Mapping]] = ...) -> None: ...

class Frames(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: bytes
    def __init__(self, frames: _Optional[bytes] = ...) -> None: ...
