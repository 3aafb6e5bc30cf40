# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What the ValidatingAdmissionPolicies of this collection have in common: both check specs of resource.k8s.io."""

from __future__ import annotations

import typing as t

from ..kube.objects import Object

_API = "admissionregistration.k8s.io/v1"
#: An object with a wrong spec that was there before must still lose its finalizers, so that it can be deleted.
_CHANGED = {
    "name": "new-or-changed-spec",
    "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec",
}


def policy(
    name: str, labels: t.Mapping[str, str], resources: t.Sequence[str], spec: Object, **bound: Object
) -> list[Object]:
    """The policy and its binding, which denies.

    `spec` has the policy's variables and validations, and conditions besides that the spec is new or has changed;
    `bound` is for the binding.
    """
    rule = {
        "apiGroups": ["resource.k8s.io"],
        # with matchPolicy Equivalent, requests for other versions are converted to this one
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": list(resources),
        "scope": "*",
    }
    whole = {
        "failurePolicy": "Fail",
        # with what a server fills in: it takes this part as a whole, and an apply without would change it each time
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
        for kind, content in (("ValidatingAdmissionPolicy", whole), ("ValidatingAdmissionPolicyBinding", binding))
    ]
