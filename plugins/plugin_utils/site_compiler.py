# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The nodes of a site, from topology facts or ResourceSlices, for actions that compile the site's inventory."""

from __future__ import annotations

import dataclasses
import re
import typing as t

import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.errors import EngineMissing
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import Nodes, nodes_from_slices
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.divided_nics import with_setting
from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import fault
from ansible_collections.lanewise.dra.plugins.plugin_utils.cluster_action import ClusterAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.host_facts import facts_of, stored_facts
from ansible_collections.lanewise.dra.plugins.plugin_utils.manifest_files import ManifestFolder
from ansible_collections.lanewise.dra.plugins.plugin_utils.planned_vfs import rules_of, with_planned_vfs
from ansible_collections.lanewise.dra.plugins.plugin_utils.site_variables import set_by_facts
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Json, Result, Spec, Variables

Compiled = t.TypeVar("Compiled")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: The options that say for which cluster and nodes a site is compiled.
SPEC: Spec = {
    "nodes": {"type": "dict"},
    "report": {"type": "path"},
    "nodes_from": {"type": "str", "choices": ["facts", "slices"], "default": "facts"},
    "slices": {"type": "path"},
    "kubernetes_version": {"type": "str", "default": "1.37"},
    "feature_gates": {"type": "dict", "default": {}},
    "kubeconfig": {"type": "path"},
    "context": {"type": "str"},
}


class SiteCompiler(ClusterAction):
    """Finds the cluster and the nodes that a site's inventory is compiled for."""

    def _cluster(self, options: Variables, variables: Variables) -> tuple[str, list[str]]:
        """The minor version of the cluster, and the API versions of resource.k8s.io that it serves."""
        cluster = self._module("kubernetes.core.k8s_cluster_info", {"invalidate_cache": True}, options, variables)
        version = cluster["version"]["server"]["kubernetes"]
        digits = re.match("[0-9]+", version["minor"])  # some vendors append a plus sign
        served = [api for api in cluster["apis"] if api.startswith("resource.k8s.io/")]
        if not digits or not served:
            raise AnsibleActionFail(
                f"The cluster (Kubernetes {version['gitVersion']}) serves no version of resource.k8s.io. Dynamic "
                "resource allocation needs Kubernetes 1.34 or later, or an older release with that API group enabled."
            )
        return f"{version['major']}.{digits.group()}", served

    def _compile(self, result: Result, what: str, compiler: t.Callable[[], Compiled]) -> Compiled | None:
        """What `compiler` returns. If it raises Problems, returns None, and lists them in `result` as errors in `what`.

        Raises AnsibleActionFail if the library that evaluates selectors is missing.
        """
        try:
            return compiler()
        except EngineMissing as error:
            raise AnsibleActionFail(f"{error}. Install it beside ansible-core: pip install cel-expr-python") from error
        except Problems as problems:
            listed = [dataclasses.asdict(problem) for problem in problems.problems]
            message = f"{len(listed)} error(s) in {what}:\n{problems}"
            result.update(failed=True, msg=message, problems=listed)
            return None

    def _write_manifests(self, dest: str, site: str, files: dict[str, str], prune: bool) -> Result:
        """Write the files, texts by path, to the folder. Returns the part of the result that describes them."""
        target = ManifestFolder(dest, site, dry=self._task.check_mode)
        stale = target.write(files, prune=prune)
        result: Result = {"changed": target.changed, "dest": dest, "files": sorted(files), "stale": stale}
        result.update(written=target.written, removed=target.removed)
        if self._task.diff and target.diff:
            result["diff"] = target.diff
        return result

    def _path(self, path: str, variables: Variables) -> str:
        return str(self._loader.path_dwim(self._from_current_folder(path, variables)))

    def _nodes(self, options: Variables, variables: Variables) -> tuple[Nodes | None, list[str]]:
        """The nodes by name, from facts or slices, and notes on what was ignored."""
        if options["nodes_from"] == "facts":
            if options["slices"]:
                raise AnsibleActionFail(
                    "dra_claims_slices is set, but the nodes come from facts. Set dra_claims_nodes_from: slices, or "
                    "remove dra_claims_slices"
                )
            return self._probed(options, variables), []
        if options["nodes"] is not None:
            raise AnsibleActionFail("nodes is set, but nodes_from is slices. Remove nodes, or set nodes_from: facts")
        try:
            published = nodes_from_slices(*self._published(options, variables))
        except ValueError as error:
            source = options["slices"] or "the cluster"
            raise AnsibleActionFail(f"The nodes cannot be read from the slices of {source}: {error}") from None
        return published.nodes, published.notes

    def _published(self, options: Variables, variables: Variables) -> tuple[list[Object], None, bool]:
        """The arguments of `nodes_from_slices`: objects with nodes, no server, and whether all claims are included."""
        if options["slices"]:
            return _objects_of(self._path(options["slices"], variables)), None, False
        if not options["kubeconfig"]:
            raise AnsibleActionFail(
                "dra_claims_nodes_from is slices: name a file with them (dra_claims_slices) or the cluster "
                "(dra_claims_kubeconfig)"
            )
        arguments = {"kinds": ["ResourceSlice", "ResourceClaim"]}
        by_kind = self._module("lanewise.dra.dra_objects_info", arguments, options, variables)["objects"]
        objects = [{"kind": kind, **item} for kind, items in by_kind.items() for item in items]
        return objects, None, "ResourceClaim" in by_kind

    def _probed(self, options: Variables, variables: Variables) -> dict[str, Json] | None:
        """The topology facts by host: those of the option `nodes`, or those of this run's hosts and, for other hosts,
        of the site report."""
        if options["nodes"] is not None:
            return dict(options["nodes"])
        nodes: dict[str, Json] = {}
        for host in variables.get("ansible_play_hosts_all") or []:
            facts = facts_of(variables, host)
            if isinstance(facts, dict):
                # immediately, so that the facts of only one host are in memory twice
                nodes[host] = _planned(facts, variables, host)
        stored: dict[str, Json] = {}
        in_inventory: set[str] = set()  # the report's hosts that are in the inventory
        if options["report"]:
            report = self._path(options["report"], variables)
            inventory = set((variables.get("groups") or {}).get("all") or [])
            try:
                for host, facts in stored_facts(report):
                    in_inventory |= {host} & inventory
                    error = "" if host in nodes else fault(facts, dict[str, t.Any])
                    if error:  # an older release stored the facts without a check
                        self._display.warning(f"{host}: its facts in {report} are not used: {error}. Probe it again.")
                    elif host not in nodes:
                        stored[host] = facts
            except FileNotFoundError:
                raise AnsibleActionFail(
                    f"There is no site report in {report!r}. Name the folder that lanewise.dra.probe wrote "
                    "(dra_claims_report in the role)."
                ) from None
            except (OSError, ValueError) as error:
                raise AnsibleActionFail(f"Cannot read the nodes of the report {report!r}: {error}") from None
        # several inventories may share a report; if it has no host of this inventory, all of its nodes are used
        for host in [host for host in stored if host in in_inventory or not in_inventory]:
            nodes[host] = _planned(stored.pop(host), variables, host)
        return nodes or None


