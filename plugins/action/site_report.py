# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the site report on the controller. The documentation is in plugins/modules/site_report.py."""

from __future__ import annotations

import datetime
import pathlib
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_pages import Pages
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_site import Request, Site
from jinja2 import TemplateError

_TEMPLATES = pathlib.Path(__file__).resolve().parents[2] / "roles" / "topology" / "templates" / "report"
# variables that the role topology leaves with every host: the facts, and what the probe's task returned
_FACTS = "topology_facts"
_PROBE = "topology_probe"

_SPEC: dict[str, dict[str, t.Any]] = {
    "dest": {"type": "path", "required": True},
    "nodes": {"type": "dict"},
    "title": {"type": "str", "default": "GPU and RDMA topology"},
    "prune": {"type": "bool", "default": True},
    "unreachable": {"type": "list", "elements": "str"},
    "failed": {"type": "list", "elements": "str"},
    "template_dir": {"type": "path"},
}


class ActionModule(ActionBase):
    """Merges the facts of this run's hosts into the report folder. Never connects to a target."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC)

        dest = self._loader.path_dwim(options["dest"])
        folders = [str(_TEMPLATES)]
        if options["template_dir"]:
            folders.insert(0, self._loader.path_dwim(options["template_dir"]))
        try:
            site = Site(dest, Pages(folders, options["title"]), options["title"], dry=self._task.check_mode)
            result.update(site.update(self._request(options, variables)))
        except TemplateError as error:
            raise AnsibleActionFail(f"A template of the report is faulty: {error}") from error
        except OSError as error:
            raise AnsibleActionFail(f"Cannot write the report: {error}") from error
        result.update(changed=site.changed, path=f"{dest}/index.html")
        if site.warnings:
            result["warnings"] = site.warnings
        if self._task.diff and site.diff:
            result["diff"] = {"prepared": "\n".join([f"{dest}:", *site.diff]) + "\n"}
        return result

    def _request(self, options: dict[str, t.Any], variables: dict[str, t.Any]) -> Request:
        play = set(variables.get("ansible_play_hosts_all") or [])
        if options["nodes"] is None:
            facts = {host: found for host in sorted(play) if isinstance(found := _facts_of(variables, host), dict)}
        else:
            facts = {str(host): found for host, found in options["nodes"].items() if isinstance(found, dict)}
            play = {str(host) for host in options["nodes"]}
        unreachable = set(options["unreachable"] or ())
        if options["unreachable"] is None and options["nodes"] is None:
            unreachable = {host for host in play if host not in facts and _was_unreachable(variables, host)}
        failed = options["failed"]
        if failed is None:
            lost = set(variables.get("ansible_play_hosts_all") or []) - set(variables.get("ansible_play_hosts") or [])
            failed = lost - unreachable
        return Request(
            facts=facts,
            play=play | unreachable | set(failed),
            unreachable=unreachable,
            failed=set(failed),
            inventory=set((variables.get("groups") or {}).get("all") or []),
            prune=options["prune"],
            now=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )


def _facts_of(variables: dict[str, t.Any], host: str) -> t.Any:
    """Return a host's facts as they are held, without a pass of the templar over hundreds of functions a node."""
    hostvars = variables["hostvars"]
    raw = hostvars.raw_get(host)
    if not isinstance(raw, dict):
        return None
    found = raw.get(_FACTS)
    if found is None:
        found = (raw.get("ansible_facts") or {}).get(_FACTS)
    # A variable that refers to another one has to be templated after all.
    return hostvars[host].get(_FACTS) if isinstance(found, str) else found


def _was_unreachable(variables: dict[str, t.Any], host: str) -> bool:
    """Whether the host's probe could not connect; the play goes on for such hosts under C(ignore_unreachable)."""
    raw = variables["hostvars"].raw_get(host)
    probe = raw.get(_PROBE) if isinstance(raw, dict) else None
    return isinstance(probe, dict) and bool(probe.get("unreachable"))
