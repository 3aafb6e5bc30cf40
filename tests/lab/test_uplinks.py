# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The interfaces that carry a node's own traffic, on a distribution's kernel: also bonds, VLANs, VRFs and tunnels."""

from __future__ import annotations

import json

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.driver.uplink_cases import CASES
from ansible_collections.lanewise.dra.tests.lab.node import Node

#: The modules that Debian's kernel does not load automatically.
MODULES = "bonding 8021q vrf veth macvlan tun vxlan ip_gre ipip wireguard bridge tcp_diag"
PROGRAM = """
import json, sys
from ansible_collections.lanewise.dra.tests.driver.uplink_cases import Unsupported, set_up
from lanewise_driver.uplinks.carried import Rule
try:
    set_up(sys.argv[1])
    print(json.dumps(dict(Rule().now().by_name)))
except Unsupported as reason:
    print(json.dumps(str(reason)))
"""


@pytest.fixture(scope="module", name="vm")
def _vm(single: Node) -> Node:
    for source, name in (
        ("driver", "lanewise_driver"),
        ("plugins/module_utils/uplinks", "lanewise_driver/uplinks"),
        ("tests/driver", "ansible_collections/lanewise/dra/tests/driver"),
    ):
        single.copy(COLLECTION / source, f"/opt/{name}")
    single.ssh(f"modprobe -a {MODULES}", check=False)
    return single


@pytest.mark.parametrize("name", CASES)
def test_interfaces_that_carry_the_nodes_traffic_are_found(vm: Node, name: str) -> None:
    """Each case runs in new namespaces."""
    inside = 'mount --make-rprivate /; mount -t sysfs sys /sys; mount -t tmpfs run /run; exec python3 - "$0"'
    reported = vm.ssh(
        f"PYTHONPATH=/opt PYTHONDONTWRITEBYTECODE=1 unshare --net --mount sh -c '{inside}' '{name}'", stdin=PROGRAM
    )
    found = json.loads(reported.splitlines()[-1])
    if isinstance(found, str):
        pytest.skip(found)
    assert found == dict(CASES[name].carried)
