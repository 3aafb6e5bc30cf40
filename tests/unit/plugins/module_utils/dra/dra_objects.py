# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A ResourceClaim and a ResourceSlice, for tests of API versions and of what an API server accepts."""

from __future__ import annotations

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import versions
from hypothesis import strategies as st


def resource_slice(name, *devices):
    """A slice in v1. It is the only slice of its pool, `node-1`."""
    return {
        "apiVersion": versions.V1,
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "lanewise.dev",
            "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
            "nodeName": "node-1",
            "devices": list(devices),
        },
    }


CLAIM = {
    "apiVersion": versions.V1,
    "kind": "ResourceClaim",
    "metadata": {"name": "pair", "namespace": "training"},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "gpu",
                    "exactly": {
                        "deviceClassName": "gpu",
                        "count": 2,
                        "adminAccess": True,
                        "capacity": {"requests": {"memory": "10Gi"}},
                        "tolerations": [{"operator": "Exists"}],
                    },
                },
                {"name": "nic", "firstAvailable": [{"name": "fast", "deviceClassName": "rdma"}]},
            ],
            "constraints": [{"distinctAttribute": "lanewise.dev/rail"}],
        }
    },
}
SLICE = resource_slice(
    "node-1",
    {
        "name": "nic",
        "attributes": {"a.b/rails": {"ints": [0, 1]}, "model": {"string": "x"}},
        "capacity": {"bandwidth": {"value": "400G", "requestPolicy": {"default": "1G"}}},
        "allowMultipleAllocations": True,
        "taints": [{"key": "x", "effect": "NoSchedule"}],
    },
    {"name": "gpu"},
)


def template(claim):
    """The ResourceClaimTemplate with the spec of a claim."""
    return {
        **claim,
        "kind": "ResourceClaimTemplate",
        "spec": {"metadata": {"labels": {"a": "b"}}, "spec": claim["spec"]},
    }


#: Any JSON value.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
