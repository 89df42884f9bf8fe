# SPDX-License-Identifier: Apache-2.0
"""A program that forks, as gunicorn with preload or multiprocessing does.

Run by tests, ``python forking_clients.py LANE WHEN URI``. Prints what each child did and how it ended.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time

import bk_core.blocking
import bk_core.transport.lane.grpc  # imported before the fork, as an application server would
from bk_core.client import ClientConfig
from bk_core.errors import ForkedHandleError

CHILDREN = 6


def connect(lane: str, uri: str) -> bk_core.blocking.BookKeeper:
    return bk_core.blocking.connect(uri, config=ClientConfig(lanes=lane))


def write(lane: str, uri: str) -> None:
    with connect(lane, uri) as bookkeeper:
        ledger = bookkeeper.create_ledger()
        assert [ledger.append(b"%d" % n) for n in range(20)] == list(range(20))
        ledger.close()
        reader = bookkeeper.open_ledger(ledger.ledger_id, recover=False)
        assert sum(len(batch) for batch in reader.read(0, 19)) == 20


def is_refused_in_a_child(lane: str, uri: str) -> bool:
    pid = os.fork()
    if not pid:
        try:
            write(lane, uri)
        except ForkedHandleError:
            sys.exit(0)
        sys.exit(1)
    return os.waitpid(pid, 0)[1] == 0


def work(lane: str, uri: str) -> None:
    """What a child does."""
    began = time.monotonic()
    try:
        write(lane, uri)
        print("wrote", flush=True)
    except ForkedHandleError as error:
        is_prompt = "spawn" in str(error) and time.monotonic() - began < 2
        print("refused" if is_prompt and is_refused_in_a_child(lane, uri) else repr(error), flush=True)
    gc.collect()


def forked(lane: str, uri: str) -> None:
    for _ in range(CHILDREN):
        pid = os.fork()
        if not pid:
            work(lane, uri)
            sys.exit(0)
        print("ended with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def main(lane: str, when: str, uri: str) -> None:
    if when == "unused":
        forked(lane, uri)
        write(lane, uri)
    elif when == "closed":
        write(lane, uri)
        forked(lane, uri)
        write(lane, uri)
    elif when == "open":
        with connect(lane, uri) as bookkeeper, bookkeeper.create_ledger() as ledger:
            ledger.append(b"before")
            forked(lane, uri)
            ledger.append(b"after")
    else:
        context = multiprocessing.get_context(when)
        with connect(lane, uri) as bookkeeper, bookkeeper.create_ledger() as ledger:
            ledger.append(b"before")
            for _ in range(CHILDREN):
                process = context.Process(target=work, args=(lane, uri))
                process.start()
                process.join()
                print("ended with", process.exitcode, flush=True)
            ledger.append(b"after")


if __name__ == "__main__":
    main(*sys.argv[1:])
