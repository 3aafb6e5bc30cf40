# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compile a site's queues on the controller. The documentation is in plugins/modules/queue_render.py."""

from __future__ import annotations

import dataclasses
import typing as t
from datetime import datetime, timezone

import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import engine_for
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.quantity import canonical
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.compiler import (
    Compiled,
    CompileInput,
    compile_queues,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.configuration import (
    conflicts,
    differences,
    merged,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.objects import API_VERSION
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.variants import TeamTemplate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.server import Server
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ControllerAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.manifest_files import manifest_path
from ansible_collections.lanewise.dra.plugins.plugin_utils.manifest_yaml import to_manifest
from ansible_collections.lanewise.dra.plugins.plugin_utils.site_compiler import LOADER, SPEC, SiteCompiler, plain
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Json, Result, Spec, Variables

_SPEC: Spec = {
    **SPEC,
    "variables": {"type": "dict", "required": True},
    "objects": {"type": "list", "elements": "dict", "required": True},
    "drivers": {"type": "dict", "default": {}},
    "site": {"type": "str", "default": "default"},
    "dest": {"type": "path"},
    "prune": {"type": "bool", "default": True},
    "configuration": {"type": "dict"},
    "kueue_namespace": {"type": "str", "default": "kueue-system"},
    "configure": {"type": "bool", "default": False},
}
#: The ConfigMap with Kueue's configuration, and the file in it, as Kueue's chart and manifests name them.
_CONFIG_MAP, _CONFIG_KEY = "kueue-manager-config", "controller_manager_config.yaml"


class ActionModule(SiteCompiler, ControllerAction):
    """Compiles queues, compares Kueue's configuration on the cluster, and writes files. Never connects to a target."""

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> Result:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC)
        what = f"the queues of site {options['site']!r}"
        compiled = self._compile(result, what, lambda: self._compiled(options, variables))
        if compiled is None:
            return result
        result.update(
            changed=False,
            objects=compiled.objects,
            configuration=compiled.configuration,
            templates=[_template_result(template) for template in compiled.templates],
            loans=compiled.loans,
            overdue=compiled.overdue,
            summary=[
                *compiled.table,
                *(f"loan: {loan}" for loan in compiled.loans),
                *(f"overdue: {loan}" for loan in compiled.overdue),
            ],
        )
        lacking = self._compare(result, compiled.configuration, options, variables) if options["kubeconfig"] else []
        result.setdefault("configuration_differences", None)
        warnings = [*compiled.warnings, *(f"Kueue's configuration: {line}" for line in lacking)]
        warnings += [f"The loan is overdue and has no effect any more: {line}" for line in compiled.overdue]
        if warnings:
            result["warnings"] = warnings
        if options["dest"]:
            try:
                result.update(self._write(compiled, options, variables))
            except OSError as error:
                raise AnsibleActionFail(f"Cannot write the queues: {error}") from None
        return result

    def _compiled(self, options: Variables, variables: Variables) -> Compiled:
        """The compiled queues. Raises Problems with all errors, and EngineMissing."""
        kubernetes, gates = options["kubernetes_version"], plain(options["feature_gates"])
        if options["kubeconfig"]:
            kubernetes, _served = self._cluster(options, variables)
        nodes, notes = self._nodes(options, variables)
        try:
            server = Server(kubernetes, t.cast(Json, gates))
        except ValueError as error:
            raise AnsibleActionFail(f"kubernetes_version or feature_gates: {error}") from None
        compiled = compile_queues(
            t.cast(Json, plain(options["variables"])),
            CompileInput(
                t.cast("list[Object]", plain(options["objects"])),
                nodes or {},
                t.cast(Json, plain(options["drivers"])),
                engine_for(kubernetes, t.cast(Json, gates)),
                server,
                datetime.now(timezone.utc),
                options["site"],
            ),
        )
        compiled.warnings[:0] = notes
        return compiled

    def _compare(self, result: Result, required: Object, options: Variables, variables: Variables) -> list[str]:
        """What Kueue's configuration on the cluster lacks of the `required` one.

        Stores this in `result` and, if Kueue can start with it, the complete configuration as text.

        Raises AnsibleActionFail if the cluster does not serve this version of Kueue, or if Kueue could not start with
        the text.
        """
        self._require_kueue(options, variables)
        running, reason = self._running(options, variables)
        if running is None:
            result["configuration_differences"] = [reason]
            if options["configure"]:
                raise AnsibleActionFail(f"Cannot add to Kueue's configuration: {reason}")
            return [reason]
        result["configuration_differences"] = lacking = differences(required, running)
        conflicting = conflicts(required, running)
        if options["configure"] and conflicting:
            lines = "\n".join(conflicting)
            raise AnsibleActionFail(f"Nothing was applied, as Kueue would not start with its configuration:\n{lines}")
        if not conflicting:
            # if nothing is missing, the running configuration keeps its text
            result["configuration_text"] = to_manifest(merged(running, required)) if lacking else None
        return [] if options["configure"] else lacking

    def _require_kueue(self, options: Variables, variables: Variables) -> None:
        """Raises AnsibleActionFail if the cluster does not serve the version of Kueue's API that is written."""
        cluster = self._module("kubernetes.core.k8s_cluster_info", {"invalidate_cache": True}, options, variables)
        if API_VERSION not in cluster["apis"]:
            served = ", ".join(api for api in cluster["apis"] if api.startswith("kueue.")) or "no Kueue"
            raise AnsibleActionFail(
                f"The cluster serves {served}, but {API_VERSION} is needed. Install Kueue 0.19 first."
            )

    def _running(self, options: Variables, variables: Variables) -> tuple[Object | None, str]:
        """Kueue's configuration on the cluster; None with the reason if it cannot be read."""
        arguments = {"api_version": "v1", "kind": "ConfigMap"}
        arguments.update(name=_CONFIG_MAP, namespace=options["kueue_namespace"])
        config_maps = self._module("kubernetes.core.k8s_info", arguments, options, variables).get("resources") or []
        text = (config_maps[0].get("data") or {}).get(_CONFIG_KEY) if config_maps else None
        if not isinstance(text, str):
            where = f"ConfigMap {options['kueue_namespace']}/{_CONFIG_MAP}"
            return None, f"{where} has no {_CONFIG_KEY}, so nothing could be compared"
        try:
            running = yaml.load(text, Loader=LOADER)
        except (yaml.YAMLError, ValueError) as error:  # ValueError for a date that does not exist
            return None, f"{_CONFIG_KEY} is not YAML: {str(error).splitlines()[0]}"
        if running is not None and not isinstance(running, dict):
            return None, f"{_CONFIG_KEY} is not a mapping, so nothing could be compared"
        return running or {}, ""

    def _write(self, compiled: Compiled, options: Variables, variables: Variables) -> Result:
        """Write the files. Raises AnsibleActionFail if Kueue could not start with the configuration in them, and
        OSError if they cannot be written."""
        dest = self._path(options["dest"], variables)
        texts: dict[str, list[str]] = {}
        for item in compiled.objects:
            texts.setdefault(f"manifests/{manifest_path(item)}", []).append(to_manifest(item))
        files = {path: "---\n" + "---\n".join(parts) for path, parts in texts.items()}
        if compiled.configuration:
            files["kueue/configuration.yaml"] = f"---\n{to_manifest(compiled.configuration)}"
        if options["configuration"] is not None:
            base = t.cast(Object, plain(options["configuration"]))
            conflicting = conflicts(compiled.configuration, base)
            if conflicting:
                lines = "\n".join(conflicting)
                raise AnsibleActionFail(
                    f"Nothing was written, as Kueue would not start with kueue/values.yaml:\n{lines}"
                )
            complete = to_manifest(merged(base, compiled.configuration))
            values = {"managerConfig": {"controllerManagerConfigYaml": complete}}
            files["kueue/values.yaml"] = f"---\n{to_manifest(values)}"
        # differs from the mark of the claims, because claims may be in the same folder
        return self._write_manifests(dest, f"{options['site']}, queues", files, options["prune"])


def _template_result(template: TeamTemplate) -> Result:
    """A claim template as the module returns it."""
    result = dataclasses.asdict(template)
    result["template"], result["use"] = result.pop("name"), result.pop("name_in_queues")
    result["charges"] = {name: canonical(amount) for name, amount in template.charges.items()}
    return result
