#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This is the documentation of the action plugin of the same name, which runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: address_plan
short_description: Check the address ranges of nodes on their rails, and write them to files
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Computes the range of each node on each rail from the variables C(dra_driver_rail_addresses) and
    C(dra_driver_rail_index) of all hosts of the inventory, even of hosts outside C(--limit). Run it once for all hosts.
  - Fails, with all problems together, if an index is missing, is used more than once or does not fit in a pool, if
    pools overlap, or if a pool contains an address of a node itself. The nodes' addresses are those in C(ansible_host)
    and gathered facts.
  - The role P(lanewise.dra.dra_driver#role) runs it before anything is changed.
extends_documentation_fragment:
  - lanewise.dra.attributes.files
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
attributes:
  diff_mode:
    support: partial
    details:
      - The diff names the files that are written.
options:
  dest:
    description:
      - A folder on the controller for C(addresses.csv) and C(addresses.json). Without it no file is written.
    type: path
  check_only:
    description: Whether to return only problems.
    type: bool
    default: false
seealso:
  - plugin: lanewise.dra.rail_ranges
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Write the address plan, for configuring switches
  lanewise.dra.address_plan:
    dest: "{{ inventory_dir }}/addresses"
  run_once: true
"""

RETURN = r"""
problems:
  description: The problems, with the names of the hosts. The module fails if there are any.
  returned: always
  type: list
  elements: str
  sample: ["gpu-02: dra_driver_rail_index: 3 is already the index of gpu-01 (give each node its own index ...)"]
pools:
  description: The pools, with the number of nodes that they have room for.
  returned: success, without O(check_only)
  type: list
  elements: dict
  sample: [{rail: 0, family: ipv4, pool: 10.100.0.0/16, per_node: 64, prefix: 16, reach: rail, room: 1024, nodes: 2}]
ranges:
  description: The ranges, by rail, IP family and index of the node.
  returned: success, without O(check_only)
  type: list
  elements: dict
  contains:
    rail:
      description: The rail.
      type: int
    family:
      description: V(ipv4) or V(ipv6).
      type: str
    node:
      description: The host.
      type: str
    index:
      description: The index of the host.
      type: int
    range:
      description: The range as a network, such as V(10.100.4.64/26).
      type: str
    first:
      description: The first address.
      type: str
    last:
      description: The last address.
      type: str
    usable:
      description: The number of addresses that the driver can hand out, without the gateway and the subnet's own ones.
      type: int
    prefix:
      description: The prefix length of an address in a pod.
      type: int
    gateway:
      description: The router on this rail, or null.
      type: str
    reach:
      description: The destinations that an address can reach, V(rail) or V(all).
      type: str
    pool:
      description: The pool.
      type: str
lines:
  description: The same as tables for a terminal.
  returned: success, without O(check_only)
  type: list
  elements: str
csv:
  description: The path of C(addresses.csv).
  returned: with O(dest)
  type: str
  sample: /srv/site/addresses/addresses.csv
json:
  description: The path of C(addresses.json).
  returned: with O(dest)
  type: str
  sample: /srv/site/addresses/addresses.json
"""
