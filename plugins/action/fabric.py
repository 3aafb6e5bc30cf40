# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check what the module is given and what it answers. The documentation is in plugins/modules/fabric.py."""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import NIC, without_nulls
from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import Fabric
from ansible_collections.lanewise.dra.plugins.plugin_utils.node_action import NodeAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.rule_faults import faults


class ActionModule(NodeAction):
    ANSWER = Fabric

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        problems = faults(self._task.args)
        if problems:
            lines = "\n".join(["nothing was changed:", *problems])
            return {"failed": True, "changed": False, "msg": lines, "problems": problems}
        self._task.args = _without_nulls(self._task.args)
        return super().run(tmp, task_vars)


def _without_nulls(args: dict[str, t.Any]) -> dict[str, t.Any]:
    """The arguments as the module takes them: what a rule gives as null is named in its `unset`."""
    found = dict(args)
    if isinstance(found.get("node"), dict):
        found["node"] = without_nulls(found["node"])[0]
    if isinstance(found.get("nics"), list):
        found["nics"] = [_rule(one) for one in found["nics"]]
    return found


def _rule(rule: dict[str, t.Any]) -> dict[str, t.Any]:
    settings, unset = without_nulls({name: value for name, value in rule.items() if name in NIC})
    rest, _unused = without_nulls({name: value for name, value in rule.items() if name not in NIC})
    own = [*(rest.get("unset") or ()), *unset]
    return {**rest, **settings, **({"unset": own} if own else {})}
