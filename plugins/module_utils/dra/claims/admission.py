# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The common parts of this collection's ValidatingAdmissionPolicies, which check objects of resource.k8s.io."""

from __future__ import annotations

import typing as t

from ..kube.objects import Object

_API = "admissionregistration.k8s.io/v1"
#: The policies check only new and changed specs. Otherwise the finalizers of an existing object with a wrong spec could
#: not be removed, and the object could not be deleted.
_CHANGED = {
    "name": "new-or-changed-spec",
    "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec",
}


def policy(
    name: str, labels: t.Mapping[str, str], resources: t.Sequence[str], spec: Object, **bound: Object
) -> list[Object]:
    """The policy and its binding with the action Deny.

    `spec` has the policy's variables and validations, and additional match conditions; `bound` has fields of the
    binding.
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
        # includes the defaults of the server: this field is atomic, so each apply without them would change it
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            "resourceRules": [rule],
        },
        **spec,
        "matchConditions": [_CHANGED, *spec.get("matchConditions", ())],
    }
    binding = {"policyName": name, **bound, "validationActions": ["Deny"]}
    return [
        {"apiVersion": _API, "kind": kind, "metadata": {"name": name, "labels": dict(labels)}, "spec": content}
        for kind, content in (("ValidatingAdmissionPolicy", policy_spec), ("ValidatingAdmissionPolicyBinding", binding))
    ]
