# SPDX-License-Identifier: Apache-2.0
"""Holds a session with ZooKeeper, through kazoo. Only this package imports kazoo (M2).

Every call has a deadline. A read whose connection broke is repeated within the deadline. A write waits for a connection
and is then sent at most once. Without a connection it is certainly not applied; once it may have been sent, a missing
answer means outcome UNKNOWN. Kazoo's states CONNECTED, SUSPENDED and LOST are those of the port. Kazoo always
reconnects, and begins a new session after a loss. Its wait for one server is shorter than every call's deadline
(:class:`BoundedHandler`, M5).

With an identity, a connection counts as usable once ZooKeeper has accepted the identity on it. So no call that needs
rights is sent before. While ZooKeeper refuses the credentials, every call fails without a wait; from time to time the
file is read again and its credentials are tried.

Reads never go back in time, whichever server answers. ZooKeeper does not move a session to a server that lacks a write
which the session has seen. The begin of a session is a write, so the server that answers it has all earlier writes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    RolledBackError,
    RuntimeInconsistency,
    SASLException,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.exceptions import BadVersionError as KazooBadVersion
from kazoo.exceptions import NodeExistsError as KazooNodeExists
from kazoo.exceptions import NoNodeError as KazooNoNode
from kazoo.exceptions import NotEmptyError as KazooNotEmpty
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import KazooState
from kazoo.security import ACL, Id

from bk_core.access.tls import Tls, failure
from bk_core.access.zookeeper_acl import OPEN_TO_ALL, Acl, AclGrant, ZooKeeperAcl, acl_bytes
from bk_core.errors import (
    ClientClosedError,
    ForkedHandleError,
    InvalidArgumentError,
    MetadataAccessError,
    MetadataUnavailableError,
    Outcome,
    TlsError,
)
from bk_core.metadata.port import CancelWatch, SessionState
from bk_core.metadata.tree.tree import (
    ANY_VERSION,
    MULTI_BYTES_MAX,
    NODE_BYTES_MAX,
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    NotEmptyError,
    Op,
    Set,
    TreeError,
    Watcher,
    multi_bytes,
)
from bk_core.metadata.worker import Worker
from bk_core.metadata.zookeeper.identity import ZooKeeperIdentity
from bk_core.metadata.zookeeper.told import without_data

logger = logging.getLogger(__name__)
_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
_kazoo_logger.addFilter(without_data)
_kazoo_logger.addHandler(logging.NullHandler())  # without configured logging, kazoo's warnings do not go to stderr
_REPEAT_S = 0.05
_REVIVE_S = 0.5
_REFUSED_PAUSE_S = 10.0
"""The number of seconds between two tries with credentials that ZooKeeper refuses. During the pause calls fail without
a wait."""
_ATTEMPT_MIN_S = 1.0
_READS_AT_ONCE = 200
"""The maximum number of reads that are queued together. Kazoo's queue holds 278 requests while none is sent; after that
a further request blocks."""
_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}
_ANSWERS: dict[type[KazooException], type[TreeError]] = {
    KazooNoNode: NoNodeError,
    KazooNodeExists: NodeExistsError,
    KazooBadVersion: BadVersionError,
    KazooNotEmpty: NotEmptyError,
}
_GARBLED = (RuntimeError, struct.error, IndexError, UnicodeDecodeError)
"""The exceptions that kazoo raises for an answer that it cannot parse."""
_HAS_POLL = hasattr(select, "poll")  # not on Windows
_DENIED = (NoAuthError, InvalidACLError)
_REFUSED = (AuthFailedError, SessionClosedRequireSaslError)


class BoundedHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """A handler for kazoo that limits the time of an attempt to connect. Connecting and greeting together take at most
    ``attempt_s``, so that no single server can use up a caller's deadline (M5).

    Kazoo itself waits for the whole session timeout for a connection, and for the session timeout divided by the number
    of hosts for the answer to its greeting. A server that is starting accepts the connection and does not answer, and a
    host that is gone never answers. One such attempt would last longer than any call's deadline. Also, an unexpected
    error ends kazoo's connection thread for good.

    ``is_connected`` returns whether the greeting was answered. ``on_connecting`` is called before each attempt.
    ``on_ended`` is called on the connection's thread when the thread ends for any reason, and must not wait.

    With ``tls`` the connection uses a TLS context that we make, because kazoo's context ignores renewed files and
    reports no reason for a failed handshake. ``tls_errors`` holds the reason by server. Kazoo waits for its socket even
    if OpenSSL has already decrypted another answer, so :meth:`select` checks for that.
    """

    def __init__(
        self,
        attempt_s: float,
        is_connected: Callable[[], bool],
        on_ended: Callable[[], None],
        on_connecting: Callable[[], None] = lambda: None,
        tls: Tls | None = None,
        on_tls_error: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._tls, self._on_tls_error = tls, on_tls_error
        self.tls_errors: dict[str, TlsError] = {}
        self._attempt_s, self._is_connected, self._on_ended = attempt_s, is_connected, on_ended
        self._on_connecting = on_connecting
        self._socket: socket.socket | None = None
        self._attempt_ends = self._heard = time.monotonic()

    def create_connection(self, *arguments: Any, **options: Any) -> socket.socket:
        self._on_connecting()
        self._attempt_ends = time.monotonic() + self._attempt_s
        self.tls_errors.pop(_where(options), None)
        made = super().create_connection(*arguments, **{**options, "timeout": self._attempt_s})
        self._socket = made if self._tls is None else self._secured(made, self._tls, options)
        self._heard = time.monotonic()
        return self._socket

    def _secured(self, made: socket.socket, tls: Tls, options: Mapping[str, Any]) -> socket.socket:
        """Return the connection with TLS. The handshake has the rest of the attempt's time. Raises OSError."""
        where = _where(options)
        try:
            made.settimeout(max(0.01, self._attempt_ends - time.monotonic()))
            secured = tls.client().wrap_socket(made, server_hostname=options["hostname"])
        except OSError as error:
            made.close()
            if not isinstance(error, TimeoutError):
                self.tls_errors[where] = failure("ZooKeeper", where, error)
                logger.warning("%s", self.tls_errors[where])
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                self._on_tls_error()
            raise
        return secured

    def select(
        self, readable: list[Any], writable: list[Any], exceptional: list[Any], timeout: float | None = None
    ) -> Any:
        if not self._is_connected():
            left = max(0.0, self._attempt_ends - time.monotonic())
            timeout = left if timeout is None else min(timeout, left)
        decrypted = [each for each in readable if isinstance(each, ssl.SSLSocket) and each.pending()]
        timeout = 0.0 if decrypted else timeout
        ready = poll(readable, writable, timeout) if _HAS_POLL else super().select(readable, writable, [], timeout)
        if decrypted:
            ready = ([*{*ready[0], *decrypted}], *ready[1:])
        if self._socket in ready[0]:
            self._heard = time.monotonic()
        return ready

    def cut_if_silent(self, for_s: float) -> None:
        """Break the connection if nothing arrived on it for ``for_s`` seconds. Kazoo then makes a new connection."""
        if self._socket is not None and time.monotonic() - self._heard >= for_s:
            with contextlib.suppress(OSError):  # already broken
                self._socket.shutdown(socket.SHUT_RDWR)

    def spawn(self, run: Callable[..., None], *arguments: Any, **options: Any) -> Any:
        if isinstance(getattr(run, "__self__", None), ConnectionHandler):
            return super().spawn(self._run_connection, run)
        return super().spawn(run, *arguments, **options)

    def _run_connection(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            logger.error("the thread of the connection to ZooKeeper ended: %r", error)
        finally:
            self._on_ended()


def poll(
    readable: Sequence[Any], writable: Sequence[Any], timeout: float | None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Do the same as kazoo's ``select`` with one system call. Kazoo's function makes and closes a selector each time,
    and is called five times for a request. A broken socket counts as ready. Raises ValueError for a closed socket."""
    poller, events = select.poll(), dict[int, int]()
    for sockets, event in ((readable, select.POLLIN), (writable, select.POLLOUT)):
        for each in sockets:
            number = each.fileno()
            events[number] = events.get(number, 0) | event
            poller.register(number, events[number])
    ready = dict(poller.poll(None if timeout is None else timeout * 1000))
    return (
        [each for each in readable if ready.get(each.fileno(), 0) & ~select.POLLOUT],
        [each for each in writable if ready.get(each.fileno(), 0) & ~select.POLLIN],
        [],
    )


def _where(options: Mapping[str, Any]) -> str:
    return f"{options['hostname']}:{options['address'][1]}"


class ZooKeeperTree:
    """A :class:`~bk_core.metadata.tree.tree.Tree` over ZooKeeper. Call :meth:`connect` before all other methods. A
    forked child cannot use it.

    ``identity`` has the credentials of this process. ``acl`` gives the ACL of every node that this tree creates in the
    cluster whose ledgers root is ``root``.
    """

    def __init__(
        self,
        hosts: tuple[str, ...],
        *,
        timeout_s: float,
        session_timeout_s: float,
        tls: Tls | None = None,
        identity: ZooKeeperIdentity | None = None,
        acl: ZooKeeperAcl = OPEN_TO_ALL,
        root: str = "",
    ) -> None:
        self._hosts, self._hosts_count = ",".join(hosts), len(hosts)
        self._timeout_s, self.session_timeout_s = timeout_s, session_timeout_s
        self._pid = os.getpid()
        self._closed = False
        self._connected = threading.Event()
        self._settled = threading.Event()  # the first connection is usable, or the first attempt has failed for good
        self._identity, self._acl, self._root = identity, acl, root
        self._certificate = "" if tls is None else tls.paths.certificate_path
        self._refused: MetadataAccessError | None = None
        self._presented = False  # an identity was sent and has no answer yet
        self._closing = threading.Event()
        self._changing = threading.Lock()  # held only briefly; guards ``_changes``
        self._changes = 0  # the number of changes of kazoo's state
        self._session_id = 0
        self._listeners: list[Callable[[SessionState], None]] = []
        self._events = Worker("bookkeeper-zookeeper-session")
        self._running = threading.Lock()  # held while kazoo is started or stopped
        attempt_s = attempt_bound_s(timeout_s, session_timeout_s)
        self._silence_s = max(attempt_s, timeout_s / 3)
        self._handler = BoundedHandler(
            attempt_s, self._is_greeted, self._connection_ended, self._present_identity, tls, self._tls_failed
        )
        self._client = KazooClient(
            hosts=self._hosts,
            timeout=session_timeout_s,
            handler=self._handler,
            connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": attempt_s / 2},
            command_retry={"max_tries": 1},  # only this class repeats calls
            logger=_kazoo_logger,
        )
        self._client.add_listener(self._state_changed)
        connection = self._client._connection
        self._unresolved: tuple[str, ...] = ()  # hosts whose names did not resolve at the last attempt
        connection._expand_client_hosts = partial(self._resolve, connection._expand_client_hosts)
        connection._authenticate_with_sasl = partial(_authenticated, connection._authenticate_with_sasl)

    def connect(self) -> None:
        """Begin the session. Raises MetadataUnavailableError at the deadline, TlsError once TLS has failed with every
        server, and MetadataAccessError once a server refuses our identity. After an error no thread of the session runs
        on."""
        with self._running:
            self._client.start_async()
        if not self._settled.wait(self._timeout_s) or not self._connected.is_set():
            self._closed = True
            self._closing.set()
            self._stop_client(wait_s=0)
            if self._refused is not None:
                raise self._refused
            for error in self._handler.tls_errors.copy().values():
                raise error
            raise self._unresolvable(Outcome.NOT_APPLIED) or MetadataUnavailableError(
                f"ZooKeeper did not answer within {self._timeout_s:g} s",
                value=f"hosts {self._hosts}{self._unresolved_in_words()}{self._in_silence()}",
                remedy="check that it runs and that this host may connect to it; for a local one: bk local",
                outcome=Outcome.NOT_APPLIED,
            )

    def _resolve(self, expand: Callable[[], list[tuple[str, str, int]]]) -> list[tuple[str, str, int]]:
        """Return the addresses of all hosts. Kazoo's connection thread calls this before each round of attempts. Kazoo
        silently leaves out a host whose name does not resolve, so this method keeps such names for error texts."""
        found = expand()
        names = {name for name, _, _ in found}
        unresolved = tuple(name for name, _ in self._client.hosts if name not in names)
        if unresolved and unresolved != self._unresolved and found:
            logger.warning("names of ZooKeeper servers do not resolve on this host: %s", ", ".join(unresolved))
        self._unresolved = unresolved
        return found

    def _unresolved_in_words(self) -> str:
        return f"; not resolved on this host: {', '.join(self._unresolved)}" if self._unresolved else ""

    def _unresolvable(self, outcome: Outcome) -> MetadataUnavailableError | None:
        """Return the error to raise if no host has an address, else None."""
        if len(self._unresolved) < self._hosts_count:
            return None
        return MetadataUnavailableError(
            "The name of the ZooKeeper server does not resolve on this host"
            if self._hosts_count == 1
            else "No name of a ZooKeeper server resolves on this host",
            value=f"hosts {self._hosts}",
            remedy="correct the metadata service URI, or make the name known to this host (DNS, /etc/hosts)",
            outcome=outcome,
        )

    @property
    def session_id(self) -> int:
        return self._session_id

    # --- session ---

    def on_session(self, callback: Callable[[SessionState], None]) -> CancelWatch:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def _is_greeted(self) -> bool:
        connected: bool = self._client.connected
        return connected

    def _present_identity(self) -> None:
        """Set the credentials that kazoo sends after the greeting. Kazoo's connection thread calls this before each
        attempt."""
        if self._identity is not None:
            if self._refused is not None:
                self._closing.wait(_REFUSED_PAUSE_S)
            self._identity.refresh()
            self._client.auth_data = self._identity.digests
            self._client._connection.sasl_options = self._identity.sasl

    def _state_changed(self, state: str) -> None:
        """Handle a change of kazoo's state. Kazoo's connection thread calls this, so it must not wait."""
        with self._changing:
            self._changes += 1
            change = self._changes
        if state == KazooState.CONNECTED:
            if self._identity is None:
                self._became_usable(change)
            else:  # kazoo reports the state before it sends the identity; a request is answered after the identity
                self._presented = True
                self._client.exists_async("/").rawlink(partial(self._identity_answered, change))
            return
        self._connected.clear()
        self._tell(state)

    def _identity_answered(self, change: int, answer: Any) -> None:
        if answer.successful():
            self._became_usable(change)
        elif isinstance(answer.exception, _REFUSED) and self._refused is None:
            self._identity_refused()

    def _became_usable(self, change: int) -> None:
        with self._changing:
            if change != self._changes:
                return  # the connection broke meanwhile
            self._session_id = self._client.client_id[0]
            self._refused, self._presented = None, False
            self._connected.set()
            self._settled.set()
            self._tell(KazooState.CONNECTED)

    def _tell(self, state: str) -> None:
        for listener in list(self._listeners):
            self._events.submit(partial(listener, _STATES[state]))

    def _identity_refused(self) -> None:
        self._refused = MetadataAccessError(
            "ZooKeeper refuses the identity of this process",
            value=f"{self._identity} at hosts {self._hosts}",
            remedy="correct the password in the file, or make the identity known to ZooKeeper's servers; "
            f"the file is read and tried again every {_REFUSED_PAUSE_S:g} s",
        )
        logger.error("%s", self._refused)
        self._presented = False
        self._connected.clear()
        self._settled.set()

    def _tls_failed(self) -> None:
        """End the wait for the first connection if TLS failed with every server. Kazoo's connection thread calls this,
        but not for a server that only ended the connection. Such a server may be starting, and is tried again until the
        deadline."""
        if len(self._handler.tls_errors) >= self._hosts_count:
            self._settled.set()

    def _connection_ended(self) -> None:
        """Start kazoo's connection thread again after a pause. The thread itself calls this when it ends."""
        if not self._closed:
            self._events.submit(self._revive, _REVIVE_S)

    def _revive(self) -> None:
        """Start kazoo's connection thread again. Repeat this until it succeeds or this session is closed."""
        with self._running:
            if self._closed:
                return
            logger.error("the connection to ZooKeeper ended and is made again; hosts %s", self._hosts)
            try:
                self._client.start_async()
            except Exception as error:
                logger.error("the connection to ZooKeeper could not be made; the next try follows: %r", error)
                self._events.submit(self._revive, _REVIVE_S)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._closing.set()
            self._listeners.clear()
            if os.getpid() == self._pid:
                self._connected.set()  # wakes callers that wait for a connection
                self._stop_client(wait_s=self._timeout_s)
                self._events.stop()

    def _stop_client(self, wait_s: float) -> None:
        """End the session on another thread, because kazoo may wait for a connect that hangs."""

        def stop() -> None:
            try:
                with self._running:
                    self._client.stop()
                    self._client.close()
            except Exception as error:
                logger.warning("ending the session with ZooKeeper failed: %s", error)

        thread = threading.Thread(target=stop, name="bookkeeper-zookeeper-stop", daemon=True)
        thread.start()
        thread.join(wait_s)

    # --- reads ---

    def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, NodeStat]:
        data, stat = self._read(path, lambda: self._client.get_async(path, _watcher(watch)))
        return data, _stat(stat)

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        answers = self._read_many(paths, self._client.get_async)
        return [None if answer is None else (answer[0], _stat(answer[1])) for answer in answers]

    def _read_many(self, paths: Sequence[str], send: Callable[[str], Any]) -> list[Any]:
        """Send requests about many nodes, and return their answers, with None for each node that does not exist."""
        found: list[Any] = []
        for start in range(0, len(paths), _READS_AT_ONCE):
            batch = paths[start : start + _READS_AT_ONCE]
            deadline = time.monotonic() + self._timeout_s
            self._await_connection(batch[0], deadline)
            sent = [send(path) for path in batch]
            found += [self._finish(path, result, send, deadline) for path, result in zip(batch, sent, strict=True)]
        return found

    def _finish(self, path: str, sent: Any, send: Callable[[str], Any], deadline: float) -> Any:
        results = iter([sent])
        try:
            return self._read(path, lambda: next(results, None) or send(path), deadline)
        except NoNodeError:
            return None

    def exists(self, path: str) -> NodeStat | None:
        stat = self._read(path, lambda: self._client.exists_async(path))
        return None if stat is None else _stat(stat)

    def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        return sorted(self._read(path, lambda: self._client.get_children_async(path, _watcher(watch))))

    def sync(self, path: str) -> None:
        self._read(path, lambda: self._client.sync_async(path))

    def _read(self, path: str, send: Callable[[], Any], deadline: float | None = None) -> Any:
        deadline = deadline or time.monotonic() + self._timeout_s
        while True:
            self._await_connection(path, deadline)
            try:
                return self._answer(send(), deadline)
            except (ConnectionLoss, SessionExpiredError) as error:
                if time.monotonic() + _REPEAT_S >= deadline:
                    raise self._unavailable(path, Outcome.NOT_APPLIED) from error
                time.sleep(_REPEAT_S)
            except KazooTimeoutError as error:
                raise self._unavailable(path, Outcome.NOT_APPLIED) from error
            except KazooException as error:
                raise self._translated(path, error, Outcome.NOT_APPLIED) from error
            except _GARBLED as error:  # kazoo's connection thread ends and is started again
                if time.monotonic() + _REVIVE_S >= deadline:
                    raise self._unavailable(path, Outcome.NOT_APPLIED) from error
                time.sleep(_REVIVE_S)

    def _await_connection(self, path: str, deadline: float) -> None:
        """Wait for a usable connection. A request is given to kazoo only with a connection, because kazoo's queue
        blocks when it is full."""
        self._check_usable()
        if self._refused is not None and not self._connected.is_set():
            raise self._refused_at(path, self._refused)
        if not self._connected.wait(max(0.0, deadline - time.monotonic())) or self._closed:
            raise self._unavailable(path, Outcome.NOT_APPLIED)

    def _answer(self, sent: Any, deadline: float) -> Any:
        """Wait for the answer to a read. Break a connection that is silent for too long, so that the read is repeated
        on another connection.

        A write is not handled like this. It waits until its deadline, because a server with a slow disk answers late,
        and a broken connection would make the outcome UNKNOWN.
        """
        while (left := max(0.0, deadline - time.monotonic())) > self._silence_s:
            try:
                return sent.get(timeout=self._silence_s)
            except KazooTimeoutError:
                self._handler.cut_if_silent(self._silence_s)
        return sent.get(timeout=left)

    # --- writes ---

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        made: str = self._write(
            path,
            len(data),
            lambda: self._client.create_async(path, data, self._acl_of(path), ephemeral=ephemeral, sequence=sequential),
        )
        return made

    def set(self, path: str, data: bytes, version: int) -> int:
        stat = self._write(path, len(data), lambda: self._client.set_async(path, data, version))
        return int(stat.version)

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._write(path, 0, lambda: self._client.delete_async(path, version))

    def multi(self, ops: Sequence[Op]) -> list[str]:
        if not ops:
            return []
        transaction = self._client.transaction()
        for op in ops:
            _add(transaction, op, self._acl_of(op.path) if isinstance(op, Create) else [])
        size = multi_bytes(ops)
        if self._acl.members:
            size += sum(acl_bytes(self._acl.of(op.path, self._root)) for op in ops if isinstance(op, Create))
        sent = self._write(ops[0].path, size, transaction.commit_async, MULTI_BYTES_MAX)
        for op, result in zip(ops, sent, strict=True):
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                raise self._translated(op.path, result, Outcome.NOT_APPLIED) from result
        return [result for op, result in zip(ops, sent, strict=True) if isinstance(op, Create)]

    def _acl_of(self, path: str) -> list[Any]:
        """Return the ACL for a new node."""
        return _kazoo_acl(self._acl.of(path, self._root))

    # --- ACLs of nodes that exist ---

    def acls(self, paths: Sequence[str]) -> list[tuple[Acl, int] | None]:
        """Return the ACLs of many nodes with their versions, in one round trip, with None for each node that does not
        exist."""
        return [
            None
            if answer is None
            else (tuple(AclGrant(line.perms, line.id.scheme, line.id.id) for line in answer[0]), answer[1].aversion)
            for answer in self._read_many(paths, self._client.get_acls_async)
        ]

    def set_acl(self, path: str, acl: Acl, version: int) -> None:
        """Give a node another ACL if its present ACL has this version. Raises NoNodeError, BadVersionError."""
        self._write(path, 0, lambda: self._client.set_acls_async(path, _kazoo_acl(acl), version))

    def set_acls(self, changes: Sequence[tuple[str, Acl, int]]) -> int:
        """Do the same as :meth:`set_acl` for many nodes in one round trip, and return the number of nodes that were
        changed. A node that does not exist, or has another version, is skipped."""
        if not changes:
            return 0
        self._await_connection(changes[0][0], time.monotonic() + self._timeout_s)
        sent = [self._client.set_acls_async(path, _kazoo_acl(acl), version) for path, acl, version in changes]
        changed = 0
        for (path, _, _), answer in zip(changes, sent, strict=True):
            with contextlib.suppress(NoNodeError, BadVersionError):
                self._write(path, 0, partial(_same, answer))
                changed += 1
        return changed

    def _write(self, path: str, size: int, send: Callable[[], Any], size_max: int = NODE_BYTES_MAX) -> Any:
        if size > size_max:
            raise InvalidArgumentError(f"A record has at most {size_max} bytes", value=f"{path}: {size} bytes")
        deadline = time.monotonic() + self._timeout_s
        self._await_connection(path, deadline)
        try:
            return send().get(timeout=max(0.0, deadline - time.monotonic()))
        except SessionExpiredError as error:  # the server refused the write, or it was never sent
            raise self._unavailable(path, Outcome.NOT_APPLIED) from error
        except (ConnectionLoss, KazooTimeoutError) as error:
            raise self._unavailable(path, Outcome.UNKNOWN) from error
        except KazooException as error:
            raise self._translated(path, error, Outcome.UNKNOWN) from error
        except _GARBLED as error:
            raise self._unavailable(path, Outcome.UNKNOWN) from error

    # --- errors ---

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandleError(
                "A metadata store was used in a forked process", remedy="open another one after the fork"
            )
        if self._closed:
            raise ClientClosedError("The metadata store is closed", outcome=Outcome.NOT_APPLIED)

    def _unavailable(self, path: str, outcome: Outcome) -> MetadataUnavailableError | ClientClosedError:
        if self._closed:
            return ClientClosedError("The metadata store was closed meanwhile", value=path, outcome=outcome)
        failed = "".join(f"; {error.what}: {error.value}" for error in self._handler.tls_errors.copy().values())
        unresolvable = None if self._connected.is_set() else self._unresolvable(outcome)
        failed += self._unresolved_in_words()
        return unresolvable or MetadataUnavailableError(
            "ZooKeeper did not answer" if self._connected.is_set() else "The connection to ZooKeeper is broken",
            value=f"{path} at hosts {self._hosts}, deadline {self._timeout_s:g} s{failed}{self._in_silence()}",
            remedy="check that ZooKeeper runs and is reachable",
            outcome=outcome,
        )

    def _translated(self, path: str, error: Exception, outcome: Outcome) -> Exception:
        for theirs, ours in _ANSWERS.items():
            if isinstance(error, theirs):
                return ours(path)
        if isinstance(error, (*_DENIED, *_REFUSED)):
            return self._denied(path, error)
        return MetadataUnavailableError(f"ZooKeeper answered {type(error).__name__}", value=path, outcome=outcome)

    def _in_silence(self) -> str:
        """Return a hint for error texts if ZooKeeper has answered the greeting, but not the identity of scheme sasl."""
        if not self._presented or self._identity is None or self._identity.sasl is None:
            return ""
        return f"; it greets and does not answer {self._identity}: perhaps it is not set up for SASL"

    def _refused_at(self, path: str, refused: MetadataAccessError) -> MetadataAccessError:
        return MetadataAccessError(refused.what, value=f"{path}, as {refused.value}", remedy=refused.remedy)

    def _denied(self, path: str, error: Exception) -> MetadataAccessError:
        who = str(self._identity or "no identity: zookeeper_auth_path is not set")
        if self._certificate:
            who += f", and the certificate {self._certificate}"
        if isinstance(error, _REFUSED):
            return MetadataAccessError(
                "ZooKeeper refuses sessions without a known identity",
                value=f"{path}, as {who}",
                remedy="give the identity, of scheme sasl if ZooKeeper requires that, with zookeeper_auth_path",
            )
        if isinstance(error, InvalidACLError):
            return MetadataAccessError(
                "A new node needs an owner, and ZooKeeper knows no identity of this process",
                value=f"{path}, zookeeper_acl={self._acl.text!r}, as {who}",
                remedy="give zookeeper_auth_path, or a certificate where ZooKeeper has the provider for x509; "
                "identities in zookeeper_acl are written scheme:name",
            )
        return MetadataAccessError(
            "ZooKeeper's ACLs do not allow this process to do that",
            value=f"{path}, as {who}",
            remedy="give the identity that may, with zookeeper_auth_path (a wrong password of scheme digest shows only "
            "here), or change the ACLs with bk cluster secure-zookeeper",
        )


def attempt_bound_s(timeout_s: float, session_timeout_s: float) -> float:
    """Return the time limit, in seconds, for connecting to one server. Several attempts fit into a call's deadline and
    into the session timeout, but each attempt is long enough for a handshake with a busy server."""
    return min(max(timeout_s / 4, _ATTEMPT_MIN_S), session_timeout_s / 3)


def _authenticated(authenticate: Callable[..., None], *arguments: Any) -> None:
    """Run kazoo's SASL exchange, and convert its errors. If the connection breaks, raise the error after which kazoo
    makes a new connection. Raise AuthFailedError only for a real refusal. (ZooKeeper before 3.6 closes the connection
    instead of refusing.)"""
    try:
        authenticate(*arguments)
    except AuthFailedError as error:
        if isinstance(error.__cause__, ConnectionDropped):
            raise error.__cause__ from None
        raise
    except (SASLException, SessionClosedRequireSaslError) as error:
        raise AuthFailedError(repr(error)) from error


def _same(answer: Any) -> Any:
    return answer


def _watcher(watch: Watcher | None) -> Callable[[Any], None] | None:
    return None if watch is None else lambda _event: watch()


def _stat(stat: Any) -> NodeStat:
    return NodeStat(stat.version, stat.ctime, stat.ephemeralOwner, stat.mtime)


def _kazoo_acl(acl: Acl) -> list[Any]:
    return [ACL(grant.rights, Id(grant.scheme, grant.name)) for grant in acl]


def _add(transaction: Any, op: Op, acl: list[Any]) -> None:
    match op:
        case Create():
            transaction.create(op.path, op.data, acl, ephemeral=op.ephemeral, sequence=op.sequential)
        case Set():
            transaction.set_data(op.path, op.data, op.version)
        case Delete():
            transaction.delete(op.path, op.version)
        case Check():
            transaction.check(op.path, op.version)
