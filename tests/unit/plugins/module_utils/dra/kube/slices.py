# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A ResourceSlice of a node, for tests of what an API server accepts."""

from __future__ import annotations

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import schema


def resource_slice(name, *devices):
    """The only slice of the pool `node-1`, in v1."""
    return {
        "apiVersion": schema.V1,
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "lanewise.dev",
            "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
            "nodeName": "node-1",
            "devices": list(devices),
        },
    }
