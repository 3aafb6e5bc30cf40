# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The common parts of this collection's ValidatingAdmissionPolicies, which check objects of resource.k8s.io."""

from __future__ import annotations

import typing as t

from ..kube.objects import Object

_API = "admissionregistration.k8s.io/v1"
#: The policies check only new and changed specs. Otherwise the finalizers of an existing object with an invalid spec
#: could not be removed, so the object could not be deleted.
_CHANGED = {
    "name": "new-or-changed-spec",
    "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec",
}


def policy(
    name: str, labels: t.Mapping[str, str], resources: t.Sequence[str], spec: Object, **binding_fields: Object
) -> list[Object]:
    """The policy and its binding with the action Deny.

    `spec` contains the policy's variables and validations, and may contain further match conditions. `binding_fields`
    are additional fields of the binding.
    """
    rule = {
        "apiGroups": ["resource.k8s.io"],
        # with matchPolicy Equivalent, requests for other versions are converted to this one
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": list(resources),
        "scope": "*",
    }
    policy_spec = {
        "failurePolicy": "Fail",
        # with the defaults of the API server: the field is atomic, so each apply without the defaults would change it
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            "resourceRules": [rule],
        },
        **spec,
        "matchConditions": [_CHANGED, *spec.get("matchConditions", ())],
    }
    binding = {"policyName": name, **binding_fields, "validationActions": ["Deny"]}
    return [
        {"apiVersion": _API, "kind": kind, "metadata": {"name": name, "labels": dict(labels)}, "spec": content}
        for kind, content in (("ValidatingAdmissionPolicy", policy_spec), ("ValidatingAdmissionPolicyBinding", binding))
    ]