def _objects_of(path: str) -> list[Object]:
    """The objects in a file of YAML or JSON, including those in lists."""
    try:
        with open(path, encoding="utf-8") as stream:
            documents = [item for item in yaml.load_all(stream, Loader=LOADER) if item is not None]
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError for a date that does not exist
        raise AnsibleActionFail(f"Cannot read the slices (dra_claims_slices): {error}") from None
    flat: list[Object] = []
    for item in documents:
        inside = item.get("items") if isinstance(item, dict) and str(item.get("kind", "")).endswith("List") else None
        flat += inside if isinstance(inside, list) else item if isinstance(item, list) else [item]
    invalid = next((item for item in flat if not isinstance(item, dict)), None)
    if invalid is not None:
        raise AnsibleActionFail(f"{path} has something that is not a Kubernetes object: {str(invalid)[:80]}")
    return flat


def plain(value: object) -> object:
    """Values without Ansible's tags and lazy containers, for code that does not know Ansible."""
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def _planned(facts: Json, variables: Variables, host: str) -> Json:
    """The facts of a node with the VFs that its variables configure, and the NICs that they divide."""
    hostvars = variables.get("hostvars")
    raw = hostvars.raw_get(host) if hostvars is not None and host in hostvars else None
    facts = with_setting(facts, None)  # the inventory decides this, not the node
    if not isinstance(raw, dict) or set_by_facts(variables, host):
        return facts
    host_variables = hostvars[host]
    names = ("fabric_board", "fabric_nics", "fabric_profiles")
    if any(raw.get(name) for name in names[:2]):
        facts = with_planned_vfs(facts, rules_of({name: plain(host_variables[name]) for name in names if name in raw}))
    settings = plain(host_variables["dra_driver_settings"]) if raw.get("dra_driver_settings") else None
    return with_setting(facts, settings.get("shares")) if isinstance(settings, dict) else facts
