# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Whether a server supports DeviceTaintRules, and in which version of the API."""

from __future__ import annotations

from ..apiserver import features
from ..kube import versions

KIND = "DeviceTaintRule"


class Unsupported(ValueError):
    """The server does not serve DeviceTaintRules, or ignores them. The message says how to fix it."""


def api_version(kubernetes: str) -> str:
    """The newest version in which a release serves DeviceTaintRules.

    That is v1alpha3 for 1.34 and 1.35, v1beta2 for 1.36 and v1 from 1.37 on. Raises ValueError for an unknown release.
    """
    return versions.choose(versions.PREFERENCE, KIND, kubernetes)


def require(kubernetes: str, gates: features.Gates = None) -> str:
    """The `api_version` of DeviceTaintRules, if the scheduler of the cluster acts on them.

    `gates` are the feature gates that differ from the defaults of the release. Raises Unsupported if the scheduler
    would ignore the rules, and ValueError for an unknown release.
    """
    minor = versions.minor_of(kubernetes)
    disabled = _disabled_gates(minor, gates)
    if disabled:
        raise Unsupported(
            f"Kubernetes 1.{minor} ignores DeviceTaintRules while its feature gate {' or '.join(sorted(disabled))} is "
            "off, which is the default before 1.37: no device would be held. If the gates are on in the API server, "
            "the scheduler and the controller manager, set them in plan_feature_gates; otherwise use Kubernetes 1.37"
        )
    return api_version(kubernetes)


def active(kubernetes: str, gates: features.Gates = None) -> bool:
    """Whether the scheduler of a release acts on DeviceTaintRules. Raises ValueError for an unknown release."""
    return not _disabled_gates(versions.minor_of(kubernetes), gates)


def _disabled_gates(minor: int, gates: features.Gates) -> list[str]:
    """The disabled feature gates among those without which rules have no effect."""
    needed = [gate_of(minor), *features.FEATURES[gate_of(minor)].needs]
    return [gate for gate in needed if not features.FEATURES[gate].is_on(minor, gates)]


def gate_of(minor: int) -> str:
    """The feature gate of DeviceTaintRules."""
    return "DRADeviceTaints" if minor == versions.OLDEST else "DRADeviceTaintRules"


def not_served(version: str) -> str:
    """The message for a server that does not serve DeviceTaintRules in this version."""
    return (
        f"The API server does not serve DeviceTaintRule in {version}: no device can be held. Enable it "
        f"(kube-apiserver --runtime-config={version}=true, and the feature gates), or use Kubernetes 1.37"
    )
