# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Connects to a cluster, lists its objects in chunks, and limits the size of the JSON.

Tenants write the content of claims. A claim that Python's JSON reader cannot read must not prevent reading the others.
"""

from __future__ import annotations

import itertools
import typing as t
from http import HTTPStatus

from .dra.kube.bounded_json import JsonError, loads_pruned
from .dra.kube.objects import Object

if t.TYPE_CHECKING:
    import kubernetes
    import urllib3

#: Lists a page of objects. The list methods of the package kubernetes are of this type.
ListPage = t.Callable[..., t.Any]

#: The maximum number of objects in one response.
CHUNK = 500
REQUEST_TIMEOUT_SECONDS = 60
#: The maximum number of objects of a kind. A longer list is an error.
MAX_OBJECTS = 1_000_000
#: How often an expired list is requested again from the start.
MAX_RESTARTS = 5


class TooMuch(JsonError):
    """A list that is too long, or that expires faster than it can be read."""


class KubeconfigError(ValueError):
    """A kubeconfig whose content cannot be used."""


def api_client(
    kubeconfig: str | None, context: str | None, retries: urllib3.Retry | None = None
) -> kubernetes.client.ApiClient:
    """A client of the package kubernetes for a context of a kubeconfig, by default the current context of kubectl's.

    Without `retries`, failed requests are repeated as urllib3 does by default. Raises KubeconfigError, and OSError if a
    file cannot be read.
    """
    import yaml
    from kubernetes import client, config

    # the client reads `retries` only when it is created
    settings = client.Configuration()
    settings.retries = retries
    try:
        config.load_kube_config(kubeconfig, context=context, client_configuration=settings)
        return client.ApiClient(settings)
    except config.ConfigException as error:
        raise KubeconfigError(str(error)) from error
    except yaml.YAMLError as error:
        raise KubeconfigError(f"it is not valid YAML: {' '.join(str(error).split())}") from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # the package does not check all types
        raise KubeconfigError(f"its content is not that of a kubeconfig ({type(error).__name__}: {error})") from error


def minor(code: kubernetes.client.VersionInfo) -> str:
    """The release of a server without its patch number, such as `1.34`.

    A suffix of the provider, such as the plus in `34+`, is left out.
    """
    return f"{code.major}.{''.join(itertools.takewhile(str.isdigit, str(code.minor)))}"


def read_all(list_page: ListPage, version: str, kind: str, chunk: int | None = None) -> list[Object]:
    """The objects of all chunks of a list, each with `version` and `kind`.

    If the list expires between chunks, it is requested again from the start. A request is for `chunk` objects, by
    default CHUNK. `list_page` is a list method of the package kubernetes. Raises the package's ApiException, urllib3's
    HTTPError and bounded_json.JsonError, of which TooMuch is a subclass.
    """
    from kubernetes import client

    objects: list[Object] = []
    restarts = 0
    first = {"limit": chunk or CHUNK}
    query: Object = dict(first)
    while True:
        try:
            answer = loads_pruned(
                list_page(**query, _request_timeout=REQUEST_TIMEOUT_SECONDS, _preload_content=False).data
            )
        except client.ApiException as error:
            if error.status != HTTPStatus.GONE or "_continue" not in query:
                raise
            restarts += 1
            if restarts > MAX_RESTARTS:
                raise TooMuch(f"the list expired {restarts} times before all of it was read") from error
            objects, query = [], dict(first)
            continue
        objects += [{"apiVersion": version, "kind": kind, **item} for item in answer["items"]]
        if len(objects) > MAX_OBJECTS:
            raise TooMuch(f"there are more than {MAX_OBJECTS} objects")
        token = answer["metadata"].get("continue")
        if not token:
            return objects
        query["_continue"] = token
