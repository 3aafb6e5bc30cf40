# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: facts_checked
short_description: Refuse facts that override the site's variables
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Any module's result may contain facts. With C(inject_facts_as_vars), Ansible's default, these become variables that
    override the inventory and the defaults of roles. A node could thus choose the kubeconfig or the name that
    the controller uses.
  - As a condition of a task or block, this fails for a host with such facts. The roles of this collection use it
    on every task that uses a variable of the host on the controller.
  - Variables with the prefix C(ansible_) and what Ansible's own modules return, such as C(packages), C(services) and
    C(getent_*), may come from facts; all other variables may not. Nor may variables that choose programs, files or host
    keys of the controller, such as C(ansible_sftp_executable). If C(inject_facts_as_vars) is off, no fact becomes a
    variable.
options:
  _terms:
    description: Takes no terms.
  hosts:
    description: The hosts whose facts are checked, if variables of several hosts are used. By default the task's host.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Read the node in the cluster
  kubernetes.core.k8s_info:
    kubeconfig: "{{ my_kubeconfig }}"
    kind: Node
    name: "{{ my_node_name }}"
  delegate_to: localhost
  when: lookup('lanewise.dra.facts_checked')
"""

RETURN = r"""
_raw:
  description: Always V(true). The lookup fails if a fact overrides a variable of the site.
  type: list
  elements: bool
"""


from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.lanewise.dra.plugins.plugin_utils.site_variables import refusal, set_by_facts
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Variables


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: Variables | None = None, **kwargs: object) -> list[bool]:
        self.set_options(var_options=variables, direct=kwargs)
        if terms:
            raise AnsibleError("facts_checked takes no terms")
        known = variables or {}
        hosts = self.get_option("hosts")
        if hosts is None:
            hosts = [str(known.get("inventory_hostname", ""))]
        refusals = [refusal(host, names) for host in hosts if (names := set_by_facts(known, host))]
        if refusals:
            raise AnsibleError("\n".join(refusals))
        return [True]
