#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_holds_info
short_description: List the holds of devices, with owner, reason and expiry
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Lists the holds of a cluster, as M(lanewise.dra.dra_hold) and M(lanewise.dra.dra_swap) create them, and which of
    them are overdue.
notes:
  - Runs on the controller, with the rights of the kubeconfig. It must allow listing
    C(devicetaintrules.resource.k8s.io).
extends_documentation_fragment:
  - lanewise.dra.cluster
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.actiongroup_lanewise
seealso:
  - module: lanewise.dra.dra_hold
"""

EXAMPLES = r"""
- name: List the holds
  lanewise.dra.dra_holds_info:
    kubeconfig: ~/.kube/config
  delegate_to: localhost
  register: listed

- name: Show the overdue holds
  ansible.builtin.debug:
    msg: "{{ listed.overdue }}"
"""

RETURN = r"""
holds:
  description: The holds by name.
  returned: success
  type: list
  elements: dict
  sample:
    - name: demo
      owner: ml-platform
      reason: customer demo
      expires: "2026-12-01T08:00:00Z"
      purpose: reserve
      overdue: false
      devices: [gpu.nvidia.com/gpu-01/gpu-0]
lines:
  description: A line for each hold, and for each swap that has rules but no hold.
  returned: success
  type: list
  elements: str
  sample: ["hold demo of ml-platform, until 2026-12-01T08:00:00Z (customer demo): 1 device"]
overdue:
  description:
    - A line for each hold that has expired or has no expiry, and for each swap without a hold, with what to do.
  returned: success
  type: list
  elements: str
  sample:
    - "hold demo of ml-platform, until 2026-12-01T08:00:00Z (customer demo), is overdue: 1 device is still held: release
      or extend it with lanewise.dra.reserve"
served:
  description: Whether the server serves DeviceTaintRules. If not, there are no holds.
  returned: success
  type: bool
"""

import typing as t
from datetime import datetime, timezone

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_holds import Rules, run
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import serving, swap
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import RESERVE, SWAP, holds
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object


def list_holds(rules: list[t.Any], now: datetime) -> Object:
    """What the module returns for the rules of a cluster."""
    listed, evicting, counting = holds(rules), swap.evicting_rules(rules), swap.counting_rules(rules)
    lines, overdue = [], []
    for hold in listed:
        count = len(hold.devices)
        devices = "1 device" if count == 1 else f"{count} devices"
        rules_text = _rules_text(evicting.pop(hold.name, 0), counting.pop(hold.name, 0))
        lines.append(f"{hold.title()}: {devices}{rules_text and ', '}{rules_text}")
        if hold.overdue(now):
            held = f"{devices} {'is' if count == 1 else 'are'} still held"
            overdue.append(f"{hold.title()}, is overdue: {held}: {_advice(hold.purpose)}")
    for name in sorted({*evicting, *counting}):
        rules_text = _rules_text(evicting.get(name, 0), counting.get(name, 0))
        lines.append(f"swap {name} without a hold: {rules_text}")
        overdue.append(f"swap {name} has no hold, but {rules_text}: return it with lanewise.dra.swap")
    return {"holds": [hold.as_dict(now) for hold in listed], "lines": lines, "overdue": overdue, "served": True}


def _advice(purpose: str) -> str:
    """How to release or extend an overdue hold. lanewise.dra.reserve only extends holds that it created."""
    if purpose == SWAP:
        return "return or extend the swap with lanewise.dra.swap"
    return f"release{' or extend' if purpose == RESERVE else ''} it with lanewise.dra.reserve"


def _rules_text(evicting: int, counting: int) -> str:
    """What the rules of a swap do, with the number of each kind; empty without rules."""
    texts = [f"{evicting} {'rule still evicts' if evicting == 1 else 'rules still evict'} pods"] if evicting else []
    if counting:
        texts.append(f"{counting} {'rule counts' if counting == 1 else 'rules count'} pods")
    return " and ".join(texts)


def work(api: t.Any, kubernetes: str) -> Object:
    """What the module returns for a cluster. Raises ValueError, ApiException and HTTPError."""
    try:
        rules = Rules(api, serving.api_version(kubernetes)).list()
    except serving.Unsupported:
        return {"holds": [], "lines": [], "overdue": [], "served": False}
    return list_holds(rules, datetime.now(timezone.utc))


def main() -> None:
    module = AnsibleModule(
        argument_spec={"kubeconfig": {"type": "path"}, "context": {"type": "str"}}, supports_check_mode=True
    )
    run(module, "the holds cannot be listed", work)


if __name__ == "__main__":
    main()
