# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the result of the module. The documentation is in plugins/modules/topology_info.py."""

from __future__ import annotations

import typing as t

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.lanewise.dra.plugins.module_utils.topology_module import OPTIONS
from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import FabricAndProbe, Probe, prepare
from ansible_collections.lanewise.dra.plugins.plugin_utils.host_facts import packed
from ansible_collections.lanewise.dra.plugins.plugin_utils.known_variables import options_of_role
from ansible_collections.lanewise.dra.plugins.plugin_utils.node_action import NodeAction, checked_result
from ansible_collections.lanewise.dra.plugins.plugin_utils.rule_errors import module_arguments, option_errors
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Result, Variables

_FABRIC = "lanewise.dra.fabric"
#: Keys that Ansible adds to any module's result. They are not part of the plan.
_TASK_KEYS = ("ansible_facts", "deprecations", "warnings")

prepare(FabricAndProbe)
options_of_role("fabric", "main")  # cached before Ansible forks


class ActionModule(NodeAction):
    """Runs the module, or with a plan the module fabric in check mode, which returns both."""

    ANSWER = Probe
    ADDED = frozenset(("packed", "plan", "plan_complete", "probed"))

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> Result:
        args = dict(self._task.args)
        plan, pack = args.pop("plan", None), boolean(args.pop("packed", False))
        self._task.args = args
        result: Result | None = None
        if plan and not self._is_async():
            checked = super(NodeAction, self).run(tmp, task_vars)
            result = self._with_plan(plan, task_vars or {})
            if result is not None:
                result = {**checked, **result}
        if result is None:
            result = super().run(tmp, task_vars)
        if pack and "topology" in result:
            result.update(packed=packed(result.pop("topology")), probed=True)
        return result

    def _with_plan(self, plan: Variables, variables: Variables) -> Result | None:
        """The topology with the plan; None if one call cannot return both."""
        options = self._arguments(plan.get("options"), plan.get("become", False), variables)
        if options is None:
            return None
        check_mode, self._task.check_mode = self._task.check_mode, True
        try:
            answer = self._execute_module(_FABRIC, options, task_vars=variables)
        finally:
            self._task.check_mode = check_mode
        self._remove_tmp_path(self._connection._shell.tmpdir)
        plan_result = checked_result(answer, FabricAndProbe, str(variables.get("inventory_hostname", "the node")))
        if plan_result.get("failed") or "topology" not in plan_result:
            return None
        result: Result = {"changed": False, "topology": plan_result.pop("topology")}
        plan_result.pop("invocation", None)
        result.update({name: plan_result.pop(name) for name in _TASK_KEYS if name in plan_result})
        result["plan"] = {name: value for name, value in plan_result.items() if not name.startswith("_ansible_")}
        result["plan_complete"] = boolean(plan.get("complete", False))
        return result

    def _arguments(self, options: t.Any, become: t.Any, variables: Variables) -> Result | None:
        """The arguments of the module fabric; None if it cannot plan with them, or its role would not accept them."""
        args = self._task.args
        if (
            not isinstance(options, dict)
            or bool(self._play_context.become) != boolean(become)
            or args.get("import_file")
        ):
            return None
        if (
            options.get("root", "/") != args.get("root", "/")
            or option_errors(options)
            or not self._role_accepts(variables)
        ):
            return None
        return {**module_arguments(options), "topology": {name: args[name] for name in OPTIONS if name in args}}

    def _role_accepts(self, variables: Variables) -> bool:
        """Whether the role fabric would start with the variables of the host."""
        spec = options_of_role("fabric", "main")
        values = self._templar.template({name: variables[name] for name in spec if name in variables})
        return not ArgumentSpecValidator(spec).validate(values).error_messages
