# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which variables of a host may come from its facts. Facts of a node must not decide where the controller writes, which
cluster it uses, or with which credentials.

Any module may return `ansible_facts`. With `inject_facts_as_vars`, Ansible's default, these become variables that
override the inventory and the defaults of roles (see "Understanding variable precedence" in Ansible's
documentation). Of the variables that Ansible uses itself, it accepts only some from facts (`clean_facts`).

Not covered:

- Tasks of Ansible's own modules on the host. They connect with the host's variables, and nothing checks its facts
  first, so that a fact such as `ansible_sftp_executable` is used until the next task that checks facts.
- Options of other collections' plugins, such as connection plugins and lookups, whose names begin with `ansible_`.

Only with `inject_facts_as_vars` off, these cannot come from facts.
"""

from __future__ import annotations

import fnmatch
import re
import typing as t

from ansible import constants
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Variables

#: Patterns of the variables that facts may set, as Ansible's own modules return them. All others belong to the site.
FROM_FACTS = (
    "_ansible_facts_gathered",
    "aggregate_mounts",
    "ansible_*",
    "discovered_interpreter_*",
    "facter_*",
    "gather_subset",
    "getent_*",
    "module_setup",
    "mount_points",
    "ohai_*",
    "packages",
    "pkg_mgr",
    "services",
)
#: Patterns of variables that match FROM_FACTS, but that facts must not set. Ansible sets `ansible_limit` only if the
#: option --limit is given; otherwise a fact of this name would be used. The others are options of ansible-core's
#: connection plugins and lookups that Ansible accepts from facts. They choose programs, files and host keys that the
#: controller uses.
NOT_FROM_FACTS = (
    "ansible_control_path",
    "ansible_control_path_dir",
    "ansible_host_key_checking",
    "ansible_limit",
    "ansible_lookup_url_*",
    "ansible_paramiko_*",
    "ansible_private_key",
    "ansible_private_key_passphrase",
    "ansible_scp_executable",
    "ansible_sftp_batch_mode",
    "ansible_sftp_executable",
    "ansible_ssh_host_key_checking",
    "ansible_sshpass_prompt",
)

_ALLOWED, _REFUSED = (
    re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns))
    for patterns in (FROM_FACTS, NOT_FROM_FACTS)
)
_MAX_SHOWN = 5


def set_by_facts(variables: Variables, host: str) -> list[str]:
    """At most five names of a host's facts that are not on the list, and so could replace variables of the site.

    Empty if facts do not become variables.

    `variables` are those of a task of any host. The names are read from the fact cache: in `ansible_facts` they lack
    the prefix `ansible_`, so that `ansible_domain` and `domain` could not be distinguished.
    """
    if not constants.config.get_config_value("INJECT_FACTS_AS_VARS"):
        return []
    names = (str(name) for name in _names(variables.get("hostvars"), host))
    return sorted(name for name in names if _REFUSED.match(name) or not _ALLOWED.match(name))[:_MAX_SHOWN]


def _names(hostvars: t.Any, host: str) -> t.Iterable[str]:
    try:
        return list(hostvars._variable_manager._fact_cache.get(host) or ())
    except KeyError:
        return ()
    except AttributeError:  # an untested version of Ansible: report too many names rather than too few
        raw = hostvars.raw_get(host) if hostvars is not None else {}
        facts = raw.get("ansible_facts") or ()
        return [name for fact in facts for name in (fact, f"ansible_{fact}") if name in raw]


def refusal(host: str, names: t.Sequence[str]) -> str:
    """The error message for a host with such facts."""
    return (
        f"{host} returned facts that Ansible uses as variables of the site: "
        + ", ".join(repr(name[:80]) for name in names)
        + ". So nothing is done for this host. No module of Ansible itself returns these: if they are not facts that "
        "you set, check the node before you trust it again. With inject_facts_as_vars = false under [defaults] in "
        "ansible.cfg (or ANSIBLE_INJECT_FACT_VARS=false), facts do not become variables. Facts of an earlier run may "
        "be in a fact cache; --flush-cache clears it."
    )


def site_values(variables: Variables, hosts: t.Iterable[str], name: str) -> list[object]:
    """A variable's value for each host that has it.

    Hosts whose facts could replace variables of the site are left out; their next task on the controller that checks
    facts fails. Empty in a syntax check, for which Ansible loads no variables of hosts.
    """
    if "hostvars" not in variables:
        return []
    trusted = [variables["hostvars"][host] for host in hosts if not set_by_facts(variables, host)]
    return [values[name] for values in trusted if name in values]
