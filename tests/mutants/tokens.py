# SPDX-License-Identifier: Apache-2.0
"""Mutants of tokens: what is believed, who gets past the door without one, and what outlives it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TOKENS = "bookie_server/services/tokens.py"
_TLS = "bookie_server/services/tls.py"
_LANES = "bookie_server/services/lane_streams.py"
_AUTH = "bookie_server/services/bookie_rpc/auth.py"
_RPC = "bookie_server/services/bookie_rpc/connection.py"
_HTTP = "bookie_server/web/http.py"
_CLIENT = "bk_core/transport"
_UNIT = "tests/bookie_server/services/test_tokens.py"
_PORTS = "tests/bookie_server/services/test_token_ports.py"
_WRONG = f"{_UNIT}::test_a_token_that_says_something_else_is_refused"
_REFUSED = f"{_PORTS}::test_a_client_with_a_wrong_token_hears_a_safe_reason_and_the_log_has_all_of_it"
_APACHE = f"{_PORTS}::test_nothing_but_auth_is_done_on_apaches_wire_before_a_token_is_shown"
_ADMIN = f"{_PORTS}::test_the_admin_port_wants_a_token_for_all_but_probes"
_SESSION = f"{_PORTS}::test_a_session_ends_with_its_token_and_a_writer_goes_on_with_the_next_one"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a token's end is not looked at",
        _TOKENS,
        '            options={"require": ["exp", "iat", "sub", "aud"]},\n',
        '            options={"require": ["exp", "iat", "sub", "aud"], "verify_exp": False},\n',
        (_WRONG,),
        "a stolen token is good for ever",
    ),
    Mutant(
        "a token needs no end",
        _TOKENS,
        '["exp", "iat", "sub", "aud"]',
        '["iat", "sub", "aud"]',
        (_WRONG,),
        "a token without an end is good for ever, or ends the stream by an exception",
    ),
    Mutant(
        "a token for another cluster counts",
        _TOKENS,
        '            options={"require": ["exp", "iat", "sub", "aud"]},\n',
        '            options={"require": ["exp", "iat", "sub", "aud"], "verify_aud": False},\n',
        (_WRONG,),
        "a token of a test cluster opens production, if they have an issuer in common",
    ),
    Mutant(
        "a token's signature is not looked at",
        _TOKENS,
        '            options={"require": ["exp", "iat", "sub", "aud"]},\n',
        '            options={"require": ["exp", "iat", "sub", "aud"], "verify_signature": False},\n',
        (f"{_UNIT}::test_another_keys_signature_and_a_changed_token_are_refused",),
        "everybody is whom they say",
    ),
    Mutant(
        "the token says by which algorithm it is verified",
        _TOKENS,
        '    if header.get("alg") != key.algorithm:\n'
        '        raise TokenRefusedError(f"its key is for {key.algorithm}, and it says another algorithm")\n'
        "    return key\n",
        '    return Key(str(header.get("alg")), key.public)\n',
        (f"{_UNIT}::test_the_key_says_which_algorithm_it_is_for",),
        "the way to none and to HS256 with a public key",
    ),
    Mutant(
        "any key of the file will do",
        _TOKENS,
        'key = next(iter(keys.values())) if kid is None and len(keys) == 1 else keys.get(kid or "")',
        "key = next(iter(keys.values()))",
        (f"{_UNIT}::test_a_token_of_each_algorithm_names_its_subject_until_it_ends",),
        "no key can be changed with an overlap",
    ),
    Mutant(
        "a token may live as long as its issuer likes",
        _TOKENS,
        "    if ends - begins > LIFE_S_MAX:\n",
        "    if ends - begins > 1000 * LIFE_S_MAX:\n",
        (_WRONG,),
        "a token that is found in a year-old file opens the cluster",
    ),
    Mutant(
        "a subject may have line ends",
        _TOKENS,
        "not _SUBJECT.fullmatch(subject)",
        "not subject",
        (_WRONG,),
        "a client writes lines of its own into the log",
    ),
    Mutant(
        "a shared secret is a key",
        _TOKENS,
        '    if kind == "oct" or "k" in entry:\n',
        '    if kind == "octet":\n',
        (f"{_UNIT}::test_a_file_of_keys_that_cannot_be_used_stops_the_start",),
        "every bookie could sign tokens",
    ),
    Mutant(
        "a private key in the file of keys is nobody's business",
        _TOKENS,
        '    if "d" in entry:\n',
        '    if "D" in entry:\n',
        (f"{_UNIT}::test_a_file_of_keys_that_cannot_be_used_stops_the_start",),
        "the issuer's key lies on every bookie",
    ),
    Mutant(
        "keys are read once",
        _TOKENS,
        "            if stamp not in (self._stamp, self._failed):\n",
        "            if stamp is self._stamp:\n",
        (f"{_UNIT}::test_keys_are_changed_with_an_overlap_and_without_a_restart",),
        "a key that was taken away goes on opening the bookie until it restarts",
    ),
    Mutant(
        "a file of keys that is half written is an error of the client that comes",
        _TOKENS,
        "                except InvalidArgumentError as error:\n                    self._failed = stamp\n",
        "                except ZeroDivisionError as error:\n                    self._failed = stamp\n",
        (f"{_UNIT}::test_a_file_that_is_half_written_keeps_the_old_keys_with_one_warning",),
        "clients are refused while keys are changed",
    ),
    Mutant(
        "the clocks of issuer and bookie must agree",
        _TOKENS,
        "            leeway=LEEWAY_S,\n",
        "",
        (f"{_UNIT}::test_clocks_may_differ_a_little_and_no_more",),
        "new tokens are refused by bookies that are a second behind",
    ),
    Mutant(
        "a client that shows nothing is let in",
        _TLS,
        "        if self._keys is None or (not token and principal.proof is not Proof.NONE):\n",
        "        if self._keys is None or not token:\n",
        (f"{_REFUSED}[none-direct]",),
        "who leaves the token out needs none",
    ),
    Mutant(
        "the list of identities is not for tokens",
        _TLS,
        "        if not self._admission.lets_in(claims.subject):\n",
        "        if not self._admission:\n",
        (f"{_REFUSED}[identity-direct]",),
        "whoever has any token of the issuer is let in",
    ),
    Mutant(
        "the log of a refusal has the token",
        _TLS,
        "            self.refused(principal.peer, port, str(error))\n            raise AuthenticationError(error.told)",
        '            self.refused(principal.peer, port, f"{error}: {token.decode()}")\n'
        "            raise AuthenticationError(error.told)",
        (f"{_REFUSED}[audience-direct]",),
        "who reads the log is every client",
    ),
    Mutant(
        "a certificate says more than a token",
        _TLS,
        "        if self._keys is None or (not token and principal.proof is not Proof.NONE):\n",
        "        if self._keys is None or principal.proof is not Proof.NONE:\n",
        (f"{_PORTS}::test_where_either_will_do_a_certificate_is_enough_and_a_token_says_more",),
        "the same client is another one on gRPC, which sees no certificate",
    ),
    Mutant(
        "hello: a stream in mode secure keeps the rights of who it was before its token",
        _LANES,
        '                self.gate = Gate(facts.authority, self.principal.identity or "")\n',
        "                pass\n",
        (f"{_PORTS}::test_in_mode_secure_roles_go_to_the_identities_of_tokens",),
        "no client with a token may anything",
    ),
    Mutant(
        "hello: a refused client goes on",
        _LANES,
        "            self._hello, self.closing = refusal(facts, error.what), error.what\n"
        "            self.wake()\n            return False\n",
        "            self._hello = refusal(facts, error.what)\n            self.wake()\n            return True\n",
        (f"{_PORTS}::test_what_comes_with_a_hello_that_is_refused_is_not_done_nor_what_comes_behind_it",),
        "a client that does not look at the answer to hello writes and reads",
    ),
    Mutant(
        "hello: a token of any mechanism counts",
        _LANES,
        'said.token if said.mechanism == MECHANISM else b""',
        "said.token",
        (f"{_PORTS}::test_hello_with_another_mechanism_shows_nothing",),
        "a later mechanism's secret is taken for a token, and logged as one that is wrong",
    ),
    Mutant(
        "Apache's wire: what comes before AUTH is done",
        _AUTH,
        "        return self.principal.proof is not Proof.NONE\n",
        "        return True\n",
        (_APACHE,),
        "who never sends AUTH needs no token",
    ),
    Mutant(
        "Apache's wire: an AUTH of any plug-in is enough",
        _AUTH,
        "        if message.authPluginName != PLUGIN:\n",
        '        if message.authPluginName == "sasl":\n',
        (_APACHE,),
        "a token meant for something else is shown to whom it is not meant",
    ),
    Mutant(
        "Apache's wire: a refused client stays connected",
        _RPC,
        '        if status is not Status.EOK:\n            self.close("the client is refused")\n',
        "        if status is not Status.EOK:\n            pass\n",
        (_APACHE, f"{_PORTS}::test_version_2_shows_its_token_too_and_is_closed_if_that_is_wrong"),
        "tokens can be tried as fast as the network is, and a client of version 2 hears nothing at all",
    ),
    Mutant(
        "Apache's wire: the connection is not the token's identity",
        _RPC,
        "        self.principal = principal\n        if self._facts.authority",
        "        if self._facts.authority",
        (f"{_PORTS}::test_version_2_shows_its_token_too_and_is_closed_if_that_is_wrong",),
        "it never ends, and has no rights",
    ),
    Mutant(
        "the admin port answers every path without a token",
        _HTTP,
        "        if not_let_in and (request.path not in self._free",
        "        if False and (request.path not in self._free",
        (_ADMIN,),
        "settings and metrics are for everybody who reaches the port",
    ),
    Mutant(
        "the admin port takes a PUT without a token",
        _HTTP,
        'or request.method != "GET"):\n',
        'or request.method != "GET") and request.method == "GET":\n',
        (_ADMIN,),
        "anybody turns on the log of everything",
    ),
    Mutant(
        "the admin port: of two headers the last one counts",
        _HTTP,
        'b"transfer-encoding", b"authorization"):',
        'b"transfer-encoding"):',
        (_ADMIN,),
        "a proxy in front lets one token pass, and another one counts",
    ),
    Mutant(
        "a session outlives its token",
        "bookie_server/services/clients.py",
        "if each.principal.until_s <= now]:\n",
        "if each.principal.until_s <= 0]:\n",
        (_SESSION,),
        "who has once shown a token never needs another one",
    ),
    Mutant(
        "our client reads its token once",
        f"{_CLIENT}/lane_streams.py",
        "                stream.prove(self._token.read())\n",
        "                self._said.token = self._said.token or self._token.read()\n"
        "                stream.prove(self._said.token)\n",
        (f"{_PORTS}::test_new_keys_are_taken_without_a_restart[direct]",),
        "a reader that opens its stream hours after the writer's shows a token that has ended",
    ),
    Mutant(
        "our client sends its token without TLS",
        f"{_CLIENT}/lane_streams.py",
        "            if self._token is not None and self.tls is not None:\n",
        "            if self._token is not None:\n",
        (f"{_PORTS}::test_a_token_is_sent_over_tls_only",),
        "who listens is this client",
    ),
    Mutant(
        "our client sends its token without TLS on Apache's wire",
        f"{_CLIENT}/bookie_rpc/connection.py",
        "token if tls is not None else None\n",
        "token\n",
        (f"{_PORTS}::test_a_token_is_sent_over_tls_only",),
        "who listens is this client",
    ),
    Mutant(
        "our client on Apache's wire does not wait for the answer to AUTH",
        f"{_CLIENT}/bookie_rpc/connection.py",
        "while self._transport is not None and self._writable and self._proof is None:\n",
        "while self._transport is not None and self._writable:\n",
        (f"{_REFUSED}[expired-bookie-rpc]",),
        "entries are sent to a bookie that refuses them, and their fate is unknown",
    ),
    Mutant(
        "a client that is refused blames the ledger's password",
        f"{_CLIENT}/bookie_rpc/exchange.py",
        "                if refuses_all(item):\n",
        "                if not item:\n",
        (
            "tests/transport/test_bookie_rpc_exchange.py::test_eua_with_a_header_alone_is_about_who_asks_and_not_about_a_password",
        ),
        "an operator looks for a wrong password that there is not",
    ),
)
