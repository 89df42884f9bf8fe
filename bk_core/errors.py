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
    this case.
    """

    code: ClassVar[str] = "BK_ERROR"
    outcome: Outcome = Outcome.NOT_APPLIED

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


class InvalidArgumentError(BookKeeperError):
    """An argument, option, URI or name is wrong. Nothing was done."""

    code = "BK_INVALID_ARGUMENT"


class PermissionDeniedError(BookKeeperError):
    """The client's identity has no role that gives the needed right, in a cluster of mode secure. Nothing was done,
    unless entries were in flight when the right ended."""

    code = "BK_DENIED"

    @classmethod
    def told(cls, message: str, outcome: Outcome = Outcome.NOT_APPLIED) -> PermissionDeniedError:
        """Build the error from a bookie's message, which names the missing right and, after ``; ``, the command that
        grants it."""
        what, _, remedy = message.partition("; ")
        return cls(what, remedy=remedy, outcome=outcome)


class LedgerError(BookKeeperError):
    """Base of errors about one ledger."""

    code = "BK_LEDGER"


class LedgerFencedError(LedgerError):
    """Another client fenced the ledger. Entries in flight may or may not be part of the ledger."""

    code = "BK_LEDGER_FENCED"
    outcome = Outcome.UNKNOWN


class LedgerClosedError(LedgerError):
    """The ledger, or this handle of it, is closed."""

    code = "BK_LEDGER_CLOSED"


class NoSuchLedgerError(LedgerError):
    """The metadata store has no such ledger."""

    code = "BK_NO_SUCH_LEDGER"


class NoSuchEntryError(LedgerError):
    """All bookies of an entry's write set report the entry as absent, although it must exist: data is lost. Reads never
    skip it."""

    code = "BK_NO_SUCH_ENTRY"


class EntryUnreadableError(LedgerError):
    """No bookie of an entry's write set returned the entry now, and not all of them reported it as absent."""

    code = "BK_ENTRY_UNREADABLE"


class LedgerExistsError(LedgerError):
    """A ledger with this id exists already."""

    code = "BK_LEDGER_EXISTS"


class DuplicateEntryIdError(LedgerError):
    """An entry with this id was appended before."""

    code = "BK_DUPLICATE_ENTRY_ID"


class EntryTooLargeError(LedgerError):
    """An entry is over the limit of 5 MiB − 1 KiB (rule L5)."""

    code = "BK_ENTRY_TOO_LARGE"


class CorruptEntryError(LedgerError):
    """An entry was read without damage, but the codec cannot decode it."""

    code = "BK_CORRUPT_ENTRY"


class WrongPasswordError(LedgerError):
    """The given password differs from the ledger's."""

    code = "BK_WRONG_PASSWORD"


class WrongDigestTypeError(LedgerError):
    """The given digest type differs from the ledger's."""

    code = "BK_WRONG_DIGEST_TYPE"


class QuorumError(BookKeeperError):
    """Base of errors for too few bookies, or too few answers from them."""

    code = "BK_QUORUM"
    outcome = Outcome.UNKNOWN


class NotEnoughBookiesError(QuorumError):
    """There are fewer usable bookies than the ensemble needs."""

    code = "BK_NOT_ENOUGH_BOOKIES"
    outcome = Outcome.NOT_APPLIED


class QuorumTimeoutError(QuorumError):
    """An add or query did not reach its quorum in time."""

    code = "BK_QUORUM_TIMEOUT"


class RecoveryInconclusiveError(QuorumError):
    """Recovery could neither find an entry nor prove that it does not exist. The ledger is still IN_RECOVERY and can be
    recovered again."""

    code = "BK_RECOVERY_INCONCLUSIVE"
    outcome = Outcome.NOT_APPLIED


class MetadataError(BookKeeperError):
    """Base of errors of the metadata store."""

    code = "BK_METADATA"


class MetadataConflictError(MetadataError):
    """A compare-and-set found another version of the record. Nothing was written."""

    code = "BK_METADATA_CONFLICT"


class MetadataUnavailableError(MetadataError):
    """The metadata store did not answer in time."""

    code = "BK_METADATA_UNAVAILABLE"
    outcome = Outcome.UNKNOWN


class MetadataCorruptError(MetadataError):
    """A record of the metadata store cannot be read, because its format is unknown or its bytes are damaged."""

    code = "BK_METADATA_CORRUPT"


