# SPDX-License-Identifier: Apache-2.0
"""Defines every error that the product raises, in one file, so that users find all of them in one place. docs/errors.md
shows the tree. ``bk_cli/exit_codes.py`` maps each class to the exit code of ``bk``.

An error is one line (rule E1), ``[BK_CODE] what; value; remedy. (not applied)``. It says whether the operation
certainly did not happen (``NOT_APPLIED``) or may have happened (``UNKNOWN``).
"""

from __future__ import annotations

import enum
from typing import ClassVar


class Outcome(enum.Enum):
    """Says whether an operation that raised an error may have been applied."""

    NOT_APPLIED = "not applied"
    UNKNOWN = "outcome unknown"


class BookKeeperError(Exception):
    """Base of all errors.

    ``what`` describes the problem in the user's words, ``value`` names the option or object and its value, and
    ``remedy`` says what the user should type or change. ``outcome`` replaces the outcome of the class if it differs in
    this case. A class declares its code, and its outcome if it is not that of its base, in its first line.
    """

    code: ClassVar[str] = "BK_ERROR"
    outcome: Outcome = Outcome.NOT_APPLIED

    def __init_subclass__(cls, *, code: str | None = None, outcome: Outcome | None = None) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code
        cls.outcome = outcome or cls.outcome

    def __init__(self, what: str, *, value: str = "", remedy: str = "", outcome: Outcome | None = None) -> None:
        super().__init__(what)
        self.what, self.value, self.remedy = what, value, remedy
        if outcome is not None:
            self.outcome = outcome

    def __str__(self) -> str:
        body = "; ".join(part.rstrip(".") for part in (self.what, self.value, self.remedy) if part)
        return f"[{self.code}] {body}. ({self.outcome.value})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[BookKeeperError], args: tuple[object, ...], attributes: dict[str, object]) -> BookKeeperError:
    """Rebuild a pickled error without its constructor, because the parameters of constructors differ from class to
    class."""
    error = cls.__new__(cls, *args)
    error.__dict__.update(attributes)
    return error


class InvalidArgumentError(BookKeeperError, code="BK_INVALID_ARGUMENT"):
    """An argument, option, URI or name is wrong. Nothing was done."""


class PermissionDeniedError(BookKeeperError, code="BK_DENIED"):
    """The client's identity has no role that gives the needed right, in a cluster of mode secure. Nothing was done,
    unless entries were in flight when the right ended."""

    @classmethod
    def told(cls, message: str, outcome: Outcome = Outcome.NOT_APPLIED) -> PermissionDeniedError:
        """Build the error from a bookie's message, which names the missing right and, after ``; ``, the command that
        grants it."""
        what, _, remedy = message.partition("; ")
        return cls(what, remedy=remedy, outcome=outcome)


class LedgerError(BookKeeperError, code="BK_LEDGER"):
    """Base of errors about one ledger."""


class LedgerFencedError(LedgerError, code="BK_LEDGER_FENCED", outcome=Outcome.UNKNOWN):
    """Another client fenced the ledger. Entries in flight may or may not be part of the ledger."""


class LedgerClosedError(LedgerError, code="BK_LEDGER_CLOSED"):
    """The ledger, or this handle of it, is closed."""


class NoSuchLedgerError(LedgerError, code="BK_NO_SUCH_LEDGER"):
    """The metadata store has no such ledger."""


class NoSuchEntryError(LedgerError, code="BK_NO_SUCH_ENTRY"):
    """All bookies of an entry's write set report the entry as absent, although it must exist: data is lost. Reads never
    skip it."""


class EntryUnreadableError(LedgerError, code="BK_ENTRY_UNREADABLE"):
    """No bookie of an entry's write set returned the entry now, and not all of them reported it as absent."""


class LedgerExistsError(LedgerError, code="BK_LEDGER_EXISTS"):
    """A ledger with this id exists already."""


class DuplicateEntryIdError(LedgerError, code="BK_DUPLICATE_ENTRY_ID"):
    """An entry with this id was appended before."""


class EntryTooLargeError(LedgerError, code="BK_ENTRY_TOO_LARGE"):
    """An entry is over the limit of 5 MiB − 1 KiB (rule L5)."""


class CorruptEntryError(LedgerError, code="BK_CORRUPT_ENTRY"):
    """An entry was read without damage, but the codec cannot decode it."""


class WrongPasswordError(LedgerError, code="BK_WRONG_PASSWORD"):
    """The given password differs from the ledger's."""


class WrongDigestTypeError(LedgerError, code="BK_WRONG_DIGEST_TYPE"):
    """The given digest type differs from the ledger's."""


class QuorumError(BookKeeperError, code="BK_QUORUM", outcome=Outcome.UNKNOWN):
    """Base of errors for too few bookies, or too few answers from them."""


