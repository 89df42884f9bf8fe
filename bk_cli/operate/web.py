# SPDX-License-Identifier: Apache-2.0
"""``bk web``: serves the web page of a whole cluster from a process of its own."""

from __future__ import annotations

import signal
import threading
from functools import partial

import click

from bk_cli import options, output
from bk_cli.access import Access, access

DEFAULT_PORT = 8180


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, help="TCP port; 0 takes a free one.")
@click.option("--host", metavar="HOST", default="127.0.0.1", help="Local address to listen on.")
@options.as_json
@access(password=True)
def web(access: Access, port: int, host: str, as_json: bool) -> int:
    """Serve a page that shows the cluster, until SIGTERM or Ctrl-C: bookies, ledgers, logs, what is under repair.

    The page changes nothing. It listens on loopback. With another --host every client that reaches it sees the whole
    page, entries of logs too, so put it behind a proxy that authenticates clients. It shows the entries of logs that
    --ledger-password opens.
    """
    from bk_cli.operate.entry_window import EntryWindow
    from bk_core.cluster.scraping import REACH_S, ask_admin_ports
    from bookie_server.admin.page.cluster_port import ClusterPort
    from bookie_server.admin.page.gatherer import Gatherer, SharedStore
    from bookie_server.admin.page.page import METADATA_S

    ended = threading.Event()
    with EntryWindow(access) as entries:
        store = SharedStore(lambda: access.open_store(METADATA_S))
        tell = partial(ask_admin_ports, access.admin_ports(REACH_S))
        gatherer = Gatherer(store, tell, caller=lambda instance_id: access.caller(instance_id, "bk web"), always=True)
        served = ClusterPort(host, port, gatherer, entries)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        served.start()
        try:
            output.print_result(as_json, {"url": served.url}, f"ready {served.url}")
            ended.wait()
        finally:
            served.stop()
    return 0
