# SPDX-License-Identifier: Apache-2.0
"""Makes the ACL of each node of ZooKeeper from the setting ``zookeeper_acl`` (docs/security.md §7, decision 0066).
Pure.

``open`` and ``creator`` are Apache's ``zkEnableSecurity`` false and true. With a list, each identity has one or more of
ROLES, and a table in this file has the rights of each role on each kind of node. In ZooKeeper the right to create or
delete a node is a right on its parent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from bk_core.errors import InvalidArgumentError

READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
ALL = READ | WRITE | CREATE | DELETE | ADMIN
CHANGES = ALL & ~READ
"""The rights with which a client could change something. They are all rights except READ."""


class AclGrant(NamedTuple):
    """One line of an ACL. It has the rights and the identity that gets them, which is a scheme and a name, such as
    ``world:anyone``, ``sasl:bookies``, ``x509:CN=…`` or ``digest:user:hash``. ``auth:`` stands for all identities of
    the client that creates the node."""

    rights: int
    scheme: str
    name: str


Acl: TypeAlias = tuple[AclGrant, ...]
OPEN_ACL: Acl = (AclGrant(ALL, "world", "anyone"),)
CREATOR_ACL: Acl = (AclGrant(ALL, "auth", ""),)
ACL_OPEN, ACL_CREATOR = "open", "creator"

ADMIN_ROLE = "admin"
ROLES = ("client", "bookie", "auditor")
"""The roles besides the admin. ``auditor`` is for auto-recovery and the upkeep of logs, if they run outside of a
bookie."""

BESIDE_ROOT = ("-bookies", "-deletedlogs", "-logs", "-orders", "-security", "-upkeep")
"""The nodes beside the ledgers root that belong to the cluster, as suffixes of the root's path."""

FIRST_FOLDERS = (
    *("/cookies", "/idgen", "/underreplication/auditorelection", "/underreplication/ledgers"),
    *("/underreplication/locks", *BESIDE_ROOT, "-upkeep/election"),
)
"""The folders that the first client that needs them would create. They are created in advance, so that no client can
create such a folder with another ACL."""

ACL_BYTES_MAX = 1000
"""The maximum size of an ACL in bytes. A request repeats the ACL for each node that it creates, and ZooKeeper refuses
requests of 1 MiB."""
_LETTERS = {"r": READ, "w": WRITE, "c": CREATE, "d": DELETE}

_RULES: tuple[tuple[str, str, str, str, str], ...] = (
    # node, below the ledgers root or, with a hyphen, beside it           client   bookie   auditor
    ("the ledgers root", r"", "rc", "rc", "rc"),
    ("the records of every cluster", r"/(INSTANCEID|LAYOUT)", "r", "r", "r"),
    ("folders of registrations", r"/available(/readonly)?", "r", "rcd", "r"),
    ("registrations", r"/available/(readonly/)?[^/]+", "r", "rw", "r"),
    ("the folder of cookies", r"/cookies", "r", "rcd", "r"),
    ("cookies", r"/cookies/[^/]+", "r", "rw", "r"),
    ("folders of ids", r"/idgen|/idgen-long(/HOB-[^/]+)?", "rcd", "rcd", "rcd"),
    ("ids", r"(/idgen|/idgen-long/HOB-[^/]+)?/ID-[^/]*", "r", "r", "r"),
    ("folders of ledgers", r"/\d{2}(/\d{4})?|/\d{3}(/\d{4}){0,3}", "rcd", "rcd", "rcd"),
    ("ledgers", r"(/\d{2,4})*/L\d+", "rw", "rw", "rw"),
    ("under-replication", r"/underreplication", "r", "rc", "rc"),
    ("settings of all auditors", r"/underreplication/(LAYOUT|disable|lostBookieRecoveryDelay)", "r", "r", "r"),
    ("times of audits", r"/underreplication/[a-z]+ctime", "r", "rw", "rw"),
    ("folders of marks", r"/underreplication/ledgers(/[0-9a-f]{4}){0,4}", "rc", "rcd", "rcd"),
    ("marks", r"/underreplication/ledgers(/[0-9a-f]{4}){4}/urL\d+", "rw", "rw", "rw"),
    ("the folder of locks", r"/underreplication/locks", "r", "rcd", "rcd"),
    ("locks", r"/underreplication/locks/urL\d+", "r", "rw", "rw"),
    ("the election of an auditor", r"/underreplication/auditorelection", "r", "rwcd", "rwcd"),
    ("votes", r"(/underreplication/auditor|-upkeep/)election/V_\d*", "r", "r", "r"),
    ("the folder of bookies' states", r"-bookies", "r", "rcd", "r"),
    ("bookies' states", r"-bookies/[^/]+", "r", "rw", "r"),
    ("the folder of orders", r"-orders", "r", "rd", "r"),
    ("orders", r"-orders/[^/]+", "r", "r", "r"),
    ("roles", r"-security(/roles)?", "r", "r", "r"),
    ("upkeep", r"-upkeep(/election)?", "r", "rcd", "rcd"),
    ("the record of upkeep", r"-upkeep/record", "r", "rw", "rw"),
    ("the folder of logs", r"-logs", "rcd", "rcd", "rcd"),
    ("logs and all they have", r"-logs/.+", "rwcd", "rwcd", "rwcd"),
    ("the folder of deleted logs", r"-deletedlogs", "rwcd", "rwcd", "rwcd"),
    ("deleted logs", r"-deletedlogs/[^/]+", "r", "r", "r"),
)
"""The kinds of nodes. Each row has the kind in words, a pattern of paths, and the rights of each of ROLES. The first
row whose pattern matches a path counts. An admin has all rights on all nodes."""

