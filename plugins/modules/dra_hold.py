#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_hold
short_description: Keep devices for one job, or release them
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - A hold is a set of DeviceTaintRules, one for each device, with the taint C(lanewise.dev/hold=NAME:NoSchedule). The
    scheduler allocates such a device only to claims that tolerate this taint. Pods that have the device keep it.
  - Each rule has the owner, the reason and the time of expiry as annotations. Nothing is released when it expires, but
    C(lanewise.dra.drift) reports it.
  - The name of a rule is derived from its device, so two holds never have the same device. If a device belongs to
    another hold, no rule is created.
  - A hold reserves devices, but no CPU or memory of their nodes. Claims that tolerate every taint ignore it.
notes:
  - Runs on the controller, with the rights of the kubeconfig. It must allow listing, creating, updating and deleting
    C(devicetaintrules.resource.k8s.io).
extends_documentation_fragment:
  - lanewise.dra.cluster
  - lanewise.dra.hold_expiry
  - lanewise.dra.attributes
  - lanewise.dra.attributes.dry_run
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  name:
    description: The name of the hold, which is also the value of its taint.
    type: str
    required: true
  state:
    description: Whether the hold should exist.
    type: str
    choices: [present, absent]
    default: present
  owner:
    description:
      - The owner of the hold. Required for V(present).
      - The task fails if the hold belongs to another owner. With V(absent) and without this option, the owner is not
        checked.
    type: str
  reason:
    description: The reason for the hold. Required for V(present).
    type: str
  purpose:
    description: What the hold is for. With V(present), the task fails if the hold exists with another purpose.
    type: str
    choices: [reserve, defragment]
    default: reserve
  devices:
    description:
      - The devices, as C(driver/pool/device). Other devices of the hold are released.
      - Required for V(present), from 1 to 4096. To release all, use V(absent).
    type: list
    elements: str
  feature_gates:
    description:
      - Feature gates of the cluster that differ from the defaults of its version.
      - Before 1.37, the scheduler ignores DeviceTaintRules by default, so this module fails. If C(DRADeviceTaints), and
        from 1.35 on C(DRADeviceTaintRules), are enabled, set them here.
    type: dict
    default: {}
seealso:
  - module: lanewise.dra.dra_holds_info
  - module: lanewise.dra.reservation_plan
"""

EXAMPLES = r"""
- name: Keep a GPU and its NIC until tomorrow
  lanewise.dra.dra_hold:
    name: demo
    owner: ml-platform
    reason: customer demo
    hours: 24
    devices:
      - gpu.nvidia.com/gpu-01/gpu-0
      - lanewise.dev/gpu-01/pci-0000-18-00-0
  delegate_to: localhost

- name: Release the hold
  lanewise.dra.dra_hold:
    name: demo
    state: absent
  delegate_to: localhost
"""

RETURN = r"""
hold:
  description: The hold after the task, or before its release. Empty if there was none.
  returned: success
  type: dict
  sample:
    name: demo
    owner: ml-platform
    reason: customer demo
    expires: "2026-12-01T08:00:00Z"
    purpose: reserve
    overdue: false
    devices: [gpu.nvidia.com/gpu-01/gpu-0]
toleration:
  description: The toleration that each request of the job's claims needs in C(tolerations).
  returned: success
  type: dict
  sample: {key: lanewise.dev/hold, operator: Equal, value: demo, effect: NoSchedule}
added:
  description: The devices that were added, or would be in check mode.
  returned: success
  type: list
  elements: str
removed:
  description: The devices that were released, or would be in check mode.
  returned: success
  type: list
  elements: str
"""

import typing as t
from datetime import datetime, timezone

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_holds import Rules, run
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold as hold_rules
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import serving
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.changes import Refused
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import Hold
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.times import expiry
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.tolerations import toleration
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object

SPEC = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "owner": {"type": "str"},
    "reason": {"type": "str"},
    "purpose": {"type": "str", "choices": [hold_rules.RESERVE, hold_rules.DEFRAGMENT], "default": hold_rules.RESERVE},
    "hours": {"type": "int", "default": 24},
    "expires": {"type": "str"},
    "devices": {"type": "list", "elements": "str"},
    "kubeconfig": {"type": "path"},
    "context": {"type": "str"},
    "feature_gates": {"type": "dict", "default": {}},
}


def wanted_hold(params: Object, old: Hold | None, now: datetime) -> Hold:
    """The hold that the parameters describe. Raises ValueError."""
    expires = expiry(params["expires"], params["hours"], old, now)
    devices = tuple(hold_rules.parse_device(device) for device in dict.fromkeys(params["devices"]))
    return Hold(params["name"], params["owner"], params["reason"], expires, devices, params["purpose"])


def apply_hold(module: AnsibleModule, rules: Rules) -> Object:
    """Create, change or release the hold, and return the module's result.

    Raises ValueError, ApiException and HTTPError.
    """
    now = datetime.now(timezone.utc)
    params = module.params
    old = next((hold for hold in hold_rules.holds(rules.list()) if hold.name == params["name"]), None)
    if old and old.purpose == hold_rules.SWAP:
        raise Refused(f"{old.title()} belongs to a swap: return the swap with lanewise.dra.swap")
    new = None
    if params["state"] == "present":
        new = wanted_hold(params, old, now)
        hold_rules.check(new, now)
        changes = rules.make(new, module.check_mode)
    else:
        changes = rules.release(params["name"], params["owner"] or "", module.check_mode)
    before = old.as_dict(now) if old else {}
    after = new.as_dict(now) if new else {}
    return {
        "changed": bool(changes),
        "hold": after or before,
        "toleration": toleration(params["name"]),
        "added": [device for device in after.get("devices", ()) if device not in before.get("devices", ())],
        "removed": [device for device in before.get("devices", ()) if device not in after.get("devices", ())],
        "diff": {"before": _shown(before), "after": _shown(after)},
    }


def _shown(hold: Object) -> Object:
    """A hold as the diff shows it."""
    return {**hold, "devices": sorted(hold["devices"])} if hold else {}


def main() -> None:
    module = AnsibleModule(
        argument_spec=SPEC,
        required_if=[("state", "present", ("owner", "reason", "devices"))],
        supports_check_mode=True,
    )
    params, present = module.params, module.params["state"] == "present"

    def work(api: t.Any, kubernetes: str) -> Object:
        gates = params["feature_gates"]
        served = serving.require(kubernetes, gates) if present else serving.api_version(kubernetes)
        return apply_hold(module, Rules(api, served))

    run(module, f"hold {params['name']} cannot be {'created or changed' if present else 'released'}", work)


if __name__ == "__main__":
    main()
