# SPDX-License-Identifier: Apache-2.0
"""Mutants of who we are to ZooKeeper, and of who may do what to the nodes there."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ACL = "bk_core/metadata/acl.py"
_SESSION = "bk_core/metadata/zookeeper/session.py"
_IDENTITY = "bk_core/metadata/zookeeper/identity.py"
_SECURING = "bk_core/metadata/zookeeper/securing.py"
_STORE = "bk_core/metadata/tree/store.py"
_TABLE_TEST = "tests/metadata/test_acl.py"
_AUTH_TEST = "tests/metadata/test_zookeeper_auth.py"
_OWNER = f"{_AUTH_TEST}::test_a_node_belongs_to_the_identity_that_created_it"
_ROLES = f"{_AUTH_TEST}::test_roles_bound_what_a_client_may_and_a_stranger_may_nothing"
_AGAIN = f"{_AUTH_TEST}::test_the_identity_is_presented_again_after_a_loss_and_from_a_file_that_was_changed"
_RUNNING = "tests/e2e/test_zookeeper_acl.py::test_a_running_cluster_gets_acls_and_gives_them_up_again"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a node that is created alone gets no ACL",
        _SESSION,
        "self._client.create_async(path, data, self._acl_of(path), ephemeral",
        "self._client.create_async(path, data, None, ephemeral",
        (_OWNER,),
        "everybody may change what an administrator believes to be guarded",
    ),
    Mutant(
        "a node that is created in a transaction gets no ACL",
        _SESSION,
        "transaction.create(op.path, op.data, acl, ephemeral",
        "transaction.create(op.path, op.data, None, ephemeral",
        (_ROLES,),
        "everybody may change the records of ledgers",
    ),
    Mutant(
        "a client may write cookies",
        _ACL,
        '    ("the folder of cookies", r"/cookies", "r", "rcd", "r"),\n',
        '    ("the folder of cookies", r"/cookies", "rcd", "rcd", "r"),\n',
        (_TABLE_TEST, _ROLES),
        "a client takes a bookie's place",
    ),
    Mutant(
        "a client may delete what stands at the root",
        _ACL,
        '    ("the ledgers root", r"", "rc", "rc", "rc"),\n',
        '    ("the ledgers root", r"", "rcd", "rc", "rc"),\n',
        (_TABLE_TEST,),
        "a client deletes INSTANCEID, and no bookie starts any more",
    ),
    Mutant(
        "a node that nothing knows may be written by every role",
        _ACL,
        '_OTHER = ("what nothing here knows", ("r", "r", "r"))',
        '_OTHER = ("what nothing here knows", ("rwcd", "rwcd", "rwcd"))',
        (_TABLE_TEST,),
        "a record of a later version is guarded by nobody",
    ),
    Mutant(
        "an identity of several roles has the rights of the last one",
        _ACL,
        "rights[scheme, name] = rights.get((scheme, name), 0) | own",
        "rights[scheme, name] = own",
        (f"{_TABLE_TEST}::test_who_has_several_roles_has_the_rights_of_all",),
        "a bookie that is also a client cannot register",
    ),
    Mutant(
        "a password that stands where a hash belongs is shown",
        _ACL,
        'return re.sub(r"(digest:[^:;]*:)[^;\']*", r"\\1…", text)',
        "return text",
        (f"{_TABLE_TEST}::test_no_error_shows_a_password",),
        "a password is in logs",
    ),
    Mutant(
        "the password is in the name of a credential that is printed",
        _IDENTITY,
        "    password: str = field(repr=False)\n",
        "    password: str = field()\n",
        (f"{_TABLE_TEST}::test_no_error_shows_a_password",),
        "a password is in tracebacks",
    ),
    Mutant(
        "the file of credentials is read once",
        _IDENTITY,
        "            self._read = read_credentials(self.path)\n        except",
        "            pass\n        except",
        (_AGAIN,),
        "a new password needs a restart of everything",
    ),
    Mutant(
        "a digest is not presented",
        _SESSION,
        "            self._client.auth_data = self._identity.digests\n",
        "            self._client.auth_data = set()\n",
        (_OWNER,),
        "a process has no identity, whatever its file says",
    ),
    Mutant(
        "a refused password is tried until the deadline",
        _SESSION,
        "        elif isinstance(answer.exception, _REFUSED) and self._refused is None:\n",
        "        elif False:\n",
        (f"{_AUTH_TEST}::test_a_wrong_password_is_told_at_once_and_by_the_file_that_has_it",),
        "a wrong password looks like a ZooKeeper that is away",
    ),
    Mutant(
        "a call that ZooKeeper's ACLs refuse counts as unanswered",
        _SESSION,
        "        if isinstance(error, (*_DENIED, *_REFUSED)):\n",
        "        if isinstance(error, _REFUSED):\n",
        (_OWNER,),
        "a refusal is repeated for ever, and its outcome seems unknown",
    ),
    Mutant(
        "the client that a bookie is itself has no identity",
        "bookie_server/config.py",
        '        zookeeper = {"zookeeper_auth_path": self._auth_path, "zookeeper_acl": self.zookeeper_acl}\n',
        "        zookeeper = dict[str, Any]()\n",
        (f"{_TABLE_TEST}::test_every_way_to_give_the_settings_leads_to_the_same_session",),
        "a bookie registers, and repairs nothing",
    ),
    Mutant(
        "folders are not made with a cluster of roles",
        _STORE,
        "        for folder in self._first_folders:\n",
        "        for folder in ():\n",
        (_ROLES, f"{_AUTH_TEST}::test_a_cluster_of_roles_has_its_folders_from_the_start"),
        "who needs a folder first makes it with rights of their own",
    ),
    Mutant(
        "a cluster is secured by who could not undo it",
        _SECURING,
        "        tree.set_acl(probe, acl.of(probe, root), found[1])\n",
        "        pass\n",
        (_RUNNING,),
        "nobody but ZooKeeper's superuser gets in again",
    ),
    Mutant(
        "a cluster is secured while bookies run without an identity",
        _SECURING,
        "each is not None and may_change(each[0]))",
        "each is not None and False)",
        (_RUNNING,),
        "bookies are shut out of their own cluster",
    ),
)
