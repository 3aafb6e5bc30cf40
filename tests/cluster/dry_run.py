# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sends objects to a server as a dry run."""

from __future__ import annotations

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import comparison, versions
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane

_PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}


def path_of(item: Object) -> str:
    """The API path of the collection that an object belongs to."""
    kind = item["kind"]
    namespace = item["metadata"].get("namespace")
    if kind in _PATHS:
        return _PATHS[kind].format(namespace)
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{item['apiVersion']}{where}/{versions.PLURALS[kind]}"


def rejection(plane: ControlPlane, item: Object) -> str:
    """The server's error for an object, or the fields that it does not keep; empty if it keeps all."""
    query = "dryRun=All&fieldValidation=Strict&fieldManager=test"
    # namespaces already exist, so they are applied instead of created
    if item["kind"] == "Namespace":
        path = f"{path_of(item)}/{item['metadata']['name']}?{query}&force=true"
        status, answer = plane.request("PATCH", path, item, "application/apply-patch+yaml")
    else:
        status, answer = plane.request("POST", f"{path_of(item)}?{query}", item)
    if status not in (200, 201):
        return f"{status} {answer if isinstance(answer, str) else answer.get('message')}"
    dropped_fields = comparison.dropped(item, answer)
    return f"not kept by the server: {', '.join(dropped_fields)}" if dropped_fields else ""
