# SPDX-License-Identifier: Apache-2.0
"""Mutants of TLS: who is believed, what is never sent in plain, which files count."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TLS = "bk_core/tls.py"
_SOCKET = "bk_core/transport/tls_socket.py"
_DIRECT = "bk_core/transport/direct.py"
_WIRE = "bk_core/transport/bookie_rpc/connection.py"
_LANES = "bk_core/transport/lanes.py"
_PORTS = "bookie_server/services/tls.py"
_SESSION = "bk_core/metadata/zookeeper/session.py"
_SESSION_TEST = "tests/metadata/test_zookeeper_tls.py"
_TEST = "tests/bookie_server/services/test_tls.py"
_SOCKET_TEST = "tests/transport/test_tls_socket.py"
_UNIT = "tests/protocol/test_tls.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "an identity may have line breaks",
        "bk_core/tls.py",
        " or not found[0].isprintable():",
        ":",
        ("tests/protocol/test_tls.py::test_a_certificate_without_such_a_name_is_refused",),
        "who has a certificate writes lines of the log",
    ),
    Mutant(
        "a bookie's certificate need not have the name of its host",
        _TLS,
        "    client.check_hostname = paths.verify_host\n",
        "    client.check_hostname = False\n",
        (f"{_TEST}::test_a_bookie_with_a_wrong_certificate_is_named_with_the_reason",),
        "whoever has any certificate of the authority plays every bookie",
    ),
    Mutant(
        "a client of the direct lane speaks plain to a bookie that does not say that it speaks TLS",
        _DIRECT,
        "plain if self.tls is None else await",
        'plain if self.tls is None or "tls" not in self.endpoint.extensions else await',
        (f"{_TEST}::test_a_client_with_tls_never_falls_back",),
        "who can change a registration reads all entries",
    ),
    Mutant(
        "a client of Apache's wire speaks plain although it was told to use TLS",
        _WIRE,
        "                if self._tls is None:\n",
        "                if True:\n",
        (f"{_TEST}::test_a_client_with_tls_never_falls_back",),
        "entries and passwords' keys are sent in plain",
    ),
    Mutant(
        "certificates are read once",
        _TLS,
        "            if stamps != self._stamps:\n",
        "            if stamps is None:\n",
        (f"{_TEST}::test_new_certificates_are_taken_without_a_restart",),
        "a bookie serves with an expired certificate until somebody restarts it",
    ),
    Mutant(
        "files that are half written are an error of the connection that looks",
        _TLS,
        "                except InvalidArgumentError as error:\n                    if self._failed",
        "                except ZeroDivisionError as error:\n                    if self._failed",
        (f"{_TEST}::test_half_a_rotation_serves_with_the_old_files_until_it_is_whole",),
        "clients are refused while certificates are renewed",
    ),
    Mutant(
        "clients may leave their certificate out",
        _TLS,
        "    server.verify_mode = ssl.CERT_REQUIRED if",
        "    server.verify_mode = ssl.CERT_OPTIONAL if",
        (f"{_TEST}::test_a_client_with_a_wrong_certificate_is_refused_with_the_reason_in_the_log",),
        "mutual TLS lets everybody in",
    ),
    Mutant(
        "a port with TLS goes on with a client that speaks plain",
        _PORTS,
        "            return sock, PLAIN_REFUSED\n",
        '            return sock, ""\n',
        (f"{_TEST}::test_the_unix_socket_speaks_tls_too", f"{_TEST}::test_a_client_without_tls_is_refused"),
        "TLS is a matter of the client's taste",
    ),
    Mutant(
        "on Apache's wire every identity is let in",
        "bookie_server/services/bookie_rpc/server.py",
        "            self.connection.cut(refused)\n",
        "            pass\n",
        (f"{_TEST}::test_only_identities_of_the_list_are_let_in",),
        "tls_clients does not hold on the port of Apache's clients",
    ),
    Mutant(
        "a pattern's brackets and question marks stand for other text",
        _TLS,
        '    return "".join(f"[{each}]" if each in "[?" else each for each in pattern)',
        "    return pattern",
        (f"{_UNIT}::test_only_a_star_in_a_pattern_stands_for_other_text",),
        "identities are let in that the list does not name",
    ),
    Mutant(
        "of several SPIFFE identities the first one counts",
        _TLS,
        "        if len(found) != 1 or",
        "        if not found or",
        (f"{_UNIT}::test_a_certificate_without_such_a_name_is_refused",),
        "a certificate for another service is let in under a second name",
    ),
    Mutant(
        "what OpenSSL has and nobody has taken waits for more to come",
        _SOCKET,
        "        if self._reading and self._tls.pending():\n",
        "        if False:\n",
        (
            f"{_SOCKET_TEST}::test_what_openssl_has_decrypted_is_taken_although_nothing_more_comes",
            f"{_SOCKET_TEST}::test_bytes_behind_the_preamble_that_came_in_its_record_are_not_lost",
        ),
        "a client hangs whose hello came with its preamble",
    ),
    Mutant(
        "what the system did not take of an encrypted piece is forgotten",
        _SOCKET,
        "        while self._unsent:\n            self._unsent = self._unsent[self.plain.send(self._unsent) :]\n",
        "        if self._unsent:\n            self.plain.send(self._unsent)\n        self._unsent = memoryview(b'')\n",
        (f"{_SOCKET_TEST}::test_messages_of_every_size_come_as_they_went_whatever_the_system_takes",),
        "a stream breaks when a reader is slow",
    ),
    Mutant(
        "other bytes are encrypted while a piece has not left",
        _SOCKET,
        "        if not self._piece_bytes:\n            piece = _first_piece(buffers)\n",
        "        if True:\n            piece = _first_piece(buffers)\n",
        (f"{_SOCKET_TEST}::test_messages_of_every_size_come_as_they_went_whatever_the_system_takes",),
        "entries come twice when a reader is slow, and the stream breaks",
    ),
    Mutant(
        "why a client is refused is not sent to it",
        _SOCKET,
        "                self._encrypted()  # why, in a word\n",
        "",
        (f"{_TEST}::test_a_client_with_a_wrong_certificate_is_refused_with_the_reason_in_the_log",),
        "a user whose certificate has expired hears of a closed connection",
    ),
    Mutant(
        "a plain client is not told that a bookie speaks TLS",
        _LANES,
        "            if self._caller.tls is None and",
        "            if self._closed and",
        (f"{_TEST}::test_a_client_without_tls_is_refused",),
        "the user hears of a closed socket, and not what to set",
    ),
    Mutant(
        "what OpenSSL has decrypted of ZooKeeper's answers waits for more to come",
        _SESSION,
        "each.pending()]",
        "each.pending() < 0]",
        (f"{_SESSION_TEST}::test_an_answer_that_openssl_has_decrypted_counts_as_ready",),
        "reads from ZooKeeper take seconds now and then",
    ),
    Mutant(
        "a session over TLS is made with a server that has another host's certificate",
        _SESSION,
        'server_hostname=options["hostname"])',
        'server_hostname="127.0.0.1")',
        (f"{_SESSION_TEST}::test_a_server_that_is_not_to_be_believed_is_named_with_the_reason",),
        "whoever has any certificate of the authority plays ZooKeeper",
    ),
    Mutant(
        "a session that was to be over TLS is in plain",
        _SESSION,
        "        self._socket = made if self._tls is None else",
        "        self._socket = made if self._tls else",
        (f"{_SESSION_TEST}::test_a_server_without_tls_is_not_spoken_to_in_plain",),
        "passwords of ledgers are read by whoever listens",
    ),
    Mutant(
        "the admin port tells everything to clients without a certificate",
        "bookie_server/web/http.py",
        "        if not certificate:\n            return stranger, NEEDS_TOKEN if tls.wants_tokens else",
        '        if not certificate:\n            return stranger, "" if tls.wants_tokens or True else',
        (f"{_TEST}::test_the_admin_port_answers_https_only",),
        "records of ledgers and settings are read by whoever reaches the port",
    ),
    Mutant(
        "a writer whose bookies do not let it in asks for more bookies",
        "bk_core/client/writer.py",
        "        error = self._sessions.because(error, pending=not self._machine.settled)\n",
        "",
        (f"{_TEST}::test_a_writer_without_bookies_says_why_they_are_missing_and_what_to_do",),
        "the user starts bookies instead of renewing a certificate",
    ),
    Mutant(
        "admin ports are asked in plain although the client was told to use TLS",
        "bookie_server/web/others.py",
        "    context, name = (None, None) if tls is None else",
        "    context, name = (None, None) if True else",
        (f"{_TEST}::test_the_admin_port_answers_https_only",),
        "settings and metrics are read by whoever listens",
    ),
    Mutant(
        "a bookie's own client speaks plain to ZooKeeper",
        "bookie_server/config.py",
        """(self, name)) for name in _TLS_PATHS}, "tls_zookeeper": self.tls_zookeeper}""",
        """(self, name)) for name in _TLS_PATHS}}""",
        ("tests/protocol/test_tls.py::test_every_door_has_the_tls_that_its_settings_say",),
        "a bookie with auto-recovery does not start where ZooKeeper wants TLS",
    ),
)
