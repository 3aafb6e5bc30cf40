# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the site report on the controller. The documentation is in plugins/modules/site_report.py."""

from __future__ import annotations

import dataclasses
import datetime

from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Topology
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ReportAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.host_facts import facts_of, probe_of
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_pages import Pages
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_site import Request, Site
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Result, Spec, Variables

#: The sections of facts that a complete page needs.
_SECTIONS = frozenset(field.name for field in dataclasses.fields(Topology))

_SPEC: Spec = {
    "dest": {"type": "path", "required": True},
    "nodes": {"type": "dict"},
    "title": {"type": "str", "default": "GPU and RDMA topology"},
    "prune": {"type": "bool", "default": True},
    "unreachable": {"type": "list", "elements": "str"},
    "failed": {"type": "list", "elements": "str"},
    "template_dir": {"type": "path"},
    "claims": {"type": "dict"},
}


class ActionModule(ReportAction):
    """Merges the facts of this run's hosts into the report folder. Never connects to a target."""

    _incomplete: list[str]

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> Result:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC)

        dest = self._loader.path_dwim(options["dest"])
        folders = self._templates(options["template_dir"], "topology")
        with self._reporting_faults():
            site = Site(dest, Pages(folders, options["title"]), options["title"], dry=self._task.check_mode)
            result.update(site.update(self._request(options, variables)))
        result.update(changed=site.changed, path=f"{dest}/index.html")
        if site.store.warnings or self._incomplete:
            result["warnings"] = site.store.warnings + self._incomplete
        if self._task.diff and site.diff:
            result["diff"] = {"prepared": "\n".join([f"{dest}:", *site.diff]) + "\n"}
        return result

    def _request(self, options: Variables, variables: Variables) -> Request:
        """The update of the report, from the options or, by default, from the variables of the play's hosts."""
        play = set(variables.get("ansible_play_hosts_all") or [])
        if options["nodes"] is None:
            known = {host: facts_of(variables, host) for host in sorted(play)}
            facts = {host: of_host for host, of_host in known.items() if of_host is not None}
        else:
            facts = {str(host): of_host for host, of_host in options["nodes"].items() if isinstance(of_host, dict)}
            play = {str(host) for host in options["nodes"]}
        self._incomplete = []
        for host in sorted(facts):
            missing = sorted(_SECTIONS - facts[host].keys())
            if missing:  # otherwise the page would say "no findings" although none were computed
                del facts[host]
                self._incomplete.append(
                    f"{host}: its facts lack {', '.join(missing)}, so the report keeps earlier facts; probe all subsets"
                )
        probes = (
            {} if options["nodes"] is not None else {host: probe_of(variables, host) for host in play - facts.keys()}
        )
        unreachable = set(options["unreachable"] or ())
        if options["unreachable"] is None:
            unreachable = {host for host, probe in probes.items() if probe.get("unreachable")}
        failed = options["failed"]
        if failed is None:
            removed = set(variables.get("ansible_play_hosts_all") or []) - set(
                variables.get("ansible_play_hosts") or []
            )
            failed = (removed | {host for host, probe in probes.items() if probe.get("failed")}) - unreachable
        return Request(
            facts=facts,
            play=play | unreachable | set(failed),
            unreachable=unreachable,
            failed=set(failed),
            inventory=set((variables.get("groups") or {}).get("all") or []),
            source="; ".join(map(str, variables.get("ansible_inventory_sources") or [])),
            prune=options["prune"],
            claims=options["claims"],
            now=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
