#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: roce
short_description: Set up RDMA over Ethernet
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Sets the version and traffic class of RoCE, and the lossless Ethernet below it.
  - A reboot forgets the settings. M(lanewise.dra.fabric) makes them last.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
  - lanewise.dra.fabric
  - lanewise.dra.fabric.select
options:
  roce:
    description: What connections over RDMA have.
    type: dict
    suboptions:
      mode:
        description: Version of RoCE that the RDMA connection manager takes.
        type: str
        choices: [v1, v2]
      tos:
        description: Type of service of its connections.
        type: int
      traffic_class:
        description: Traffic class forced on all connections. Only with the drivers of DOCA or MLNX_OFED.
        type: int
  dcb:
    description: Lossless Ethernet of a PF.
    type: dict
    suboptions:
      trust:
        description: Whether priorities come from the DSCP of a packet or from its VLAN tag.
        type: str
        choices: [dscp, pcp]
      dscp_priorities:
        description: Priorities by DSCP, where they are not the DSCP's upper three bits.
        type: dict
      pfc:
        description: Priorities that are paused by themselves.
        type: list
        elements: int
      ets:
        description: How traffic classes share the link.
        type: dict
      buffer:
        description: How the receive buffers are divided.
        type: dict
seealso:
  - module: lanewise.dra.fabric
    description: Takes all of a node's settings in one call.
"""

EXAMPLES = r"""
- name: RoCE v2, lossless on priority 3
  lanewise.dra.roce:
    select: {near_gpu: PIX, link_layer: ethernet}
    roce: {mode: v2, tos: 106}
    dcb:
      trust: dscp
      pfc: [3]
  become: true
"""

RETURN = r"""
changes:
  description: What was changed, in order, or would be in check mode, as M(lanewise.dra.fabric) returns it.
  returned: success
  type: list
  elements: dict
drain_reasons:
  description: Why pods on the node would notice.
  returned: success
  type: list
  elements: str
reboot_required:
  description: Whether some of what is wanted takes effect at a reboot only.
  returned: success
  type: bool
reboot_reasons:
  description: What waits for it.
  returned: success
  type: list
  elements: str
rollback:
  description: The timer that takes the changes back, with C(id) and C(seconds). In check mode without C(id).
  returned: where a NIC is changed that the node is reached by
  type: dict
left_alone:
  description: The NICs that were chosen and have no settings, as a pod has them, each with who that is.
  returned: success
  type: list
  elements: str
settings:
  description: The settings of each NIC that was chosen.
  returned: success
  type: dict
"""

from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once  # noqa: F401 - finds the others
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import run_on_nics
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import ROCE


def main() -> None:
    run_on_nics(ROCE)


if __name__ == "__main__":
    main()
