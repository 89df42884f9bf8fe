# SPDX-License-Identifier: Apache-2.0
"""The formats by which one version understands what another one wrote: their numbers in the code, and those that stand
in a bookie's directory and in the metadata.

A version is rolled back safely only if what it wrote is in formats that the version before understands. So each number
here is that of the release whose data is kept, or the new format is written only once all of a cluster understand it
(docs/formats.md, section 9).
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor

from bk_core.access import grants, roles
from bk_core.columns import envelope_bytes
from bk_core.entries import arrow_directory, frame
from bk_core.logs.model import codec as log_codec
from bk_core.logs.model import deleted, position
from bk_core.logs.model.upkeep_record import UpkeepRecord, encode_upkeep_record
from bk_core.logs.proto import log_pb2
from bk_core.metadata import codec as ledger_codec
from bk_core.metadata import layout, records
from bk_core.metadata.proto import ledger_pb2
from bk_core.model import DigestType
from bk_core.transport.lane import messages
from bk_core.wire.bookie_rpc import v2
from bk_core.wire.lane import direct_messages as direct
from bk_core.wire.proto import bookie_rpc_pb2, lane_pb2
from bk_spark.options import table_options
from bk_spark.topics import offsets as topic_offsets
from bookie_server.identity import known_state
from bookie_server.storage.bytes import index_file, segment
from bookie_server.storage.disk import cookie
from bookie_server.storage.index import checkpoint

FILES: Mapping[str, FileDescriptor] = {
    "lane": lane_pb2.DESCRIPTOR,
    "log": log_pb2.DESCRIPTOR,
    "ledger": ledger_pb2.DESCRIPTOR,
    "bookie_rpc": bookie_rpc_pb2.DESCRIPTOR,
}


def of_the_code() -> dict[str, Any]:
    """Every number that this tree writes: versions, kinds and flags of frames, digests, fields of messages."""
    return {
        "versions": versions(),
        "kinds": kinds(),
        "messages": {name: fields_of(each) for name, each in FILES.items()},
    }


def versions() -> dict[str, str]:
    magic = segment.SEGMENT_MAGIC, segment.GROUP_MAGIC, index_file.INDEX_MAGIC, checkpoint.CHECKPOINT_MAGIC
    made = {
        "frame": f"{frame.FRAME_MAGIC:#x} {frame.FRAME_VERSION}",
        "segment": f"{magic[0].decode()} {segment.FORMAT_VERSION}",
        "group": magic[1].decode(),
        "index": f"{magic[2].decode()} {index_file.FORMAT_VERSION}",
        "checkpoint": f"{magic[3].decode()} {checkpoint.FORMAT_VERSION}",
        "IDENTITY": str(cookie.IDENTITY_VERSION),
        "cookie": str(records.COOKIE_LAYOUT),
        "known state": str(known_state._STATE_VERSION),
        "order": str(records.ORDER_VERSION),
        "deleted log": str(deleted.DELETED_VERSION),
        "upkeep": str(json.loads(encode_upkeep_record(UpkeepRecord()))["v"]),
        "roles": str(roles.ROLES_VERSION),
        "grant": grants._MAGIC.decode(),
        "table options": str(table_options.VERSION),
        "ledger metadata": str(ledger_codec.NEWEST_VERSION),
        "layout": f"{layout._LAYOUT_FORMAT} {layout._MANAGER_VERSION}",
        "stream offset": str(position.VERSION),
        "topic offset": str(topic_offsets.VERSION),
        "codec envelope": str(envelope_bytes.VERSION),
        "codec arrow": f"{arrow_directory.MAGIC.decode()} {arrow_directory.VERSION}",
        "hello": str(messages.LANE_VERSION),
        "direct lane": direct.preamble("Add").hex(),
        "Apache's wire": str(v2.VERSION),
    }
    lines = {
        name: value for name, value in vars(log_codec).items() if isinstance(value, bytes) and b"Version\t" in value
    }
    assert len(lines) == 5, lines
    return made | {value.decode().split("\t")[0]: value.decode().split("\t")[1].strip() for value in lines.values()}


def kinds() -> dict[str, int]:
    return {
        **{f"kind {each.name}": each.value for each in frame.FrameKind},
        **{f"digest {each.name}": each.value for each in DigestType},
        "known flags": frame.KNOWN_FLAGS,
    }


def fields_of(file: FileDescriptor) -> dict[str, str]:
    """By full name and number: the name and type of each field and of each value of an enum."""
    found: dict[str, str] = {}
    for message in file.message_types_by_name.values():
        found |= dict(_fields_of_message(message))
    for enum in file.enum_types_by_name.values():
        found |= dict(_values_of(enum))
    return found


def _fields_of_message(message: Descriptor) -> Iterator[tuple[str, str]]:
    for each in message.fields:
        kind = each.message_type or each.enum_type
        yield f"{message.full_name} {each.number}", f"{each.name} {each.type} {kind.full_name if kind else ''}".strip()
    for nested in message.nested_types:
        yield from _fields_of_message(nested)
    for enum in message.enum_types:
        yield from _values_of(enum)


def _values_of(enum: EnumDescriptor) -> Iterator[tuple[str, str]]:
    for value in enum.values:
        yield f"{enum.full_name} {value.number}", value.name


def of_directory(directory: Path) -> dict[str, set[str]]:
    """The versions that stand in the files of a bookie's directory, by format."""
    found: dict[str, set[str]] = defaultdict(set)
    found["IDENTITY"].add(str(json.loads((directory / "IDENTITY").read_bytes())["v"]))
    found["cookie"].add((directory / "VERSION").read_text(encoding="utf-8").split("\n")[0])
    for path in sorted(directory.rglob("*")):
        head = path.read_bytes()[:4096] if path.is_file() else b""
        for name, magic in (
            ("segment", segment.SEGMENT_MAGIC),
            ("index", index_file.INDEX_MAGIC),
            ("checkpoint", checkpoint.CHECKPOINT_MAGIC),
        ):
            if head.startswith(magic):
                found[name].add(f"{magic.decode()} {int.from_bytes(head[8:12], 'little')}")
    return found


def of_znodes(znodes: Mapping[str, str]) -> dict[str, set[str]]:
    """The same of all that stands in the metadata."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, data in znodes.items():
        text = base64.b64decode(data)
        if headed := re.match(rb"(BookKeeperLog\w+Version|BookieMetadataFormatVersion)\t(\d+)\n", text):
            name = headed[1].decode().replace("BookieMetadataFormatVersion", "ledger metadata")
            found[name].add(headed[2].decode())
        elif re.search(r"/cookies/", path):
            found["cookie"].add(text.decode().split("\n")[0])
        elif path.endswith("/LAYOUT") and "underreplication" not in path:
            format_version, manager = text.decode().splitlines()[:2]
            found["layout"].add(f"{format_version} {manager.rpartition(':')[2]}")
        elif text.startswith(b"{"):
            fields = json.loads(text)
            marks = {"ledgerKey": "deleted log", "order": "order", "incarnation": "known state", "roles": "roles"}
            name = next((name for key, name in marks.items() if key in fields), "upkeep")
            found[name].add(str(fields["v"]))
    return found
