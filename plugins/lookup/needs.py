# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: needs
short_description: Fail with an instruction if a collection is missing
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Use this in C(when) of a task whose included tasks need another collection. If the controller does not have it, the
    task fails with the command to install it. Ansible itself would report that collection's modules as misspelt.
options:
  _terms:
    description: The collections, such as V(kubernetes.core).
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Read the cluster
  ansible.builtin.include_tasks: cluster.yml
  when: lookup('lanewise.dra.needs', 'kubernetes.core')
"""

RETURN = r"""
_raw:
  description: Always V(true). The lookup fails if a collection is missing.
  type: list
  elements: bool
"""

import importlib.util

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Variables


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: Variables | None = None, **kwargs: object) -> list[bool]:
        missing = [name for name in terms if not _is_installed(name)]
        if missing:
            raise AnsibleError(
                f"Not installed on the controller: {', '.join(missing)}. Run: "
                f"ansible-galaxy collection install {' '.join(missing)}"
            )
        return [True]


def _is_installed(name: str) -> bool:
    """Whether the controller has a collection."""
    try:
        return importlib.util.find_spec(f"ansible_collections.{name}") is not None
    except ModuleNotFoundError:  # its namespace is missing, too
        return False
