#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nic_replacement
short_description: Check a NIC before and after it is replaced
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Before the replacement, finds the card and what depends on it. After the replacement, checks that the new card
    matches the old one and that nothing else has changed.
  - Part of the playbook C(lanewise.dra.replace_nic). It reads the host's topology from the role
    P(lanewise.dra.topology#role) and from the site report.
  - Changes and writes nothing. Blockers are returned and do not fail the task.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  phase:
    description:
      - With V(before), finds the card and what depends on it.
      - With V(after), checks whether the new card can replace the old one.
      - With V(done), returns the new state for the record.
    type: str
    choices: [before, after, done]
    required: true
    aliases: [tell]
  report:
    description: The folder of the site report.
    type: path
    required: true
  slot:
    description: The slot of the card, as the machine's firmware names it.
    type: str
    default: ""
  address:
    description: The PCI address of one of the card's functions or VFs.
    type: str
    default: ""
  serial:
    description: The card's serial number.
    type: str
    default: ""
  users:
    description: The result of M(lanewise.dra.nic_users_info).
    type: dict
    default: {}
  rules:
    description: The rules for NICs that apply to the node, as O(lanewise.dra.fabric#module:nics) takes them.
    type: list
    elements: dict
    default: []
  driver:
    description: The settings of the node's DRA driver, of which C(include) and C(exclude) are used.
    type: dict
    default: {}
  node:
    description: The name of the node in the cluster.
    type: str
    default: ""
  cluster:
    description: C(nodes), C(slices) and C(claims) of the cluster, as lists of objects. Empty without a cluster.
    type: dict
    default: {}
  other_model:
    description: Whether the new card may be of another model, and slower.
    type: bool
    default: false
  other_changes:
    description: Whether other changes of the node are accepted.
    type: bool
    default: false
  same_card:
    description: Whether the old card is accepted, for example after it was reseated.
    type: bool
    default: false
seealso:
  - module: lanewise.dra.nic_users_info
  - module: lanewise.dra.site_report
"""

EXAMPLES = r"""
- name: Find what depends on the card in slot 9
  lanewise.dra.nic_replacement:
    phase: before
    slot: "9"
    report: /srv/site/report
  register: card
  failed_when: card.problems | length > 0
"""

RETURN = r"""
summary:
  description: The result as readable lines.
  returned: always
  type: list
  elements: str
  sample:
    - "slot 9: 0000:59:00.0: NVIDIA ConnectX-7, MCX755106AS-HEAT, serial MT2342X01234"
    - "    0000:59:00.0: ens9f0np0 a0:88:c2:01:02:03, mlx5_4 GUID a088:c203:0001:0203, 200G, up"
problems:
  description: The blockers, each with its fix.
  returned: always
  type: list
  elements: str
  sample: ["0000:59:00.0: no driver is bound, the old one had mlx5_core (look in dmesg for errors ...)"]
card:
  description:
    - The current or last known state of the card. C(slots), C(devices) and C(ports) are its location. It also has
      C(name), C(part_number), C(serial), and C(functions) with their interfaces, RDMA devices and VFs.
  returned: if a card was found
  type: dict
functions:
  description: PCI addresses of all functions of the card, including its VFs.
  returned: with O(phase=before), if a card was found
  type: list
  elements: str
in_use:
  description: Functions in use, each with its user.
  returned: with O(phase=before), if a card was found
  type: list
  elements: str
  sample: ["0000:59:00.3: process 4242 has it open through vfio-pci"]
record:
  description: The record to store in RV(path). It is needed after the replacement.
  returned: with O(phase=before) and O(phase=done)
  type: dict
path:
  description: The file of the record on the controller.
  returned: always
  type: str
published:
  description: PCI addresses of the card's functions that are or will be published as devices.
  returned: if a card was found
  type: list
  elements: str
gone:
  description: MAC addresses and GUIDs of the old card that the new one does not have.
  returned: with O(phase=done)
  type: list
  elements: str
finished:
  description: Whether an earlier run already accepted this card.
  returned: with O(phase=after)
  type: bool
"""
