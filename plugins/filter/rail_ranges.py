# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.lanewise.dra.plugins.module_utils.dra.addresses.site_plan import ranges_of
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems

DOCUMENTATION = r"""
name: rail_ranges
short_description: Compute the address ranges of a node on its rails
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Returns the driver's setting C(rail_addresses) for a node, from the site's address plan and the node's index alone.
  - Fails if the plan or the index is wrong. To find conflicts between nodes, use M(lanewise.dra.address_plan).
positional: _input, index
options:
  _input:
    description: The address plan, C(dra_driver_rail_addresses) of the role P(lanewise.dra.dra_driver#role).
    type: dict
    required: true
  index:
    description: The node's index, C(dra_driver_rail_index).
    type: int
    required: true
seealso:
  - module: lanewise.dra.address_plan
"""

EXAMPLES = r"""
- name: Show the ranges of this node
  ansible.builtin.debug:
    msg: "{{ dra_driver_rail_addresses | lanewise.dra.rail_ranges(dra_driver_rail_index) }}"
"""

RETURN = r"""
_value:
  description: The ranges, one for each rail and IP family.
  type: list
  elements: dict
  sample: [{rail: 0, range: 10.100.4.64/26, pool: 10.100.0.0/16, prefix: 16, reach: rail}]
"""


def rail_ranges(plan: object, index: object = None) -> list[dict[str, t.Any]]:
    """The ranges of a node. Raises AnsibleFilterError. See the documentation above."""
    try:
        return ranges_of(plan, index)
    except Problems as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """Filters about addresses of rails."""

    def filters(self) -> dict[str, t.Callable[..., list[dict[str, t.Any]]]]:
        return {"rail_ranges": rail_ranges}
