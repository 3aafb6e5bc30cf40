# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    # For all modules that configure a node.
    DOCUMENTATION = r"""
options:
  allow_management:
    description:
      - Whether NICs that carry the node's own traffic may be changed. They are those of default routes, of SSH sessions
        and of storage that the node uses, and what these stand on.
      - Without it, a change of such a NIC is refused before anything is changed.
    type: bool
    default: false
  rollback_after:
    description:
      - Where a NIC that the node is reached by is changed, systemd takes all changes of the run back after so many
        seconds, unless they are confirmed with O(lanewise.dra.fabric#module:confirm).
      - V(0) goes without a way back.
    type: int
    default: 60
attributes:
  check_mode:
    support: full
    description: Predicts what a run would do. Where VFs do not exist yet, what they are set to is told as planned.
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    description: Target OS and families that can be operated against.
    support: full
    platforms: linux
notes:
  - Needs root (C(become)) and, for settings that the kernel takes by netlink, pyroute2 (C(python3-pyroute2) of Debian
    and Ubuntu) for the Python that Ansible uses on the node.
  - All that is wanted is compared with the node first. What cannot be done is told at once, and then nothing is
    changed. A step that fails takes back what the run had done before it.
  - Two runs on one node exclude each other.
"""

    SELECT = r"""
options:
  select:
    description:
      - Which NICs, by what they are. All that is given must hold, and of several values of one field any does. Texts
        are shell patterns.
      - PFs are chosen where neither O(select.type) nor O(select.address) says otherwise.
    type: dict
    required: true
    suboptions:
      address:
        description: PCI addresses, such as V(0000:3b:00.0).
        type: list
        elements: str
      interface:
        description: Names of interfaces.
        type: list
        elements: str
      driver:
        description: Kernel drivers, such as V(mlx5_core).
        type: list
        elements: str
      model:
        description: Models, such as V(*ConnectX-7*).
        type: list
        elements: str
      vendor_id:
        description: PCI vendors, four hexadecimal digits.
        type: list
        elements: str
      device_id:
        description: PCI devices, four hexadecimal digits.
        type: list
        elements: str
      slot:
        description: Slots of the machine, as its firmware names them.
        type: list
        elements: str
      link_layer:
        description: Link layers.
        type: list
        elements: str
        choices: [ethernet, infiniband]
      type:
        description: PFs, VFs, or interfaces without a PCI function (bonds, VLANs, bridges).
        type: list
        elements: str
        choices: [pf, vf, virtual]
      rail:
        description: Rails, as M(lanewise.dra.topology_info) counts them.
        type: list
        elements: int
      numa_node:
        description: NUMA nodes.
        type: list
        elements: int
      min_speed_mbps:
        description: The least link speed, in Mbit/s.
        type: int
      near_gpu:
        description: A GPU is at least as near as that. A distance that the machine does not tell is never near.
        type: str
        choices: [PIX, PXB, PHB, NODE]
"""
