# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which variables of a host may come from its facts: what a node answers must not decide where the controller writes,
which cluster it speaks to, or on whose behalf.

Any module may answer with `ansible_facts`. With `inject_facts_as_vars`, Ansible's default, these become variables
that go before the inventory and the defaults of roles (see "Understanding variable precedence" in Ansible's
documentation).
"""

from __future__ import annotations

import fnmatch
import re
import typing as t

from ansible import constants

#: The variables that facts may set, as patterns: what Ansible's own modules return. All others are the site's.
FROM_FACTS = (
    "ansible_*",
    "discovered_interpreter_*",
    "facter_*",
    "gather_subset",
    "module_setup",
    "ohai_*",
    "packages",
    "services",
)
#: Of these, what the options of the command line set, if anything does.
NOT_FROM_FACTS = ("ansible_limit",)

_ALLOWED = re.compile("|".join(fnmatch.translate(one) for one in FROM_FACTS))
_SHOWN = 5


def set_by_facts(variables: t.Mapping[str, t.Any], host: str) -> list[str]:
    """The names of a host's facts that are variables of the site, at most five of them, where facts become variables.

    `variables` are those of a task of any host, as the variable manager made them. Its `ansible_facts` have lost the
    prefix `ansible_`, so that `ansible_domain` could not be told from `domain`: the names are of the fact cache.
    """
    if not constants.config.get_config_value("INJECT_FACTS_AS_VARS"):
        return []
    names = (str(name) for name in _names(variables.get("hostvars"), host))
    return sorted(name for name in names if name in NOT_FROM_FACTS or not _ALLOWED.match(name))[:_SHOWN]


def _names(hostvars: t.Any, host: str) -> t.Iterable[str]:
    try:
        return list(hostvars._variable_manager._fact_cache.get(host) or ())
    except KeyError:
        return ()
    except AttributeError:  # another Ansible than those that were tried: too strict rather than too lax
        own = hostvars.raw_get(host) if hostvars is not None else {}
        return [name for name in own.get("ansible_facts") or () if name in own]


def refusal(host: str, names: t.Sequence[str]) -> str:
    """Why nothing is done with the variables of a host, and what to do about it."""
    return (
        f"{host} answered with facts that Ansible takes for variables of the site: "
        + ", ".join(repr(name[:80]) for name in names)
        + ". Nothing is done for this host with them. No module of Ansible's own answers so: if this is not a fact of "
        "yours, look at the node before you trust it again. With inject_facts_as_vars = false under [defaults] in "
        "ansible.cfg (or ANSIBLE_INJECT_FACT_VARS=false), facts become no variables. Facts of an earlier run may be in "
        "a fact cache: --flush-cache."
    )


def site_values(variables: t.Mapping[str, t.Any], hosts: t.Iterable[str], name: str) -> list[t.Any]:
    """A variable of each host that the site has set it for.

    Hosts with facts in the place of the site's variables are left out; the next task of theirs fails for it. Empty in a
    check of the syntax, for which Ansible loads no variables of hosts.
    """
    if "hostvars" not in variables:
        return []
    trusted = [variables["hostvars"][host] for host in hosts if not set_by_facts(variables, host)]
    return [own[name] for own in trusted if name in own]
