# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the options and the result of the module. The documentation is in plugins/modules/fabric.py."""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import FabricAndProbe
from ansible_collections.lanewise.dra.plugins.plugin_utils.node_action import NodeAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.rule_errors import module_arguments, option_errors


class ActionModule(NodeAction):
    ANSWER = FabricAndProbe

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        problems = option_errors(self._task.args)
        if problems:
            lines = "\n".join(["nothing was changed:", *problems])
            return {"failed": True, "changed": False, "msg": lines, "problems": problems}
        self._task.args = module_arguments(self._task.args)
        planned = self._task.args.pop("planned", None)
        if planned and self._task.check_mode:
            result = super(NodeAction, self).run(tmp, task_vars)  # only its checks, without calling the module
            result.update({name: value for name, value in planned.items() if name != "diff" or self._task.diff})
            return result
        return super().run(tmp, task_vars)
