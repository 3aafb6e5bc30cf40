#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_args
short_description: Set kernel arguments for the next boot
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Compares the arguments of the running kernel and of the next boot with the desired ones, one by one.
  - Supports GRUB of Debian and Ubuntu, and boot loader entries of the RHEL family and of systemd-boot.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
  - lanewise.dra.fabric
  - lanewise.dra.fabric.part
  - lanewise.dra.settings.kernel_args
"""

EXAMPLES = r"""
- name: Disable DMA translation for the host
  lanewise.dra.kernel_args:
    iommu: passthrough
    kernel_args: [pci=realloc]
  become: true
  register: arguments

- name: Reboot
  ansible.builtin.reboot:
  become: true
  when: arguments.reboot_required
"""

RETURN = r"""
changes: {description: "As M(lanewise.dra.fabric) returns them.", returned: success, type: list, elements: dict}
"""

from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

compiled_once.begin()

from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import run_on_node
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import KERNEL_ARGS


def main() -> None:
    run_on_node(KERNEL_ARGS)


if __name__ == "__main__":
    main()
