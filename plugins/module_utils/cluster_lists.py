# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Lists of a cluster's objects, in parts and read with bounds. Whoever makes a claim decides what is in a part of it,
and one that Python's own JSON reader cannot take would hide all others."""

from __future__ import annotations

import typing as t

from .dra.kube.bounded_json import loads_cut

Object = dict[str, t.Any]

#: Objects of one answer, and seconds to wait for it.
CHUNK, SECONDS = 500, 60


def read_all(ask: t.Callable[..., t.Any], version: str, kind: str, chunk: int = CHUNK) -> list[Object]:
    """The objects of all parts of a list, each with C(version) and C(kind). A list that is too old to go on with is
    asked for again, whole.

    C(ask) is a method of the package kubernetes that lists. Raises its ApiException, urllib3's HTTPError and
    bounded_json.JsonError.
    """
    from kubernetes import client

    found: list[Object] = []
    query: Object = {"limit": chunk}
    while True:
        try:
            answer = loads_cut(ask(**query, _request_timeout=SECONDS, _preload_content=False).data)
        except client.ApiException as error:
            if error.status != 410 or "_continue" not in query:
                raise
            found, query = [], {}
            continue
        found += [{"apiVersion": version, "kind": kind, **one} for one in answer["items"]]
        more = answer["metadata"].get("continue")
        if not more:
            return found
        query["_continue"] = more
