# SPDX-License-Identifier: Apache-2.0
"""Finds the racks and the free space of bookies, which placement needs. Racks come from a script or a file, free space
from the bookies. A failure is logged. A bookie of unknown rack counts as a bookie of the default rack. A bookie of
unknown free space gets the median weight."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bk_core.client.config import ClientConfig
from bk_core.errors import BookKeeperError, InvalidArgumentError
from bk_core.model import BookieId, BookieServiceInfo
from bk_core.placement import FLAT, Landscape
from bk_core.transport.port import Transport

logger = logging.getLogger(__name__)

SCRIPT_ARGUMENTS_MAX = 100
"""The maximum number of hosts for one run of the rack script. Hadoop has the same default for its scripts."""
SCRIPT_TIMEOUT_S = 10.0
"""The seconds after which a run of the rack script is ended."""
SPACE_TIMEOUT_S = 2.0
"""The seconds that a bookie has to report its free space."""


class Surveyor:
    """Finds racks and free space of bookies for one client. It belongs to the client's loop."""

    def __init__(self, transport: Transport, config: ClientConfig) -> None:
        if config.rack_script and config.rack_file:
            raise InvalidArgumentError(
                "racks come from a script or from a file",
                value=f"rack_script={config.rack_script}, rack_file={config.rack_file}",
                remedy="leave one of them out",
            )
        self._transport, self._config = transport, config
        self._known: Mapping[BookieId, BookieServiceInfo] = {}
        self._racks: dict[BookieId, str] = {}
        self._free: dict[BookieId, int] = {}
        self._asked_at = float("-inf")  # loop time
        self._warned = False

    def know(self, writable: Mapping[BookieId, BookieServiceInfo]) -> None:
        """Set the bookies that may be chosen now."""
        self._known = writable

    async def landscape(self) -> Landscape:
        """Return the racks and the free space of the writable bookies. This waits for the script, and for the answer of
        the slowest bookie."""
        config, known = self._config, dict(self._known)
        if not (config.rack_script or config.rack_file or config.disk_weight_placement or config.enforce_racks):
            return FLAT
        if config.rack_file:
            self._racks = await asyncio.to_thread(_racks_in_file, Path(config.rack_file), known)
        if config.rack_script:
            unknown = {bookie: info for bookie, info in known.items() if bookie not in self._racks}
            if unknown:
                self._racks |= await asyncio.to_thread(_racks_of_script, config.rack_script, unknown)
        if config.disk_weight_placement:
            await self._ask_for_space(known)
        return Landscape(dict(self._racks), dict(self._free), config.racks_min, config.enforce_racks)

    async def _ask_for_space(self, known: Mapping[BookieId, BookieServiceInfo]) -> None:
        now = asyncio.get_running_loop().time()
        stale = now - self._asked_at >= self._config.disk_weight_ms / 1000
        asked = list(known) if stale else [bookie for bookie in known if bookie not in self._free]
        if stale:
            self._asked_at, self._free = now, {}
        answers = await asyncio.gather(*map(self._free_bytes, asked))
        self._free |= {bookie: free for bookie, free in zip(asked, answers, strict=True) if free is not None}

    async def _free_bytes(self, bookie: BookieId) -> int | None:
        try:
            said = await self._transport.link(bookie).bookie_info(deadline_s=SPACE_TIMEOUT_S)
        except BookKeeperError as error:
            logger.info("bookie %s did not say how much space it has: %s", bookie, error)
            return None
        return said.free_bytes

    def warn_of_few_racks(self, landscape: Landscape, ensemble: Sequence[BookieId], write_quorum: int) -> None:
        """Log, once for this client, that a ledger has write sets in fewer racks than it should."""
        wanted = min(write_quorum, landscape.racks_min)
        if landscape.racks and not self._warned and landscape.fewest_racks(ensemble, write_quorum) < wanted:
            self._warned = True
            where = ", ".join(f"{bookie} in {landscape.rack_of(bookie)}" for bookie in ensemble)
            logger.warning("a ledger got write sets in fewer than %d racks: %s", wanted, where)


def racks_of(config: ClientConfig, infos: Mapping[BookieId, BookieServiceInfo]) -> Landscape:
    """Return the racks of these bookies, which need not be writable. This blocks. Without a script or a file all
    bookies are equal."""
    racks: dict[BookieId, str] = {}
    if config.rack_file:
        racks = _racks_in_file(Path(config.rack_file), infos)
    elif config.rack_script:
        racks = _racks_of_script(config.rack_script, infos)
    else:
        return FLAT
    return Landscape(racks, racks_min=config.racks_min, enforced=config.enforce_racks)


def _names_of(info: BookieServiceInfo) -> list[str]:
    """Return the names by which a script or a file may list a bookie: its IP address, which Apache's client uses, too,
    its host, and its id."""
    hosts = [endpoint.host for endpoint in info.endpoints] or [info.bookie_id.rpartition(":")[0]]
    try:
        address = str(socket.getaddrinfo(hosts[0], None, family=socket.AF_INET)[0][4][0])
    except OSError:
        address = hosts[0]
    return [address, hosts[0], info.bookie_id]


def _racks_of_script(script: str, infos: Mapping[BookieId, BookieServiceInfo]) -> dict[BookieId, str]:
    """Ask the script for racks. It gets addresses as arguments and prints one rack for each."""
    asked, racks = list(infos), dict[BookieId, str]()
    for start in range(0, len(asked), SCRIPT_ARGUMENTS_MAX):
        some = asked[start : start + SCRIPT_ARGUMENTS_MAX]
        command = [script, *(_names_of(infos[bookie])[0] for bookie in some)]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=SCRIPT_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            logger.warning("rack_script %s could not be run: %s", script, error)
            continue
        said = ran.stdout.split()
        if len(said) != len(some):
            logger.warning("rack_script %s printed %d racks for %d bookies", script, len(said), len(some))
            continue
        racks.update(zip(some, said, strict=True))
    return racks


def _racks_in_file(path: Path, infos: Mapping[BookieId, BookieServiceInfo]) -> dict[BookieId, str]:
    """Read racks from a file. Each line has a name and a rack; a name is an address, a host or a bookie id."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        logger.warning("rack_file %s could not be read: %s", path, error)
        return {}
    words = [line.partition("#")[0].split() for line in lines]
    table = {each[0]: each[1] for each in words if len(each) == 2}
    if any(each and len(each) != 2 for each in words):
        logger.warning("rack_file %s has lines that are not a name and a rack", path)
    found = {bookie: [table[name] for name in _names_of(info) if name in table] for bookie, info in infos.items()}
    return {bookie: racks[-1] for bookie, racks in found.items() if racks}
