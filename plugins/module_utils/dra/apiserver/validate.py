# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Validates DRA objects as the Kubernetes API server does, without a server.

Sources: pkg/apis/resource/validation/validation.go, pkg/apis/resource/v1/{defaults,zz_generated.validations}.go and
k8s.io/apimachinery/pkg/api/validation/objectmeta.go of Kubernetes 1.34 to 1.37. As the server does, this module
decodes the object strictly, drops fields of disabled feature gates, and then applies the rules to the v1 form.

Two checks need the cluster and are not made here: that a namespace exists, and that the namespace of a claim with
`adminAccess` has the label `resource.kubernetes.io/admin-access`.
"""

from __future__ import annotations

from dataclasses import replace

from ..kube import versions
from ..kube.objects import ObjectView
from ..kube.problems import Problem
from . import features
from .decoder import Decoder
from .validate_base import CelEngine
from .validate_claims import ClaimRules
from .validate_metadata import MetadataRules
from .validate_slices import SliceRules
from .validate_taints import TaintRules


def validate(
    obj: ObjectView,
    kubernetes: str = f"1.{versions.NEWEST}",
    gates: features.Gates = None,
    cel: CelEngine | None = None,
) -> list[Problem]:
    """All reasons why a server of release `kubernetes` would refuse to create `obj`; empty if it would accept it.

    `obj` is a DRA object in any version that the release serves, `gates` the feature gates that the site changed. The
    object is decoded strictly (`fieldValidation=Strict`): unknown fields are refused. Fields of a gate that is off are
    not checked, since the server drops them first; `features.unsupported` reports them. Paths are those of the server's
    own errors, except that paths of v1beta1 objects are in the v1beta1 form. `cel` checks CEL expressions; without it,
    only their length is checked.

    Raises ValueError if `kubernetes` is not a release since 1.34.
    """
    minor = versions.minor_of(kubernetes)
    kind, version = obj.get("kind"), obj.get("apiVersion")
    since = versions.SERVED.get((version, kind)) if isinstance(version, str) and isinstance(kind, str) else None
    if since is None or minor < since:
        return [Problem("apiVersion", f"Kubernetes 1.{minor} has no {kind} in {version}", "unserved")]
    decoder = Decoder(str(version), minor)
    decoded = decoder.struct(obj, str(kind), "")
    problems = [problem for problem, _unused in decoder.unknown]
    if decoder.types:
        return [*decoder.types, *problems]
    v1 = versions.convert(decoded, versions.V1) if version == versions.V1BETA1 else decoded
    features.drop_disabled(v1, minor, gates)
    context = (minor, gates, cel, problems)
    spec = v1.get("spec", {})
    MetadataRules(*context).object_meta(v1)
    if kind == "DeviceClass":
        ClaimRules(*context).device_class(spec, "spec")
    elif kind == "ResourceClaim":
        ClaimRules(*context).claim(spec, "spec")
    elif kind == "ResourceClaimTemplate":
        ClaimRules(*context).template(spec, "spec")
    elif kind == "ResourceSlice":
        SliceRules(*context).resource_slice(spec, "spec")
    elif kind == "DeviceTaintRule":
        TaintRules(*context).taint_rule(spec, "spec")
    if version == versions.V1BETA1:
        return [
            replace(problem, path=features.path_in_version(problem.path, str(kind), version)) for problem in problems
        ]
    return problems
