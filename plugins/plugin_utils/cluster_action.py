# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Base class of the action plugins that work on a cluster. All requests are sent by modules of kubernetes.core."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import SiteAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Result, Variables


def _reason(answer: Result) -> str:
    """The module's message, or the last line of its traceback, for example if the cluster is unreachable."""
    event = getattr(answer.get("exception"), "event", None)  # ansible-core 2.19 and later return an object
    if answer.get("msg") or event:
        return str(answer.get("msg") or event.msg)
    for key in ("module_stderr", "exception", "module_stdout"):
        lines = str(answer.get(key) or "").strip().splitlines()
        if lines:
            return lines[-1]
    return f"failed without a message; it returned {sorted(answer)}"


class ClusterAction(SiteAction):
    """Runs modules of kubernetes.core where the task runs, with the kubeconfig and context of the task's options."""

    def _module(
        self,
        name: str,
        arguments: Variables,
        options: Variables,
        variables: Variables,
        *,
        check: bool = False,
    ) -> Result:
        """Run a module and return its result. With `check` it requests a dry run on the server.

        Raises AnsibleActionFail with the module's message if it fails.
        """
        connection = {key: options[key] for key in ("kubeconfig", "context") if options[key]}
        if "kubeconfig" in connection:
            connection["kubeconfig"] = self._from_current_folder(connection["kubeconfig"], variables)
        mode, diff = self._task.check_mode, self._task.diff
        self._task.check_mode, self._task.diff = mode or check, True
        try:
            answer = self._execute_module(
                module_name=name, module_args={**arguments, **connection}, task_vars=variables
            )
        except AnsibleError as error:
            if "was not found" not in str(error):
                raise
            raise AnsibleActionFail(
                "Access to a cluster needs the collection kubernetes.core (ansible-galaxy collection install "
                "kubernetes.core) and the Python package kubernetes."
            ) from None
        finally:
            self._task.check_mode, self._task.diff = mode, diff
        if answer.get("failed"):
            used = f" (kubeconfig {connection['kubeconfig']})" if "kubeconfig" in connection else ""
            raise AnsibleActionFail(f"{name}: {_reason(answer)}{used}")
        return dict(answer)
