# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: slices
short_description: Hosts and groups from the devices that a cluster's nodes publish
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Creates a host for each node of a Kubernetes cluster, with the devices that the node's DRA drivers publish, the
    claims that have these devices, and problems of the node and its devices.
  - Each of C(dra_devices) has its claims, as C(NAMESPACE/NAME), in C(claims), because some devices can be shared.
    C(claim) is the first of them, or null.
  - The name of the inventory file must end in C(slices.yml) or C(slices.yaml).
  - A node with the name C(localhost) or C(127.0.0.1) is left out with a warning, because Ansible would run the tasks of
    the controller on it.
  - Reads only Nodes, ResourceSlices and ResourceClaims, and needs the right to list them.
  - The cache has a separate entry for each inventory file, list of drivers, context, and path and content of a
    kubeconfig.
requirements:
  - the Python package C(kubernetes) on the controller
extends_documentation_fragment:
  - constructed
  - inventory_cache
options:
  plugin:
    description: Always C(lanewise.dra.slices).
    type: str
    required: true
    choices: [lanewise.dra.slices]
  kubeconfig:
    description: The kubeconfig of the cluster. By default that of C(kubectl).
    type: path
    env:
      - name: KUBECONFIG
  context:
    description: The context of the kubeconfig, by default the current one.
    type: str
  drivers:
    description:
      - The drivers to include. All by default.
      - Nodes for which none of these drivers publishes a ResourceSlice are only included with O(all_nodes).
    type: list
    elements: str
    default: []
  all_nodes:
    description: Whether to include nodes for which no driver publishes a ResourceSlice.
    type: bool
    default: false
"""

EXAMPLES = r"""
# cluster.slices.yml
plugin: lanewise.dra.slices
kubeconfig: ~/.kube/config
keyed_groups:
  - {prefix: model, key: dra_models}
  - {prefix: rail, key: dra_rails}
  - {prefix: driver, key: "dra_driver_versions['lanewise.dev']"}
groups:
  broken: dra_findings | length > 0
  two_sockets: dra_numa_nodes | length == 2
compose:
  free_nics: dra_devices | selectattr('driver', 'equalto', 'lanewise.dev') | rejectattr('claim') | length
"""

import contextlib
import hashlib
import json
import os
import pathlib
import sys
import typing as t

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_lists import (
    KubeconfigError,
    ListPage,
    api_client,
    read_all,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.bounded_json import JsonError
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.versions import PREFERENCE
from ansible_collections.lanewise.dra.plugins.plugin_utils.cluster_nodes import describe, has_name_of_controller

_GROUP = "resource.k8s.io"
_TIMEOUT_SECONDS = 60


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    NAME = "lanewise.dra.slices"

    def verify_file(self, path: str) -> bool:
        return bool(super().verify_file(path)) and path.endswith(("slices.yml", "slices.yaml"))

    def parse(self, inventory: t.Any, loader: t.Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path)
        self._read_config_data(path)
        self.load_cache_plugin()
        key = f"{self.get_cache_key(path)}_{self._cluster_key()}"
        use_cache = self.get_option("cache") and cache
        nodes = self._cache.get(key) if use_cache else None
        if nodes is None:
            nodes = describe(*self._read_cluster(), self.get_option("drivers"))
        if self.get_option("cache"):
            self._cache[key] = nodes
        for name, node in sorted(nodes.items()):
            if has_name_of_controller(name):
                self.display.warning(f"node {name} is left out, because Ansible would take it for the controller")
            elif node["devices"] or node["drivers"] or self.get_option("all_nodes"):
                self._add(name, node)

    def _add(self, name: str, node: Object) -> None:
        """Add a host for a node, with its variables and groups."""
        self.inventory.add_host(name)
        if node["address"]:
            self.inventory.set_variable(name, "ansible_host", node["address"])
        for key, value in node.items():
            if key != "address":
                self.inventory.set_variable(name, f"dra_{key}", value)
        strict = self.get_option("strict")
        variables = self.inventory.get_host(name).get_vars()
        self._set_composite_vars(self.get_option("compose"), variables, name, strict=strict)
        variables = self.inventory.get_host(name).get_vars()
        self._add_host_to_composed_groups(self.get_option("groups"), variables, name, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), variables, name, strict=strict)

    def _cluster_key(self) -> str:
        """The part of the cache key for the cluster and the drivers. Ansible's part only covers the inventory file."""
        kubeconfig = self.get_option("kubeconfig") or os.path.expanduser("~/.kube/config")
        parts = [kubeconfig, self.get_option("context"), sorted(self.get_option("drivers"))]
        digest = hashlib.sha256(json.dumps(parts).encode())
        for name in kubeconfig.split(os.pathsep):
            with contextlib.suppress(OSError):  # the file has the current context and the address of the cluster
                digest.update(pathlib.Path(name).read_bytes())
        return digest.hexdigest()[:16]

    def _read_cluster(self) -> tuple[list[Object], list[Object], list[Object]]:
        """Read Nodes, ResourceSlices and ResourceClaims. Raises AnsibleParserError."""
        try:
            import urllib3
            from kubernetes import client
        except ImportError as error:
            raise AnsibleParserError(
                f"the controller's Python lacks the package kubernetes or a part of it ({error}), so no node was read. "
                f"Install it: {sys.executable} -m pip install kubernetes"
            ) from None
        try:
            api = api_client(self.get_option("kubeconfig"), self.get_option("context"))
        except (KubeconfigError, OSError) as error:
            raise AnsibleParserError(f"cannot use the kubeconfig: {error}") from None
        try:
            version = self._version(client.ApisApi(api).get_api_versions(_request_timeout=_TIMEOUT_SECONDS))
            custom = client.CustomObjectsApi(api)

            def resources(plural: str) -> ListPage:
                return lambda **query: custom.list_cluster_custom_object(_GROUP, version, plural, **query)

            nodes = client.CoreV1Api(api).list_node

            served = f"{_GROUP}/{version}"
            return (
                read_all(nodes, "v1", "Node"),
                read_all(resources("resourceslices"), served, "ResourceSlice"),
                read_all(resources("resourceclaims"), served, "ResourceClaim"),
            )
        except client.ApiException as error:
            fix = {
                401: "check that the kubeconfig's credentials are still valid",
                403: "give the user the right to list nodes, resourceslices and resourceclaims",
            }.get(error.status, "")
            reason = f"the API server returned {error.status} {error.reason}"
            raise AnsibleParserError(f"{reason}; {fix}" if fix else reason) from None
        except urllib3.exceptions.HTTPError as error:
            raise AnsibleParserError(f"cannot reach the API server of the kubeconfig: {error}") from None
        except JsonError as error:
            raise AnsibleParserError(f"cannot read the API server's response: {error}") from None

    @staticmethod
    def _version(groups: t.Any) -> str:
        """The first version of PREFERENCE that the cluster serves.

        This may differ from the group's `preferredVersion`. Raises AnsibleParserError.
        """
        served = [
            version.group_version for group in groups.groups if group.name == _GROUP for version in group.versions
        ]
        chosen = next((version for version in PREFERENCE if version in served), None)
        if chosen is None:
            raise AnsibleParserError(f"the cluster serves no supported {_GROUP} version; use Kubernetes 1.34 or later")
        return chosen.partition("/")[2]
