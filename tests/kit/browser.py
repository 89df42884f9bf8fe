# SPDX-License-Identifier: Apache-2.0
"""A real browser, headless Chromium, driven over its own protocol. The JSON messages go through two pipes, so neither a
port nor a library is needed. ``scripts/tools page`` installs the browser."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ANSWER_S = 15.0
NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync"),
    *("--force-color-profile=srgb", "--hide-scrollbars", "--lang=en-US", "--remote-debugging-pipe"),
)
_FD_ABOVE = 10


def chromium() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, "there is no Chromium; type: scripts/tools page"
    return found


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """Run a browser with one tab, and end it after the block."""
    to_read, to_send = os.pipe()
    to_receive, to_write = os.pipe()
    theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, _FD_ABOVE) for fd in (to_read, to_write)]
    for fd in (to_read, to_write):
        os.close(fd)
    script = f'exec "$0" "$@" 3<&{theirs[0]} 4>&{theirs[1]}'  # the browser reads commands from 3 and writes to 4
    process = subprocess.Popen(
        ["bash", "-c", script, chromium(), *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=theirs,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for fd in theirs:
        os.close(fd)
    wire = Wire(to_send, to_receive)
    try:
        target = wire.ask("Target.createTarget", url="about:blank")["targetId"]
        session = wire.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        yield Tab(wire, session)
        with contextlib.suppress(OSError, AssertionError):
            wire.ask("Browser.close")
    finally:
        for fd in (to_send, to_receive):
            os.close(fd)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Wire:
    """Sends messages to a browser and receives its messages. A zero byte ends each message. ``events`` are messages
    that answer no request."""

    def __init__(self, to_send: int, to_receive: int) -> None:
        self._to_send, self._to_receive = to_send, to_receive
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to_send, data) :]
        until = time.monotonic() + ANSWER_S
        while True:
            said = self._next(until - time.monotonic())
            if said.get("id") == self._number:
                assert "error" not in said, f"{method}: {said['error']}"
                result: dict[str, Any] = said["result"]
                return result
            if "method" in said:
                self.events.append(said)

    def _next(self, timeout_s: float) -> dict[str, Any]:
        until = time.monotonic() + timeout_s
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._to_receive], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._to_receive, 1 << 20) if ready else b""
            assert part, "the browser does not answer" if not ready else "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


class Tab:
    """A tab of a browser, with calls for what a person does: look, wait, click, type."""

    def __init__(self, wire: Wire, session: str) -> None:
        self._wire, self._session = wire, session
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self._wire.ask(method, self._session, **params)

    def resize(self, width: int, height: int) -> None:
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """Set the preferred color scheme, ``dark`` or ``light``."""
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def go(self, url: str) -> None:
        self._ask("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector: str = "main") -> str:
        """Return the text that a person reads in an element, on one line. It is empty if the page has no such
        element."""
        found = self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return " ".join(str(found).split())

    def until(self, expression: str, within_s: float = 10.0) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + within_s
        while not self.js(f"Boolean({expression})"):
            assert time.monotonic() < deadline, (
                f"after {within_s} s this is not true: {expression}; the page says: {self.text()}"
            )
            time.sleep(0.1)

    def until_text(self, words: str, selector: str = "main", within_s: float = 10.0) -> str:
        """Wait until a person reads these words in an element. Return its text."""
        place, text = json.dumps(selector), json.dumps(words)
        one_line = f"(document.querySelector({place})?.innerText ?? '').replace(/\\s+/g, ' ')"
        self.until(f"{one_line}.includes({text})", within_s)
        return self.text(selector)

    def key(self, key: str, text: str = "") -> None:
        codes = {"Tab": 9, "Enter": 13}
        for kind in ("keyDown", "keyUp"):
            self._ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    def type(self, text: str) -> None:
        self._ask("Input.insertText", text=text)

    def names(self) -> list[tuple[str, str]]:
        """Return what a screen reader finds: the role and the name of every element that has both."""
        return [(role, name) for role, name in self.roles() if name]

    def roles(self) -> list[tuple[str, str]]:
        """Return the role and the name of every element, also of those without a name."""
        nodes = self._ask("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], str(node.get("name", {}).get("value", ""))) for node in nodes if not node["ignored"]
        ]

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        found = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """Return the browser's complaints since the last call: errors of scripts, of the network and of the content
        policy."""
        self.js("0")
        found = []
        for event in self._wire.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:500])
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(f"{params['entry'].get('url', '')} {params['entry']['text']}")
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(params["args"])[:500])
        self._wire.events.clear()
        return found