class NotEnoughBookiesError(QuorumError, code="BK_NOT_ENOUGH_BOOKIES", outcome=Outcome.NOT_APPLIED):
    """There are fewer usable bookies than the ensemble needs."""


class QuorumTimeoutError(QuorumError, code="BK_QUORUM_TIMEOUT"):
    """An add or query did not reach its quorum in time."""


class RecoveryInconclusiveError(QuorumError, code="BK_RECOVERY_INCONCLUSIVE", outcome=Outcome.NOT_APPLIED):
    """Recovery could neither find an entry nor prove that it does not exist. The ledger is still IN_RECOVERY and can be
    recovered again."""


class MetadataError(BookKeeperError, code="BK_METADATA"):
    """Base of errors of the metadata store."""


class MetadataConflictError(MetadataError, code="BK_METADATA_CONFLICT"):
    """A compare-and-set found another version of the record. Nothing was written."""


class MetadataUnavailableError(MetadataError, code="BK_METADATA_UNAVAILABLE", outcome=Outcome.UNKNOWN):
    """The metadata store did not answer in time."""


class MetadataCorruptError(MetadataError, code="BK_METADATA_CORRUPT"):
    """A record of the metadata store cannot be read, because its format is unknown or its bytes are damaged."""


class MetadataAccessError(MetadataError, code="BK_METADATA_ACCESS"):
    """The metadata store refuses this process, because its credentials are wrong or its identity has no right on a
    node."""


class NoClusterError(MetadataError, code="BK_NO_CLUSTER"):
    """There is no cluster at the ledgers root. The path is mistyped, or no cluster was made yet (bk cluster init)."""


class ClusterMismatchError(MetadataError, code="BK_CLUSTER_MISMATCH"):
    """A record or a peer belongs to another cluster, because its INSTANCEID differs."""


class IntegrityError(BookKeeperError, code="BK_INTEGRITY"):
    """Bytes failed their digest, CRC or identity check."""


class ProtocolError(BookKeeperError, code="BK_PROTOCOL"):
    """Base of errors for a violation of the lane's protocol."""


class LocalProtocolError(ProtocolError, code="BK_LOCAL_PROTOCOL"):
    """This side broke the protocol, which is a bug of the product."""


class RemoteProtocolError(ProtocolError, code="BK_REMOTE_PROTOCOL", outcome=Outcome.UNKNOWN):
    """The other side broke the protocol."""


class UnknownFlagsError(RemoteProtocolError, IntegrityError, code="BK_UNKNOWN_FLAGS"):
    """A frame has flags that this version reserves or does not have. If a peer sent the frame, the peer broke the
    protocol. If the frame is on a disk, it is damaged."""


class TransportError(BookKeeperError, code="BK_TRANSPORT", outcome=Outcome.UNKNOWN):
    """A connection or stream failed."""


class BookieUnreachableError(TransportError, code="BK_BOOKIE_UNREACHABLE"):
    """A bookie could not be reached from this host."""


class TlsError(BookieUnreachableError, code="BK_TLS", outcome=Outcome.NOT_APPLIED):
    """The TLS handshake with a server failed, because a certificate is not accepted or one end does not use TLS.
    Nothing was sent in plain text."""


class InsecureBookieError(BookieUnreachableError, code="BK_INSECURE", outcome=Outcome.NOT_APPLIED):
    """A bookie does not check rights, and this client's configuration forbids such bookies. Nothing was sent to the
    bookie."""


class AuthenticationError(TransportError, code="BK_UNAUTHENTICATED", outcome=Outcome.NOT_APPLIED):
    """A server does not let this client in. The client has no token or certificate, or the server refuses it. Nothing
    was done."""


class WindowFullError(BookKeeperError, code="BK_WINDOW_FULL"):
    """The writer's window is full. The entry was not queued."""


class ClientClosedError(BookKeeperError, code="BK_CLIENT_CLOSED", outcome=Outcome.UNKNOWN):
    """The client was closed. Operations in flight may have been applied."""


class ForkedHandleError(BookKeeperError, code="BK_FORKED_HANDLE"):
    """A child process used a handle that was made before the fork, or tried to connect although its parent had used
    gRPC (rule K4)."""


class LogError(BookKeeperError, code="BK_LOG"):
    """Base of errors of named logs."""


class NoSuchLogError(LogError, code="BK_NO_SUCH_LOG"):
    """There is no log with this name."""


class LogExistsError(LogError, code="BK_LOG_EXISTS"):
    """A log with this name exists already."""


class LogHasLeaderError(LogError, code="BK_LOG_HAS_LEADER"):
    """The log has an open extent, so its leader may still append. A publish in between is not allowed (rule N2)."""


