# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What action plugins that speak to a cluster share: they leave the speaking to modules of kubernetes.core."""

from __future__ import annotations

import os
import pathlib
import typing as t

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import SiteAction


def _reason(done: dict[str, t.Any]) -> str:
    """The module's message, or the last line of the traceback where it fell over, as with a cluster that is away."""
    event = getattr(done.get("exception"), "event", None)  # ansible-core hands exceptions over as objects since 2.19
    if done.get("msg") or event:
        return str(done.get("msg") or event.msg)
    for key in ("module_stderr", "exception", "module_stdout"):
        lines = str(done.get(key) or "").strip().splitlines()
        if lines:
            return lines[-1]
    return f"failed without a word; it returned {sorted(done)}"


class ClusterAction(SiteAction):
    """Runs modules of kubernetes.core where the task runs, with the kubeconfig and context of the task's options."""

    def _module(
        self,
        name: str,
        arguments: dict[str, t.Any],
        options: dict[str, t.Any],
        variables: dict[str, t.Any],
        *,
        check: bool = False,
    ) -> dict[str, t.Any]:
        """Run a module and return its result. With C(check) it asks the server for a dry run.

        Raises AnsibleActionFail where the module fails, with its message.
        """
        where = {key: options[key] for key in ("kubeconfig", "context") if options[key]}
        if "kubeconfig" in where:
            where["kubeconfig"] = self._from_current_folder(where["kubeconfig"], variables)
        mode, diff = self._task.check_mode, self._task.diff
        self._task.check_mode, self._task.diff = mode or check, True
        try:
            done = self._execute_module(module_name=name, module_args={**arguments, **where}, task_vars=variables)
        except AnsibleError as error:
            if "was not found" not in str(error):
                raise
            raise AnsibleActionFail(
                "Speaking to a cluster needs the collection kubernetes.core (ansible-galaxy collection install "
                "kubernetes.core) and the Python package kubernetes."
            ) from None
        finally:
            self._task.check_mode, self._task.diff = mode, diff
        if done.get("failed"):
            asked = f" (kubeconfig {where['kubeconfig']})" if "kubeconfig" in where else ""
            raise AnsibleActionFail(f"{name}: {_reason(done)}{asked}")
        return dict(done)

    def _from_current_folder(self, path: str, variables: dict[str, t.Any]) -> str:
        """A relative path, absolute, where the playbook is one of the collection's; any other as it is.

        Ansible takes paths from the playbook's folder. With a playbook of an installed collection nobody means that.
        """
        own = pathlib.Path(__file__).resolve().parents[2] / "playbooks"
        if pathlib.Path(str(variables.get("playbook_dir") or "/")).resolve() != own:
            return path
        return os.path.join(os.environ.get("PWD") or os.getcwd(), path)
