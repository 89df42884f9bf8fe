# SPDX-License-Identifier: Apache-2.0
"""What the kit says of Apache's programs that cannot be killed, or were."""

from __future__ import annotations

import pytest

from tests.interop.jars import KitError
from tests.interop.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def test_only_a_bookie_in_a_jvm_of_its_own_can_be_killed(apache: ApacheCluster) -> None:
    with pytest.raises(KitError, match="add_bookie"):
        apache.bookies[0].kill()


def test_who_waits_for_a_jvm_that_dies_hears_of_it(apache: ApacheCluster) -> None:
    peer = apache.peer_client()
    peer.wait_started()
    peer.pause()
    waiting = peer.submit("list", client=1)
    peer.kill()
    with pytest.raises(KitError, match="has ended"):
        waiting.result(10)
    with pytest.raises(KitError, match="has ended"):
        peer.call("list", client=1)
