# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: site_values
short_description: Read a site variable of several hosts
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Returns the values of a variable that applies to all hosts, such as the size of a batch, from the hosts that have
    it.
  - Hosts whose facts override the site's variables are left out, see P(lanewise.dra.facts_checked#lookup).
options:
  _terms:
    description: The name of the variable.
    type: list
    elements: str
    required: true
  hosts:
    description: The hosts, in the order of the returned values.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Change nodes in batches of the size that the inventory sets
  hosts: gpu_nodes
  serial: "{{ query('lanewise.dra.site_values', 'my_serial', hosts=groups.gpu_nodes) | first | default(1) }}"
  tasks: []
"""

RETURN = r"""
_raw:
  description: The values of the hosts that have the variable.
  type: list
"""


from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.lanewise.dra.plugins.plugin_utils.site_variables import site_values
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Variables


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: Variables | None = None, **kwargs: object) -> list[object]:
        self.set_options(var_options=variables, direct=kwargs)
        if len(terms) != 1:
            raise AnsibleError("site_values takes the name of one variable")
        return site_values(variables or {}, self.get_option("hosts"), terms[0])
