# SPDX-License-Identifier: Apache-2.0
"""A network namespace of the trial's own, in which it may make interfaces. The machine's network does not change."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

_PROBE = """
ip link set lo up && ip link add trial type bridge && ip link add v1 type veth peer name w1 &&
ip link set v1 master trial && nsenter -t $$ -n true
"""
_INSIDE = "BK_TRIAL_NETWORK"
_POLL_S = 0.005


def networks_work() -> bool:
    """Return whether this machine lets us make networks (root on Linux, or the like)."""
    try:
        probe = subprocess.run(["unshare", "-n", "sh", "-c", _PROBE], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return probe.returncode == 0


def enter_own_network() -> None:
    """Run this program again with a network and mounts of its own. Return if it already has them."""
    if os.environ.get(_INSIDE):
        return
    command = ["unshare", "-nm", "sh", "-c", 'ip link set lo up && exec "$@"', "trial"]
    command += [sys.executable, "-m", "tests.trials", *sys.argv[1:]]
    os.execvpe("unshare", command, {**os.environ, _INSIDE: "1"})


# --- inside ---

BRIDGE = "10.77.0.254"


def make_bridge() -> None:
    """Make the bridge that joins the networks of processes. This process gets the address ``BRIDGE`` on it."""
    with contextlib.suppress(subprocess.CalledProcessError):
        _ip("link", "del", "trial")  # left by an earlier cluster in this namespace
    _ip("link", "add", "trial", "type", "bridge")
    _ip("addr", "add", f"{BRIDGE}/24", "dev", "trial")
    _ip("link", "set", "trial", "up")


def host_of(number: int) -> str:
    """Return the address of a process that :func:`connect` joins."""
    return f"10.77.0.{number}"


def connect(number: int, pid: int, within_s: float) -> None:
    """Wait for the network of a new process, and give it an interface at our bridge."""
    inside = ["nsenter", "-t", str(pid), "-n", "ip"]
    with contextlib.suppress(subprocess.CalledProcessError):
        _ip("link", "del", f"v{number}")  # left by an earlier process
    deadline = time.monotonic() + within_s
    while os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"process {number} did not make its network")
        time.sleep(_POLL_S)
    _ip("link", "add", f"v{number}", "type", "veth", "peer", "name", f"w{number}")
    _ip("link", "set", f"v{number}", "master", "trial", "up")
    _ip("link", "set", f"w{number}", "netns", str(pid))
    subprocess.run([*inside, "addr", "add", f"{host_of(number)}/24", "dev", f"w{number}"], check=True)
    for name in ("lo", f"w{number}"):
        subprocess.run([*inside, "link", "set", name, "up"], check=True)


def set_cable(number: int, *, away: bool) -> None:
    """Unplug the cable of a process, or plug it in again. While it is unplugged, packets in both directions vanish."""
    with contextlib.suppress(subprocess.CalledProcessError):  # the network ends with a process that was killed
        _ip("link", "set", f"v{number}", "down" if away else "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, stderr=subprocess.DEVNULL)
