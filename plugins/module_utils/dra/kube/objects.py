# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The types of JSON: Kubernetes objects and their parts, and how the parts of a request are read."""

from __future__ import annotations

import typing as t

#: A Kubernetes object or a part of one as parsed JSON: any field may be missing.
Object = dict[str, t.Any]
#: The same, read-only.
ObjectView = t.Mapping[str, t.Any]
#: A JSON value without structure.
Scalar = t.Union[str, int, bool]


def alternatives(request: ObjectView) -> list[Object]:
    """The alternatives of a v1 request of a claim; for a request without alternatives, its only body."""
    return list(request.get("firstAvailable") or [request.get("exactly") or {}])
