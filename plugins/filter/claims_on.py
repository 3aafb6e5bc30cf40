# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

DOCUMENTATION = r"""
name: claims_on
short_description: Find the claims of pods that have devices of a driver
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Returns the names of the ResourceClaims that have devices from certain pools of a driver and are reserved for a
    pod.
positional: _input
options:
  _input:
    description: ResourceClaims, as in RV(lanewise.dra.dra_objects_info#module:objects).
    type: list
    elements: dict
    required: true
  driver:
    description: The name of the driver.
    type: str
    required: true
  pools:
    description: The names of the driver's pools on the node. Usually there is one, with the name of the node.
    type: list
    elements: str
    required: true
seealso:
  - module: lanewise.dra.dra_objects_info
"""

EXAMPLES = r"""
- name: Fail while pods have DRANET's devices
  ansible.builtin.assert:
    that: cluster.objects.ResourceClaim | lanewise.dra.claims_on(driver='dra.net', pools=['gpu-07']) | length == 0
"""

RETURN = r"""
_value:
  description: The claims as C(namespace/name), sorted.
  type: list
  elements: str
"""


def claims_on(claims: t.Any, driver: str, pools: t.Any) -> list[str]:
    """The reserved claims with devices of these pools. See the documentation above."""
    pool_names = {str(pool) for pool in pools}
    names = []
    for claim in claims:
        status = claim.get("status") or {}
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        if status.get("reservedFor") and any(
            result["driver"] == driver and result["pool"] in pool_names for result in results
        ):
            names.append(f"{claim['metadata']['namespace']}/{claim['metadata']['name']}")
    return sorted(names)


class FilterModule:
    """Filters about claims."""

    def filters(self) -> dict[str, t.Callable[..., list[str]]]:
        return {"claims_on": claims_on}
