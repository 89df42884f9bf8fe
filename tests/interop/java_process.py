# SPDX-License-Identifier: Apache-2.0
"""Java programs as processes: ours, which answer commands until they end, and Apache's, which run to their end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bk_cli.local.children import child_environment, last_lines
from tests.interop import class_data
from tests.interop.jars import KitError, Toolchain

START_S = 180.0  # for a start of a JVM of ours on a busy machine
CALL_S = 60.0
_END_S = 10.0

FLAGS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.util.zip=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-XX:ActiveProcessorCount=2",
    "-XX:-UsePerfData",
)
"""The options that Apache's programs need on Java 17."""

QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-XX:MaxDirectMemorySize=256m")
"""Options for programs whose speed is not measured. They start soon and stay small."""

FAST = ("-Xmx512m", "-XX:MaxDirectMemorySize=512m")
"""Options for measurements."""


class PeerError(KitError):
    """A refusal of Apache's library or bookie, with ``code`` and ``name`` of its BKException, or the name of another
    exception."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['name']}: {error['message']}")
        self.name: str = error["name"]
        self.code: int | None = error.get("code")
        self.acked = 0  # how many adds of a failed row were done


@dataclass(frozen=True, slots=True)
class Finished:
    """The exit code of a program that ended, and its output."""

    code: int
    output: str

    def checked(self) -> str:
        """Return the output. Raises KitError if the program failed."""
        if self.code:
            raise KitError(f"the program ended with {self.code}", value=self.output[-4000:])
        return self.output


def _java(tools: Toolchain, main: str, flags: Sequence[str]) -> list[str]:
    """Return the command that runs a main class."""
    return [tools.java, *FLAGS, *flags, *class_data.options(tools, main), "-cp", tools.class_path, main]


def run_main(
    tools: Toolchain, main: str, arguments: Sequence[str], *, within_s: float, flags: Sequence[str]
) -> Finished:
    """Run a main class of the jars to its end. If it takes longer than ``within_s``, it is killed. Raises KitError in
    this case."""
    command = [*_java(tools, main, flags), *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        output, _ = process.communicate()
        said = output.decode("utf-8", "replace")[-2000:]
        raise KitError(f"{main} did not end within {within_s:.0f} s", value=said) from None
    except BaseException:  # a test's own deadline, or Ctrl-C
        _kill_group(process)
        process.communicate()
        raise
    return Finished(process.returncode, output.decode("utf-8", "replace"))


class Daemon:
    """A main class of the jars that runs until it is killed or this process ends (bk_cli/local/lifeline.py)."""

    def __init__(
        self,
        tools: Toolchain,
        main: str,
        arguments: Sequence[str],
        log_path: Path,
        flags: Sequence[str] = QUICK,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log_path = log_path
        command = [*_java(tools, main, flags), *arguments]
        with open(log_path, "ab") as log:
            self._log_start = log.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bk_cli.local.lifeline", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment() | dict(environment or {}),
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def printed(self) -> bytes:
        """Return the output so far."""
        return self.log_path.read_bytes()[self._log_start :]

    def kill(self) -> None:
        """End the process with ``kill -9``."""
        _kill_group(self._process)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class Program:
    """A program that answers lines of JSON (java/Lines.java). It ends at :meth:`close` or :meth:`kill`, or with this
    process."""

    def __init__(self, name: str, command: Sequence[str], log_path: Path) -> None:
        self.main, self.log_path = name, log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._last_id = 0
        self._greeting: Future[dict[str, Any]] = Future()
        self._waiting: dict[int, Future[dict[str, Any]]] = {0: self._greeting}
        self._ended = False
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        self._reader = threading.Thread(target=self._read, name=f"{name} answers", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def submit(self, command: str, **arguments: Any) -> Future[dict[str, Any]]:
        """Send a command. The future returns the answer, or raises PeerError, or KitError if the program ends
        before."""
        future: Future[dict[str, Any]] = Future()
        given = {name: value for name, value in arguments.items() if value is not None}
        with self._lock:
            self._last_id += 1
            if self._ended:
                future.set_exception(self._end_error())
                return future
            self._waiting[self._last_id] = future
            line = json.dumps({"id": self._last_id, "do": command, **given})
            assert self._process.stdin is not None
            # the program has ended, and the reader sets this error in every future
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
        return future

    def call(self, command: str, *, within_s: float = CALL_S, **arguments: Any) -> dict[str, Any]:
        """Send a command, and return its answer. Raises PeerError if Java raised, KitError if no answer came in
        time."""
        return self.result(self.submit(command, **arguments), within_s, command)

    def result(self, future: Future[dict[str, Any]], within_s: float, command: str) -> dict[str, Any]:
        """Return the result of a future of :meth:`submit`, with the errors of :meth:`call`."""
        try:
            return future.result(within_s)
        except FutureTimeoutError:
            said = last_lines(self.log_path)
            raise KitError(f"{self.main} did not answer {command!r} within {within_s:.0f} s", value=said) from None

    def kill(self) -> None:
        """End the program with ``kill -9``."""
        _kill_group(self._process)
        self._process.wait()
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(OSError):
            self._process.stdin.close()
        self._reader.join(_END_S)

    def pause(self) -> None:
        """Stop the program until :meth:`resume`, as if its machine hung."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self, within_s: float = _END_S) -> None:
        """Close the program's input, so that it ends. Kill it if it has not ended in time."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                answer = json.loads(line)
                with self._lock:
                    future = self._waiting.pop(answer["id"])
                if "error" in answer:
                    future.set_exception(PeerError(answer["error"]))
                else:
                    future.set_result(answer["ok"])
        with self._lock:
            self._ended = True
            left = list(self._waiting.values())
            self._waiting.clear()
        for future in left:
            future.set_exception(self._end_error())

    def _end_error(self) -> KitError:
        return KitError(f"{self.main} has ended", value=last_lines(self.log_path))


class JavaProgram(Program):
    """A program of ours in Java, with the jars of a version."""

    def __init__(self, tools: Toolchain, main: str, log_path: Path, flags: Sequence[str] = QUICK) -> None:
        self.tools = tools
        super().__init__(main, _java(tools, main, flags), log_path)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:  # not reaped yet, so the pid is still its own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
