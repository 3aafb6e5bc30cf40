# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the address plan of a site, and write it. The documentation is in plugins/modules/address_plan.py."""

from __future__ import annotations

import json
import pathlib
import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.dra.addresses import shown
from ansible_collections.lanewise.dra.plugins.module_utils.dra.addresses.site_plan import (
    INDEX,
    PLAN,
    NodeInput,
    Site,
    site_plan,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problem, Problems
from ansible_collections.lanewise.dra.plugins.module_utils.topology.stored import Forms
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ReportAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.site_variables import refusal, set_by_facts
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Result, Spec, Variables

#: The collection does not read `addresses.json` again; the number is for programs of the site.
FORMS = Forms()
_SPEC: Spec = {"dest": {"type": "path"}, "check_only": {"type": "bool", "default": False}}
#: The most problems in the message; all of them are in the result.
_SHOWN = 20
#: Gathered facts that hold the addresses of the node itself.
_ADDRESSES = ("all_ipv4_addresses", "all_ipv6_addresses")


class ActionModule(ReportAction):
    """Reads the variables of all hosts of the inventory. Never connects to a target."""

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> Result:
        result = super().run(tmp, task_vars)
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC)
        variables = task_vars or {}
        result.update(changed=False, problems=[])
        try:
            site = site_plan(_nodes(variables))
        except Problems as error:
            lines = [str(problem) for problem in error.problems]
            more = len(lines) - _SHOWN
            listed = [*lines[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
            message = "The addresses for rails are not planned right:\n" + "\n".join(listed)
            result.update(failed=True, problems=lines, msg=message)
            return result
        if not options["check_only"]:
            result.update(pools=shown.pool_rows(site), ranges=shown.rows(site), lines=shown.lines(site))
        if options["dest"]:
            result.update(self._written(pathlib.Path(self._loader.path_dwim(options["dest"])), site))
        return result

    def _written(self, dest: pathlib.Path, site: Site) -> Result:
        content = FORMS.write({"pools": shown.pool_rows(site), "ranges": shown.rows(site)})
        files = {
            "addresses.csv": shown.as_csv(site).encode(),
            "addresses.json": (json.dumps(content, indent=1, sort_keys=True) + "\n").encode(),
        }
        with self._reporting_faults():
            written = self._write_files(dest, files)
        found: Result = {
            "changed": bool(written),
            "csv": str(dest / "addresses.csv"),
            "json": str(dest / "addresses.json"),
        }
        if self._task.diff and written:
            found["diff"] = {"prepared": "\n".join([f"{dest}:", *written]) + "\n"}
        return found


def _nodes(variables: Variables) -> list[NodeInput]:
    """The hosts of the inventory that have a plan, whatever the limit of the run is. Raises Problems."""
    found, problems = [], []
    hostvars = variables["hostvars"]
    for name in sorted((variables.get("groups") or {}).get("all") or ()):
        own = hostvars.raw_get(name)
        if not isinstance(own, dict) or not own.get(PLAN):
            continue
        from_facts = set_by_facts(variables, name)
        if from_facts:
            problems.append(Problem(name, refusal(name, from_facts), "facts"))
            continue
        host = hostvars[name]
        found.append(NodeInput(name, host[PLAN], host[INDEX] if INDEX in own else None, _own(own)))
    if problems:
        raise Problems(problems)
    return found


def _own(own: t.Mapping[str, t.Any]) -> tuple[str, ...]:
    """The addresses of a node that are known on the controller: those that Ansible connects to, and gathered ones."""
    facts = own.get("ansible_facts")
    listed = [facts.get(key) for key in _ADDRESSES] if isinstance(facts, dict) else []
    gathered = [text for one in listed if isinstance(one, list) for text in one if isinstance(text, str)]
    host = own.get("ansible_host")
    return (*([host] if isinstance(host, str) else []), *gathered)
