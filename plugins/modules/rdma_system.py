#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rdma_system
short_description: Set whether network namespaces share RDMA devices
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Sets whether an RDMA device belongs to one network namespace, now and after each boot.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
  - lanewise.dra.fabric
  - lanewise.dra.fabric.part
  - lanewise.dra.settings.rdma
"""

EXAMPLES = r"""
- name: Give each RDMA device to only one network namespace
  lanewise.dra.rdma_system:
    rdma_netns_mode: exclusive
  become: true
  register: rdma
"""

RETURN = r"""
changes: {description: "As M(lanewise.dra.fabric) returns them.", returned: success, type: list, elements: dict}
"""

from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

compiled_once.begin()

from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import run_on_node
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import RDMA


def main() -> None:
    run_on_node(RDMA)


if __name__ == "__main__":
    main()
