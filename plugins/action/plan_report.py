# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the page of a plan on the controller. The documentation is in plugins/modules/plan_report.py."""

from __future__ import annotations

import pathlib

from ansible.errors import AnsibleActionFail
from ansible_collections.lanewise.dra.plugins.module_utils.topology.stored import Formats
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ReportAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.plan_pages import render
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Result, Spec, Variables

_SECTIONS = ("fit", "after", "steps", "stranded", "worth", "fleet", "notes")

#: The collection itself does not read `plan.json`; the format number is for programs of the site.
FORMATS = Formats()
_SPEC: Spec = {
    "dest": {"type": "path", "required": True},
    "plan": {"type": "dict", "required": True},
    "title": {"type": "str", "default": "What still fits"},
    "template_dir": {"type": "path"},
}


class ActionModule(ReportAction):
    """Renders and writes two files. Never connects to a target."""

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> Result:
        result = super().run(tmp, task_vars)
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC)
        plan = {name: options["plan"].get(name) for name in _SECTIONS}
        if any(plan[name] is None for name in _SECTIONS):
            raise AnsibleActionFail("plan is not a result of lanewise.dra.allocation_plan")
        dest = pathlib.Path(self._loader.path_dwim(options["dest"]))
        folders = self._templates(options["template_dir"], "alignment", "topology")
        with self._reporting_faults():
            page = render(folders, options["title"], plan)
            result.update(self._write_report(dest, "plan", FORMATS.write(plan), page))
        return result
