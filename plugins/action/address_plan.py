# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the address plan of a site and write it. The documentation is in plugins/modules/address_plan.py."""

from __future__ import annotations

import json
import pathlib
import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.dra.addresses import formats
from ansible_collections.lanewise.dra.plugins.module_utils.dra.addresses.site_plan import (
    INDEX,
    PLAN,
    NodeInput,
    Site,
    site_plan,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problem, Problems
from ansible_collections.lanewise.dra.plugins.module_utils.topology.stored import Formats
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ReportAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.site_variables import refusal, set_by_facts
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Result, Spec, Variables

#: The collection itself does not read `addresses.json`; the format number is for programs of the site.
FORMATS = Formats()
_SPEC: Spec = {"dest": {"type": "path"}, "check_only": {"type": "bool", "default": False}}
#: The maximum number of problems in the message. The result has all of them.
_MAX_SHOWN = 20
#: Gathered facts with the node's addresses.
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
            more = len(lines) - _MAX_SHOWN
            listed = [*lines[:_MAX_SHOWN], *([f"and {more} more"] if more > 0 else [])]
            message = "The address plan of the rails has errors:\n" + "\n".join(listed)
            result.update(failed=True, problems=lines, msg=message)
            return result
        if not options["check_only"]:
            result.update(pools=formats.pool_rows(site), ranges=formats.rows(site), lines=formats.lines(site))
        if options["dest"]:
            result.update(self._written(pathlib.Path(self._loader.path_dwim(options["dest"])), site))
        return result

    def _written(self, dest: pathlib.Path, site: Site) -> Result:
        """Write the files that differ. Returns the part of the result that describes them."""
        content = FORMATS.write({"pools": formats.pool_rows(site), "ranges": formats.rows(site)})
        files = {
            "addresses.csv": formats.as_csv(site).encode(),
            "addresses.json": (json.dumps(content, indent=1, sort_keys=True) + "\n").encode(),
        }
        with self._reporting_faults():
            written = self._write_files(dest, files)
        result: Result = {
            "changed": bool(written),
            "csv": str(dest / "addresses.csv"),
            "json": str(dest / "addresses.json"),
        }
        if self._task.diff and written:
            result["diff"] = {"prepared": "\n".join([f"{dest}:", *written]) + "\n"}
        return result


def _nodes(variables: Variables) -> list[NodeInput]:
    """All hosts of the inventory, regardless of --limit: those without an address plan for the addresses that they use
    themselves. Raises Problems."""
    nodes, problems = [], []
    hostvars = variables["hostvars"]
    for name in sorted((variables.get("groups") or {}).get("all") or ()):
        raw = hostvars.raw_get(name)
        if not isinstance(raw, dict):
            continue
        if not raw.get(PLAN):
            nodes.append(NodeInput(name, None, None, _known_addresses(raw)))
            continue
        from_facts = set_by_facts(variables, name)
        if from_facts:
            problems.append(Problem(name, refusal(name, from_facts), "facts"))
            continue
        host = hostvars[name]
        nodes.append(NodeInput(name, host[PLAN], host[INDEX] if INDEX in raw else None, _known_addresses(raw)))
    if problems:
        raise Problems(problems)
    return nodes


def _known_addresses(variables: t.Mapping[str, t.Any]) -> tuple[str, ...]:
    """The addresses of a node that the controller knows, which are `ansible_host` and those in gathered facts."""
    facts = variables.get("ansible_facts")
    listed = [facts.get(key) for key in _ADDRESSES] if isinstance(facts, dict) else []
    gathered = [text for values in listed if isinstance(values, list) for text in values if isinstance(text, str)]
    host = variables.get("ansible_host")
    return (*([host] if isinstance(host, str) else []), *gathered)