class MetadataAccessError(MetadataError):
    """The metadata store refuses this process, because its credentials are wrong or its identity has no right on a
    node."""

    code = "BK_METADATA_ACCESS"


class NoClusterError(MetadataError):
    """There is no cluster at the ledgers root. The path is mistyped, or no cluster was made yet (bk cluster init)."""

    code = "BK_NO_CLUSTER"


class ClusterMismatchError(MetadataError):
    """A record or a peer belongs to another cluster, because its INSTANCEID differs."""

    code = "BK_CLUSTER_MISMATCH"


class IntegrityError(BookKeeperError):
    """Bytes failed their digest, CRC or identity check."""

    code = "BK_INTEGRITY"


class ProtocolError(BookKeeperError):
    """Base of errors for a violation of the lane's protocol."""

    code = "BK_PROTOCOL"


class LocalProtocolError(ProtocolError):
    """This side broke the protocol, which is a bug of the product."""

    code = "BK_LOCAL_PROTOCOL"


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol."""

    code = "BK_REMOTE_PROTOCOL"
    outcome = Outcome.UNKNOWN


class UnknownFlagsError(RemoteProtocolError, IntegrityError):
    """A frame has flags that this version reserves or does not have. If a peer sent the frame, the peer broke the
    protocol. If the frame is on a disk, it is damaged."""

    code = "BK_UNKNOWN_FLAGS"


class TransportError(BookKeeperError):
    """A connection or stream failed."""

    code = "BK_TRANSPORT"
    outcome = Outcome.UNKNOWN


class BookieUnreachableError(TransportError):
    """A bookie could not be reached from this host."""

    code = "BK_BOOKIE_UNREACHABLE"


class TlsError(BookieUnreachableError):
    """The TLS handshake with a server failed, because a certificate is not accepted or one end does not use TLS.
    Nothing was sent in plain text."""

    code = "BK_TLS"
    outcome = Outcome.NOT_APPLIED


class InsecureBookieError(BookieUnreachableError):
    """A bookie does not check rights, and this client's configuration forbids such bookies. Nothing was sent to the
    bookie."""

    code = "BK_INSECURE"
    outcome = Outcome.NOT_APPLIED


class AuthenticationError(TransportError):
    """A server does not let this client in. The client has no token or certificate, or the server refuses it. Nothing
    was done."""

    code = "BK_UNAUTHENTICATED"
    outcome = Outcome.NOT_APPLIED


class WindowFullError(BookKeeperError):
    """The writer's window is full. The entry was not queued."""

    code = "BK_WINDOW_FULL"


class ClientClosedError(BookKeeperError):
    """The client was closed. Operations in flight may have been applied."""

    code = "BK_CLIENT_CLOSED"
    outcome = Outcome.UNKNOWN


class ForkedHandleError(BookKeeperError):
    """A child process used a handle that was made before the fork, or tried to connect although its parent had used
    gRPC (rule K4)."""

    code = "BK_FORKED_HANDLE"


class LogError(BookKeeperError):
    """Base of errors of named logs."""

    code = "BK_LOG"


class NoSuchLogError(LogError):
    """There is no log with this name."""

    code = "BK_NO_SUCH_LOG"


class LogExistsError(LogError):
    """A log with this name exists already."""

    code = "BK_LOG_EXISTS"


class LogHasLeaderError(LogError):
    """The log has an open extent, so its leader may still append. A publish in between is not allowed (rule N2)."""

    code = "BK_LOG_HAS_LEADER"


class LogInUseError(LogError):
    """A job or a leader uses the log, or died while it used the log, so the log's ledgers cannot be deleted now (rule
    N6)."""

    code = "BK_LOG_IN_USE"


class LeadershipLostError(LogError):
    """Another leader took over the log. Entries in flight may be part of the log."""

    code = "BK_LEADERSHIP_LOST"
    outcome = Outcome.UNKNOWN


class LogRecreatedError(LogError):
    """A position names another cluster, or another log of the same name (rule N7)."""

    code = "BK_LOG_RECREATED"


class LogOverwrittenError(LogError):
    """A position names an older epoch of the log (rule N7)."""

    code = "BK_LOG_OVERWRITTEN"


