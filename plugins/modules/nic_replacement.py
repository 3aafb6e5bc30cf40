#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nic_replacement
short_description: Tell about a NIC that is replaced, before and after
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Tells which card is meant and what depends on it, and afterwards whether the new card is as good and nothing else
    has changed.
  - It is a part of the playbook C(lanewise.dra.replace_nic). It reads the topology that the role
    P(lanewise.dra.topology#role) has left with the host, and what the site report has stored of it.
  - Changes nothing, and writes nothing. What is in the way is returned, and no error of the task.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  tell:
    description:
      - With V(before), which card it is and what depends on it.
      - With V(after), whether the new card may take its place.
      - With V(done), what the node has now, for the records.
    type: str
    choices: [before, after, done]
    required: true
  report:
    description: The folder of the site report.
    type: path
    required: true
  slot:
    description: The slot of the card, as the machine's firmware names it.
    type: str
    default: ""
  address:
    description: The PCI address of one of its functions or VFs.
    type: str
    default: ""
  serial:
    description: Its serial number.
    type: str
    default: ""
  users:
    description: What M(lanewise.dra.nic_users_info) has returned.
    type: dict
    default: {}
  rules:
    description: The rules for NICs that apply to the node, as O(lanewise.dra.fabric#module:nics) takes them.
    type: list
    elements: dict
    default: []
  driver:
    description: The settings of the driver on the node, of which C(include) and C(exclude) are looked at.
    type: dict
    default: {}
  node:
    description: The name of the node in the cluster.
    type: str
    default: ""
  cluster:
    description: C(nodes), C(slices) and C(claims) of the cluster, as lists of objects. Empty where there is no cluster.
    type: dict
    default: {}
  other_model:
    description: Whether the new card may be of another model, and slower.
    type: bool
    default: false
  other_changes:
    description: Whether more than this card may have changed.
    type: bool
    default: false
  same_card:
    description: Whether it may be the old card, as after it was only reseated.
    type: bool
    default: false
seealso:
  - module: lanewise.dra.nic_users_info
  - module: lanewise.dra.site_report
"""

EXAMPLES = r"""
- name: Tell what depends on the card in slot 9
  lanewise.dra.nic_replacement:
    tell: before
    slot: "9"
    report: /srv/site/report
  register: told
  failed_when: told.problems | length > 0
"""

RETURN = r"""
summary:
  description: What there is to say, in lines for a person.
  returned: always
  type: list
  elements: str
  sample:
    - "slot 9: 0000:59:00.0: NVIDIA ConnectX-7, MCX755106AS-HEAT, serial MT2342X01234"
    - "    0000:59:00.0: ens9f0np0 a0:88:c2:01:02:03, mlx5_4 GUID a088:c203:0001:0203, 200G, up"
problems:
  description: What is in the way, with the way out.
  returned: always
  type: list
  elements: str
  sample: ["0000:59:00.0 (ens9f0np0): the port is down, the old one's was up (put the cable in)"]
card:
  description:
    - The card as it is now, or was last. Its places are C(slots), C(devices) and C(ports), it has C(name),
      C(part_number), C(serial), and C(functions) with their interfaces, RDMA devices and VFs.
  returned: where a card is found
  type: dict
functions:
  description: PCI addresses of all functions of the card, its VFs among them.
  returned: with O(tell=before), where a card is found
  type: list
  elements: str
in_use:
  description: Which of them somebody has, and who.
  returned: with O(tell=before), where a card is found
  type: list
  elements: str
  sample: ["0000:59:00.3: process 4242 has it open through vfio-pci"]
record:
  description: What is to be kept in RV(path), so that it is known after the swap.
  returned: with O(tell=before) and O(tell=done)
  type: dict
path:
  description: The file of the record on the controller.
  returned: always
  type: str
published:
  description: PCI addresses of the card's functions that the cluster had or shall have as devices.
  returned: where a card is found
  type: list
  elements: str
gone:
  description: MAC addresses and GUIDs of the old card that the new one does not have.
  returned: with O(tell=done)
  type: list
  elements: str
finished:
  description: Whether this very card was found good before, by an earlier run.
  returned: with O(tell=after)
  type: bool
"""
