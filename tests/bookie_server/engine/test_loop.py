# SPDX-License-Identifier: Apache-2.0
"""The loop of a bookie's process does what asyncio's own does, and tells how much came in a turn."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket

import pytest

from bookie_server.engine.loop import BookieLoop, TurnSelector

DEADLINE_S = 10


def test_a_turn_tells_how_many_files_were_ready_in_it() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        came, both = list[tuple[int, int]](), asyncio.Event()
        with contextlib.ExitStack() as ends:
            pairs = [[ends.enter_context(end) for end in socket.socketpair()] for _ in range(2)]

            def read(number: int) -> None:
                pairs[number][1].recv(1)
                came.append((number, loop.turn.found))
                if len(came) in (2, 3):
                    both.set()

            for number, pair in enumerate(pairs):
                loop.add_reader(pair[1], read, number)
            for pair in pairs:
                pair[0].send(b"x")
            await asyncio.wait_for(both.wait(), DEADLINE_S)
            assert sorted(came) == [(0, 2), (1, 2)]
            both.clear()
            pairs[1][0].send(b"x")
            await asyncio.wait_for(both.wait(), DEADLINE_S)
            assert came[2] == (1, 1)
            for pair in pairs:
                assert loop.remove_reader(pair[1])

    with asyncio.Runner(loop_factory=BookieLoop) as runner:
        runner.run(story())


def test_streams_both_ways_timers_and_threads_work_on_it() -> None:
    async def story() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(3_000_000))
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        sent = bytes(range(250)) * 12_000
        writer.write(sent)  # more than the system takes at once, so it waits to be writable, too
        assert await asyncio.wait_for(reader.read(-1), DEADLINE_S) == sent
        writer.close()
        server.close()
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(0.02)
        assert asyncio.get_running_loop().time() - begun >= 0.02
        assert await asyncio.to_thread(lambda: 7) == 7

    with asyncio.Runner(loop_factory=BookieLoop) as runner:
        runner.run(story())


def test_a_selector_keeps_what_is_registered() -> None:
    chosen = TurnSelector()
    here, there = socket.socketpair()
    with contextlib.closing(chosen), here, there:
        chosen.register(here, selectors.EVENT_READ, "data")
        with pytest.raises(KeyError):
            chosen.register(here, selectors.EVENT_READ)
        assert chosen.select(0) == []
        there.send(b"x")
        assert [(key.data, event) for key, event in chosen.select(1)] == [("data", selectors.EVENT_READ)]
        chosen.modify(here, selectors.EVENT_READ | selectors.EVENT_WRITE, "both")
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        assert [(key.data, event) for key, event in chosen.select(1)] == [("both", both)]
        assert chosen.get_key(here).data == "both"
        assert list(chosen.get_map()) == [here.fileno()]
        chosen.unregister(here)
        assert chosen.select(0) == []
        assert chosen.found == 0
        with pytest.raises(KeyError):
            chosen.unregister(here)
        chosen.register(there, selectors.EVENT_READ)
        there.close()
        chosen.unregister(there)
        assert not chosen.get_map()


@pytest.mark.parametrize("kind", [TurnSelector, selectors.DefaultSelector])
def test_a_file_is_found_in_the_map_by_itself_and_by_its_number(kind: type[selectors.BaseSelector]) -> None:
    """asyncio looks for sockets there from Python 3.13 on. Found by numbers alone, none was ever unregistered, and the
    next connection that got the number of a closed one was refused."""
    chosen = kind()
    here, there = socket.socketpair()
    with contextlib.closing(chosen), here, there:
        chosen.register(here, selectors.EVENT_READ, "data")
        found = chosen.get_map()
        for file in (here, here.fileno()):
            assert found[file].data == "data"
            assert (key := found.get(file)) is not None
            assert key.data == "data"
            assert file in found
        assert found.get(there) is None
        assert there not in found
        with pytest.raises(KeyError):
            found[there]
        assert len(found) == 1
