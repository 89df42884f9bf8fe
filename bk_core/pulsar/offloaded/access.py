# SPDX-License-Identifier: Apache-2.0
"""Settings for reads of offloaded ledgers, and the check whether a copy can be read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from bk_core.errors import InvalidArgumentError
from bk_core.pulsar.model.managed_ledger import TopicLedger
from bk_core.pulsar.model.offload import OffloadedCopy

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

ReadPriority: TypeAlias = Literal["tiered-storage-first", "bookkeeper-first"]
PRIORITIES: tuple[ReadPriority, ...] = ("tiered-storage-first", "bookkeeper-first")

S3_DRIVERS = ("aws-s3", "s3", "aliyun-oss")
GCS_DRIVER, AZURE_DRIVER = "google-cloud-storage", "azureblob"
DRIVERS = (*S3_DRIVERS, GCS_DRIVER, AZURE_DRIVER)
"""The drivers, in lower case, for which the topic's record is enough to find the storage."""
HADOOP_DRIVER = "filesystem"
TIMEOUT_S = 60.0
"""The default deadline of one request to a storage, in seconds. All attempts of the request end within it."""

CREDENTIALS: Mapping[str, str] = {
    "access_key": "access_key",
    "aws_access_key_id": "access_key",
    "secret_key": "secret_key",
    "aws_secret_access_key": "secret_key",
    "session_token": "session_token",
    "aws_session_token": "session_token",
    "azure_account": "azure_account",
    "azure_key": "azure_key",
}
"""The names in a file of credentials. Each sets a field of OffloadStorage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadStorage:
    """How to read ledgers that were offloaded to object storage. All fields have defaults: a topic's record names the
    driver, the bucket, the region and the endpoint, and the cloud's SDK finds credentials.

    ``read_priority`` applies to a ledger that bookies still have. ``tiered-storage-first``, which is also Pulsar's
    default, reads it from object storage, and ``bookkeeper-first`` from the bookies. ``endpoint``
    (``http://host:9000``) and ``region`` replace those of the record. ``access_key``, ``secret_key`` and
    ``session_token`` are for S3. ``azure_account`` and ``azure_key`` are for Azure, because no record names the
    account.

    ``uri`` is the folder or bucket with the objects, if it is not the bucket in the record. It is a URI of
    ``pyarrow.fs`` without credentials (``file:///mnt/copy``, ``s3://bucket?region=…``). Alternatively, ``filesystem``
    is a ``pyarrow.fs.FileSystem``, and ``root`` the path of the objects in it.

    A request with all its attempts ends after ``timeout_s`` seconds.
    """

    read_priority: ReadPriority = "tiered-storage-first"
    uri: str = ""
    endpoint: str = ""
    region: str = ""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    azure_account: str = ""
    azure_key: str = field(default="", repr=False)
    filesystem: FileSystem | None = None
    root: str = ""
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if self.read_priority not in PRIORITIES:
            raise InvalidArgumentError(
                "there is no such priority for reads of offloaded ledgers",
                value=f"read_priority={self.read_priority!r}",
                remedy=f"choose from {', '.join(PRIORITIES)}",
            )
        if not self.timeout_s > 0:
            raise InvalidArgumentError("timeout_s must be above 0", value=f"timeout_s={self.timeout_s:g}")
        if bool(self.access_key) != bool(self.secret_key) or (self.session_token and not self.secret_key):
            raise InvalidArgumentError(
                "credentials of S3 need both keys", remedy="give the access key and the secret key, or neither"
            )
        if self.has_own_place and (self.endpoint or self.region or self.secret_key or self.azure_account):
            raise InvalidArgumentError(
                "the place of offloaded objects is given twice",
                value="with uri or filesystem, there are no endpoint, region and credentials",
                remedy="put endpoint and region into the URI, or leave out the URI",
            )
        if self.uri and self.filesystem is not None:
            raise InvalidArgumentError("uri and filesystem exclude each other", remedy="keep one of them")
        if "@" in self.uri.partition("://")[2].partition("/")[0]:
            raise InvalidArgumentError(
                "the URI of offloaded objects holds credentials",
                remedy="leave them to the default chain of the cloud's SDK, or give bucket and credentials without URI",
            )
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise InvalidArgumentError(
                "the endpoint of object storage is no URL", value=self.endpoint, remedy="write http://host:port"
            )

    @property
    def has_own_place(self) -> bool:
        """Whether these settings name the place of the objects, so that the topics' records do not count."""
        return bool(self.uri) or self.filesystem is not None

    def with_credentials(self, text: str, where: str) -> OffloadStorage:
        """Return these settings with the credentials in ``text``. Its lines are ``name=value``, as in AWS's file of
        shared credentials. Lines that begin with ``#`` or ``[`` are ignored. ``where`` names the text in errors. Raises
        InvalidArgumentError, whose text has no value of the file."""
        found = dict[str, str]()
        for number, line in enumerate(text.splitlines(), 1):
            name, equals, value = (part.strip() for part in line.partition("="))
            if not name or name.startswith(("#", "[")):
                continue
            if not equals or name.lower() not in CREDENTIALS or CREDENTIALS[name.lower()] in found:
                raise InvalidArgumentError(
                    f"{where} has no credentials of object storage in line {number}",
                    remedy=f"write lines name=value, each once; names: {', '.join(CREDENTIALS)}",
                )
            found[CREDENTIALS[name.lower()]] = value
        return replace(self, **found)  # type: ignore[arg-type]  # all fields of credentials are texts

    def reads_copy(self, ledger: TopicLedger) -> bool:
        """Return whether to read a ledger from its copy in other storage. A copy that cannot be read is used only if
        bookies may have deleted the ledger."""
        if ledger.copy is None or (ledger.is_in_bookies and self.read_priority == "bookkeeper-first"):
            return False
        return not ledger.is_in_bookies or self.problem(ledger.copy) is None

    def problem(self, copy: OffloadedCopy) -> str | None:
        """Return why a copy cannot be read, or None if it can be read."""
        driver = copy.driver.lower()
        if driver == HADOOP_DRIVER:
            return "the filesystem offloader writes Hadoop's MapFiles, which this version does not read"
        if self.has_own_place:
            return None
        if driver not in DRIVERS:
            return f"the driver is not one of {', '.join(DRIVERS)}"
        if not copy.bucket:
            return "the topic's record names no bucket"
        if driver == AZURE_DRIVER and not self.azure_account:
            return "an account of Azure is needed (azure_account)"
        return None


BY_THE_RECORD = OffloadStorage()
"""The settings that take everything from the topic's record, and let the cloud's SDK find the credentials."""
