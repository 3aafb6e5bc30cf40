# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.ethtool import Ethtool
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, run
from ansible_collections.lanewise.dra.tests.host.node import apply, refusals
from lanewise_driver.kernel import ethtool


def pair_with_queues(queues: int = 4) -> None:
    """Create a veth pair with several queues. Their number can be chosen only when the pair is created."""
    queue_options = f"numtxqueues {queues} numrxqueues {queues}"
    run(f"ip link add rail0 {queue_options} type veth peer name far {queue_options}")
    run("ip link set rail0 up; ip link set far up")


@on_a_node
def test_channels_and_features_are_set():
    pair_with_queues()
    requested = {"channels": {"rx": 3, "tx": 2}, "features": {"tx-tcp-segmentation": False, "rx-gro": True}}
    outcome = apply(Ethtool, {"rail0": {"ethtool": requested}})
    # before ansible-core 2.19, the value of a template is a text
    as_texts = {"channels": {"rx": "3"}, "features": {"tx-tcp-segmentation": "False", "rx-gro": "True"}}
    assert not apply(Ethtool, {"rail0": {"ethtool": as_texts}}).changes
    assert {change.setting for change in outcome.changes} >= {"channels.rx", "channels.tx", "features.rx-gro"}
    with ethtool.Ethtool() as by_ioctl:
        assert by_ioctl.channels("rail0") == ({"rx": 3, "tx": 2}, {"rx": 4, "tx": 4})
        assert not by_ioctl.features("rail0")["tx-tcp-segmentation"] and by_ioctl.features("rail0")["rx-gro"]
    assert "stops while" in next(change.interrupts for change in outcome.changes if change.setting == "channels.rx")
    apply(Ethtool, {"rail0": {"ethtool": {"features": {"tx-tcp-segmentation": True}}}})
    with ethtool.Ethtool() as by_ioctl:
        assert by_ioctl.features("rail0")["tx-tcp-segmentation"]


@on_a_node
def test_values_that_the_device_does_not_support_are_refused():
    pair_with_queues()

    def refusal(group: str, **requested) -> str:
        return refusals(Ethtool, {"rail0": {"ethtool": {group: requested}}})[0]

    assert "5 is more than rail0 supports (request at most 4)" in refusal("channels", rx=5)
    assert "has no ring rx" in refusal("rings", rx=512)
    assert "has no coalesce rx_usecs" in refusal("coalesce", rx_usecs=8)
    assert "has no feature no-such-feature" in refusal("features", **{"no-such-feature": True})
    assert "does not allow changing it" in refusal("features", **{"vlan-challenged": True})
    assert "has no private_flag x" in refusal("private_flags", x=True)


@on_a_node
@pytest.mark.parametrize("adaptive", [True, False])
def test_coalescing_is_not_adaptive_while_its_other_values_change(adaptive, monkeypatch):
    """veth has no coalescing, so the values are those of another driver."""
    pair_with_queues()
    monkeypatch.setattr(Ethtool, "read_group", lambda *_unused: ({"adaptive_rx": not adaptive, "rx_usecs": 8}, {}))
    wanted = {"rail0": {"ethtool": {"coalesce": {"adaptive_rx": adaptive, "rx_usecs": 50}}}}
    settings = [change.setting for change in apply(Ethtool, wanted, check_mode=True).changes]
    assert settings == sorted(["coalesce.adaptive_rx", "coalesce.rx_usecs"], reverse=adaptive)


@on_a_node
def test_an_unknown_ring_is_an_error_that_lists_the_known_ones():
    pair_with_queues()
    with pytest.raises(HostError, match="set ethtool rings of rail0: rx_big is not known .use rx, rx_mini"):
        apply(Ethtool, {"rail0": {"ethtool": {"rings": {"rx_big": 1}}}})
    for group, value in (("rings", {"rx": -1}), ("rings", {"rx": 2**32}), ("features", {"rx-gro": "maybe"})):
        with pytest.raises(HostError, match="set ethtool .* of rail0: .* is not a (number|switch)"):
            apply(Ethtool, {"rail0": {"ethtool": {group: value}}})
