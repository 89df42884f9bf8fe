# SPDX-License-Identifier: Apache-2.0
"""Describes the machine that the figures were measured on, without names of hosts or directories, and reads what the
kernel counts of a process."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path

from bk_cli.local.python_build import built_with_optimizations

_SECTOR = 512


def describe(folder: Path) -> dict[str, str]:
    """Return cores, memory, system and disk, for a reader who wants to compare."""
    return {
        "cores": f"{os.cpu_count()} × {_cpu()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "disk": _disk(folder),
        "python": f"{platform.python_implementation()} {platform.python_version()}"
        + ("" if built_with_optimizations() else ", built without optimizations"),
    }


def _cpu() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()


def _disk(folder: Path) -> str:
    """Return the file system, and the kind of the device below a directory."""
    device = os.stat(folder).st_dev
    mounts = [line.split() for line in _lines("/proc/self/mountinfo")]
    mine = [fields for fields in mounts if fields[2] == f"{os.major(device)}:{os.minor(device)}"]
    kind = mine[0][mine[0].index("-") + 1] if mine else "unknown"
    block = _block(folder)
    spins = {"0": "solid state", "1": "rotating"}.get("".join(_lines(f"{block}/queue/rotational")), "some")
    virtual = block.exists() and block.resolve().name.startswith(
        ("vd", "xvd")
    )  # a virtual disk reports nothing useful here
    return f"{kind} on {'a virtual' if virtual else spins} disk"


def _block(folder: Path) -> Path:
    """Return the directory of the whole device in /sys. It does not exist if there is none."""
    device = os.stat(folder).st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    return block.resolve().parent if (block / "partition").exists() else block


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """The bytes that this process had the kernel read from and write to disks, and the bytes that all processes wrote
    to the device. −1 means that this system does not count them."""

    read_bytes: int
    written_bytes: int
    device_written_bytes: int

    @staticmethod
    def now(folder: Path) -> DiskCounters:
        fields = dict(line.split(": ") for line in _lines("/proc/self/io"))
        stat = " ".join(_lines(f"{_block(folder)}/stat")).split()
        return DiskCounters(
            int(fields.get("read_bytes", -1)),
            int(fields.get("write_bytes", -1)),
            int(stat[6]) * _SECTOR if len(stat) > 6 else -1,
        )


def peak_bytes() -> int:
    """Return the largest amount of memory that this process ever held. It is not ``ru_maxrss``, which Linux inherits
    from the parent."""
    for line in _lines("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def resident_bytes() -> int:
    """Return the memory that this process holds now, or 0 if the system does not say."""
    fields = " ".join(_lines("/proc/self/statm")).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0
