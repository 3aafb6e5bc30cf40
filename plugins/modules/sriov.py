#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sriov
short_description: Make VFs and set them up
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Sets the number of VFs of the PFs that O(select) chooses, the mode of their switch, and what each VF has.
  - VFs that a pod, a guest or the node uses are never taken away or changed.
  - A reboot forgets the settings. M(lanewise.dra.fabric) makes them last.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
  - lanewise.dra.fabric
  - lanewise.dra.fabric.select
  - lanewise.dra.settings.sriov
seealso:
  - module: lanewise.dra.fabric
    description: Takes all of a node's settings in one call.
"""

EXAMPLES = r"""
- name: Eight trusted VFs on each NIC beside a GPU
  lanewise.dra.sriov:
    select: {near_gpu: PIX}
    num_vfs: 8
    vf:
      trust: true
      spoof_check: false
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
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import SRIOV


def main() -> None:
    run_on_nics(SRIOV)


if __name__ == "__main__":
    main()