_ABOVE = ("the nodes above the ledgers root", ("rc", "rc", "rc"))
_OTHER = ("nodes of unknown kind", ("r", "r", "r"))


def kind_of(path: str, root: str) -> str:
    """Return the kind of the node at ``path`` in words. ``root`` is the ledgers root of the cluster."""
    return _rule(path, root)[0]


def _rule(path: str, root: str) -> tuple[str, tuple[str, ...]]:
    if f"{root}/".startswith(f"{path.rstrip('/')}/") and path != root:
        return _ABOVE
    if path.startswith(root):
        rest = path[len(root) :]
        for kind, pattern, *rights in _RULES:
            if re.fullmatch(pattern, rest, re.ASCII):
                return kind, tuple(rights)
    return _OTHER


@dataclass(frozen=True, slots=True)
class ZooKeeperAcl:
    """The parsed setting ``zookeeper_acl``. ``members`` are the role, scheme and name of each identity in a list."""

    text: str = ACL_OPEN
    members: tuple[tuple[str, str, str], ...] = ()

    @property
    def is_open(self) -> bool:
        return self.text == ACL_OPEN

    def of(self, path: str, root: str) -> Acl:
        """Return the ACL of the node at ``path`` in the cluster whose ledgers root is ``root``."""
        if not self.members:
            return OPEN_ACL if self.is_open else CREATOR_ACL
        letters = dict(zip(ROLES, _rule(path, root)[1], strict=True))
        rights: dict[tuple[str, str], int] = {}  # an identity with several roles has the rights of all of them
        for role, scheme, name in self.members:
            own = ALL if role == ADMIN_ROLE else sum(_LETTERS[letter] for letter in letters[role])
            rights[scheme, name] = rights.get((scheme, name), 0) | own
        return tuple(AclGrant(granted, *whose) for whose, granted in rights.items())


OPEN_TO_ALL = ZooKeeperAcl()


def parse_acl(text: str) -> ZooKeeperAcl:
    """Parse ``open``, ``creator``, or ``client=SCHEME:NAME; bookie=…; auditor=…; admin=…``. A role with several
    identities is repeated. A semicolon within a name must have a backslash before it. Raises InvalidArgumentError for
    other text."""
    word = text.strip()
    if word in ("", ACL_OPEN, ACL_CREATOR):
        return ZooKeeperAcl(word or ACL_OPEN)
    members = tuple(_member(part.strip(), text) for part in re.split(r"(?<!\\);", word) if part.strip())
    missing = [role for role in ("client", "bookie", ADMIN_ROLE) if role not in {each[0] for each in members}]
    if missing:
        raise _bad(f"A list for zookeeper_acl names no {' and no '.join(missing)}", text)
    if acl_bytes([AclGrant(ALL, scheme, name) for _, scheme, name in members]) > ACL_BYTES_MAX:
        raise _bad(f"An ACL has at most {ACL_BYTES_MAX} bytes", text, "share identities among processes of a role")
    return ZooKeeperAcl(word, members)


def _member(part: str, text: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"([a-z]+)\s*=\s*(digest|sasl|x509|ip):(\S.*)", part)
    if found is None or found[1] not in (*ROLES, ADMIN_ROLE):
        raise _bad(f"{part!r} is not a role and an identity", text)
    if found[2] == "digest" and not re.fullmatch(r"[^:]+:[A-Za-z0-9+/]{27}=", found[3]):
        raise _bad(
            f"{part!r} is not user and hash",
            text,
            "write digest:USER:HASH; docs/security.md §7.2 says how to get the hash",
        )
    return found[1], found[2], found[3]


def _bad(what: str, text: str, remedy: str = "") -> InvalidArgumentError:
    example = 'write "open", "creator" or "client=sasl:app; bookie=sasl:bookie; admin=sasl:ops" (docs/security.md §7)'
    return InvalidArgumentError(_veiled(what), value=f"zookeeper_acl={_veiled(text)!r}", remedy=remedy or example)


def _veiled(text: str) -> str:
    """Return the text with digests hidden, because a user may write a password in place of a hash."""
    return re.sub(r"(digest:[^:;]*:)[^;']*", r"\1…", text)


def acl_bytes(acl: Sequence[AclGrant]) -> int:
    """Return the number of bytes that an ACL takes in a request."""
    return 4 + sum(12 + len(grant.scheme) + len(grant.name.encode()) for grant in acl)


def may_change(acl: Sequence[AclGrant]) -> bool:
    """Return whether the ACL allows every client changes, which is so if ``world`` has rights other than READ."""
    return any(grant.scheme == "world" and grant.rights & CHANGES for grant in acl)
