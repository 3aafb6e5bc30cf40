# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The DRA drivers of vendors: the attributes of each, and the devices that it would publish for a probed node.

Each driver has a file, NVIDIA's has several. `drivers` lists them all, `knowledge` and `offer` have their types,
`offers` computes what the drivers of a site publish on a node, and `options` and `sharing` check their options.

It imports `kube`, `apiserver`, `config` and `topology`. It never imports the scheduler or the claim compiler.
"""

from __future__ import annotations
