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
      - Whether NICs that carry the node's own traffic may be changed. These are the NICs of default routes, of SSH
        sessions and of storage, and the devices below them.
      - Without this, the module refuses to change such a NIC before it changes anything.
    type: bool
    default: false
  rollback_after:
    description:
      - If the run changes a NIC through which the node is reached, systemd rolls all changes of the run back after this
        many seconds, unless they are confirmed with O(lanewise.dra.fabric#module:confirm).
      - V(0) disables the rollback.
    type: int
    default: 60
attributes:
  check_mode:
    support: full
    description: Predicts what a run would do. Settings of VFs that do not exist yet are reported as planned.
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    description: Target OS and families that can be operated against.
    support: full
    platforms: linux
notes:
  - Needs root (C(become)) and, for settings that use netlink, pyroute2 (C(python3-pyroute2) of Debian and Ubuntu) for
    the Python that Ansible uses on the node.
  - All settings are compared with the node first. If some cannot be applied, these are listed together and nothing is
    changed. If a step fails, the steps before it are undone.
  - Only one run at a time can change a node.
"""

    # For the modules that configure only a part of what the module fabric configures.
    PART = r"""
options: {}
notes:
  - Returns the same values as M(lanewise.dra.fabric).
seealso:
  - module: lanewise.dra.fabric
    description: Configures all settings of a node in one call.
"""

    SELECT = r"""
options:
  select:
    description:
      - Selects NICs by properties. A NIC must match every field, and of each field at least one value. Texts are shell
        patterns.
      - Without O(select.type) and O(select.address), only PFs match.
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
        description: Rails, as M(lanewise.dra.topology_info) numbers them.
        type: list
        elements: int
      numa_node:
        description: NUMA nodes.
        type: list
        elements: int
      min_speed_mbps:
        description: The minimum link speed, in Mbit/s.
        type: int
      near_gpu:
        description: The minimum affinity to a GPU. An unknown affinity never matches.
        type: str
        choices: [PIX, PXB, PHB, NODE]
"""