class PublishConflictError(LogError):
    """Other clients changed the log during each attempt to publish, or a ledger may not be published."""

    code = "BK_PUBLISH_CONFLICT"


class TransactionReplayDiffersError(LogError):
    """A transaction version was published before with another number of rows, or from another input (rule N5)."""

    code = "BK_TXN_REPLAY_DIFFERS"


class TransactionVersionRegressedError(LogError):
    """A transaction version is lower than the last published version, and the log has no record of it (rule N5)."""

    code = "BK_TXN_VERSION_REGRESSED"


class SchemaMismatchError(LogError):
    """The columns to write or read do not match the log's schema (rule K8)."""

    code = "BK_SCHEMA_MISMATCH"


class SchemaChangedError(LogError):
    """The log got a newer schema after a stream had been planned (rule K8)."""

    code = "BK_SCHEMA_CHANGED"


class TopicError(BookKeeperError):
    """Base of errors of Pulsar's topics."""

    code = "BK_TOPIC"


class NoSuchTopicError(TopicError):
    """Pulsar's metadata has no such topic."""

    code = "BK_NO_SUCH_TOPIC"


class UnsupportedTopicError(TopicError):
    """The topic, or an entry of it, is of a kind or a format that this version does not read."""

    code = "BK_TOPIC_UNSUPPORTED"


class NoSchemaError(TopicError):
    """The topic has no schema, or its schema was deleted, so its values cannot become columns."""

    code = "BK_NO_SCHEMA"


class LedgerOffloadedError(TopicError):
    """A ledger of the topic was moved to storage that this version or this read cannot use, and the bookies have no
    copy."""

    code = "BK_LEDGER_OFFLOADED"


class OffloadUnavailableError(TopicError):
    """The storage of an offloaded ledger did not answer in time, or refused the request."""

    code = "BK_OFFLOAD_UNAVAILABLE"


class OffloadMissingError(TopicError):
    """The storage of an offloaded ledger does not have an object that the topic's record names."""

    code = "BK_OFFLOAD_MISSING"


class CorruptOffloadError(TopicError):
    """An object of an offloaded ledger is cut off, or its bytes are not what an offloader writes."""

    code = "BK_OFFLOAD_CORRUPT"


class CorruptMessageError(TopicError):
    """An entry of a topic was read without damage, but it is not a message of Pulsar's."""

    code = "BK_CORRUPT_MESSAGE"


class MessageChecksumError(CorruptMessageError):
    """The bytes of a message do not match the checksum that its producer computed."""

    code = "BK_MESSAGE_CHECKSUM"


class MessageSchemaError(CorruptMessageError):
    """The value of a message cannot be decoded by the topic's schema."""

    code = "BK_MESSAGE_SCHEMA"


class MessageEncryptedError(TopicError):
    """A message is encrypted, and the caller gave no private key that can decrypt it."""

    code = "BK_MESSAGE_ENCRYPTED"


class BookieError(BookKeeperError):
    """Base of errors of the bookie server."""

    code = "BK_BOOKIE"


class BookieIdentityError(BookieError):
    """A data directory belongs to another bookie or cluster."""

    code = "BK_BOOKIE_IDENTITY"


class NoSuchBookieError(BookieError):
    """No bookie with this id belongs to the cluster."""

    code = "BK_NO_SUCH_BOOKIE"


class BookieNeededError(BookieError):
    """The bookie cannot leave the cluster, because it runs or ledgers need its copies. Nothing was changed."""

    code = "BK_BOOKIE_NEEDED"


class DataDirectoryError(BookieError):
    """A data directory cannot be used, because it is missing, locked, damaged or not empty."""

    code = "BK_DATA_DIRECTORY"


class PortInUseError(BookieError):
    """Another process uses the port."""

    code = "BK_PORT_IN_USE"


class StorageFailedError(BookieError):
    """A sync failed, and the bookie acknowledges no more entries on this directory (rule S6)."""

    code = "BK_STORAGE_FAILED"
    outcome = Outcome.UNKNOWN


class JavaMissingError(BookKeeperError):
    """Java 17 or later was not found; ZooKeeper and Spark need it."""

    code = "BK_JAVA_MISSING"


class PackageMismatchError(BookKeeperError):
    """Spark's workers lack the package or have another version of it."""

    code = "BK_PACKAGE_MISMATCH"
