# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Lists a cluster's objects in chunks, with limits for the JSON. Tenants write the content of claims: a claim that
Python's own JSON reader cannot read must not hide all others."""

from __future__ import annotations

import itertools
import typing as t

from .dra.kube.bounded_json import JsonError, loads_pruned
from .dra.kube.objects import Object

if t.TYPE_CHECKING:
    import kubernetes

#: Lists a page of objects, as the methods of the package kubernetes do.
Listed = t.Callable[..., t.Any]

#: The number of objects in one response, and the seconds to wait for it.
CHUNK, SECONDS = 500, 60
#: The maximum number of objects of a kind. A longer list is an error.
MOST = 1_000_000
#: How often an expired list is requested again from the start.
RESTARTS = 5


class TooMuch(JsonError):
    """A list that is too long, or that expires faster than it can be read."""


def minor(code: kubernetes.client.VersionInfo) -> str:
    """The minor release of a server, such as `1.34`, without what a provider may append, such as the plus in `34+`."""
    return f"{code.major}.{''.join(itertools.takewhile(str.isdigit, str(code.minor)))}"


def read_all(list_page: Listed, version: str, kind: str, chunk: int | None = None) -> list[Object]:
    """The objects of all chunks of a list, each with `version` and `kind`. If the list expires between chunks, it is
    requested again from the start. A request is for `chunk` objects, by default CHUNK.

    `list_page` is a list method of the package kubernetes. Raises its ApiException, urllib3's HTTPError and
    bounded_json.JsonError, of which TooMuch is a subclass.
    """
    from kubernetes import client

    found: list[Object] = []
    restarts = 0
    first = {"limit": chunk or CHUNK}
    query: Object = dict(first)
    while True:
        try:
            answer = loads_pruned(list_page(**query, _request_timeout=SECONDS, _preload_content=False).data)
        except client.ApiException as error:
            if error.status != 410 or "_continue" not in query:
                raise
            restarts += 1
            if restarts > RESTARTS:
                raise TooMuch(f"the list expired {restarts} times before all of it was read") from error
            found, query = [], dict(first)
            continue
        found += [{"apiVersion": version, "kind": kind, **one} for one in answer["items"]]
        if len(found) > MOST:
            raise TooMuch(f"there are more than {MOST} objects")
        more = answer["metadata"].get("continue")
        if not more:
            return found
        query["_continue"] = more