class LogInUseError(LogError, code="BK_LOG_IN_USE"):
    """A job or a leader uses the log, or died while it used the log, so the log's ledgers cannot be deleted now (rule
    N6)."""


class LeadershipLostError(LogError, code="BK_LEADERSHIP_LOST", outcome=Outcome.UNKNOWN):
    """Another leader took over the log. Entries in flight may be part of the log."""


class LogRecreatedError(LogError, code="BK_LOG_RECREATED"):
    """A position names another cluster, or another log of the same name (rule N7)."""


class LogOverwrittenError(LogError, code="BK_LOG_OVERWRITTEN"):
    """A position names an older epoch of the log (rule N7)."""


class PublishConflictError(LogError, code="BK_PUBLISH_CONFLICT"):
    """Other clients changed the log during each attempt to publish, or a ledger may not be published."""


class TransactionReplayDiffersError(LogError, code="BK_TXN_REPLAY_DIFFERS"):
    """A transaction version was published before with another number of rows, or from another input (rule N5)."""


class TransactionVersionRegressedError(LogError, code="BK_TXN_VERSION_REGRESSED"):
    """A transaction version is lower than the last published version, and the log has no record of it (rule N5)."""


class SchemaMismatchError(LogError, code="BK_SCHEMA_MISMATCH"):
    """The columns to write or read do not match the log's schema (rule K8)."""


class SchemaChangedError(LogError, code="BK_SCHEMA_CHANGED"):
    """The log got a newer schema after a stream had been planned (rule K8)."""


class TopicError(BookKeeperError, code="BK_TOPIC"):
    """Base of errors of Pulsar's topics."""


class NoSuchTopicError(TopicError, code="BK_NO_SUCH_TOPIC"):
    """Pulsar's metadata has no such topic."""


class UnsupportedTopicError(TopicError, code="BK_TOPIC_UNSUPPORTED"):
    """The topic, or an entry of it, is of a kind or a format that this version does not read."""


class NoSchemaError(TopicError, code="BK_NO_SCHEMA"):
    """The topic has no schema, or its schema was deleted, so its values cannot become columns."""


class LedgerOffloadedError(TopicError, code="BK_LEDGER_OFFLOADED"):
    """A ledger of the topic was moved to storage that this version or this read cannot use, and the bookies have no
    copy."""


class OffloadUnavailableError(TopicError, code="BK_OFFLOAD_UNAVAILABLE"):
    """The storage of an offloaded ledger did not answer in time, or refused the request."""


class OffloadMissingError(TopicError, code="BK_OFFLOAD_MISSING"):
    """The storage of an offloaded ledger does not have an object that the topic's record names."""


class CorruptOffloadError(TopicError, code="BK_OFFLOAD_CORRUPT"):
    """An object of an offloaded ledger is cut off, or its bytes are not what an offloader writes."""


class CorruptMessageError(TopicError, code="BK_CORRUPT_MESSAGE"):
    """An entry of a topic was read without damage, but it is not a message of Pulsar's."""


class MessageChecksumError(CorruptMessageError, code="BK_MESSAGE_CHECKSUM"):
    """The bytes of a message do not match the checksum that its producer computed."""


class MessageSchemaError(CorruptMessageError, code="BK_MESSAGE_SCHEMA"):
    """The value of a message cannot be decoded by the topic's schema."""


class MessageEncryptedError(TopicError, code="BK_MESSAGE_ENCRYPTED"):
    """A message is encrypted, and the caller gave no private key that can decrypt it."""


class BookieError(BookKeeperError, code="BK_BOOKIE"):
    """Base of errors of the bookie server."""


class BookieIdentityError(BookieError, code="BK_BOOKIE_IDENTITY"):
    """A data directory belongs to another bookie or cluster."""


class NoSuchBookieError(BookieError, code="BK_NO_SUCH_BOOKIE"):
    """No bookie with this id belongs to the cluster."""


class BookieNeededError(BookieError, code="BK_BOOKIE_NEEDED"):
    """The bookie cannot leave the cluster, because it runs or ledgers need its copies. Nothing was changed."""


class DataDirectoryError(BookieError, code="BK_DATA_DIRECTORY"):
    """A data directory cannot be used, because it is missing, locked, damaged or not empty."""


class PortInUseError(BookieError, code="BK_PORT_IN_USE"):
    """Another process uses the port."""


class StorageFailedError(BookieError, code="BK_STORAGE_FAILED", outcome=Outcome.UNKNOWN):
    """A sync failed, and the bookie acknowledges no more entries on this directory (rule S6)."""


class JavaMissingError(BookKeeperError, code="BK_JAVA_MISSING"):
    """Java 17 or later was not found; ZooKeeper and Spark need it."""


class PackageMismatchError(BookKeeperError, code="BK_PACKAGE_MISMATCH"):
    """Spark's workers lack the package or have another version of it."""
