# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the driver reads and writes in the cluster: claims, pods, its Node, events, tokens and ResourceSlices.

Objects are plain JSON; those of resource.k8s.io are always v1.
"""

from __future__ import annotations

import datetime
import ipaddress
import socket
import typing as t
import urllib.parse
from http import HTTPStatus

import urllib3

from ..base.errors import Unreachable
from ..base.objects import Object
from ..dra.kube import versions
from ..dra.kube.bounded_json import DEPTH, is_nested_deeper, loads_pruned
from . import features
from .client import MERGE, WATCH_SECONDS, ApiError, Client, Request, while_waiting
from .events import shortened
from .features import Features

Address = t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]

#: Maximum number of slices of another driver on this node that are read. GPUs with all their partitions take ten.
MAX_SLICES = 32
_MAX_ATTEMPTS = 5  # to change an object that others change at the same time
_STATUS_DEPTH = 3  # levels of a claim above the list status.devices, and the one at which a value would be pruned


class Cluster(Client):
    """The objects that one driver on one node uses; errors and threads as in `Client`."""

    def claim(self, namespace: str, name: str, meanwhile: t.Callable[[], None] | None = None) -> Object | None:
        """The ResourceClaim as v1; None if there is none of this name. Callers check its UID. `meanwhile` is called
        while the server works on the request (see `while_waiting`)."""
        with while_waiting(meanwhile):
            return self._get_or_none(
                lambda: self.resource("GET", f"/namespaces/{_quoted(namespace)}/resourceclaims/{_quoted(name)}")
            )

    def pod(self, namespace: str, name: str) -> Object | None:
        """The Pod; None if there is none of this name."""
        return self._get_or_none(
            lambda: self.request("GET", f"/api/v1/namespaces/{_quoted(namespace)}/pods/{_quoted(name)}")
        )

    @staticmethod
    def _get_or_none(get: t.Callable[[], Object]) -> Object | None:
        try:
            return get()
        except ApiError as error:
            if error.reason == "NotFound":
                return None
            raise

    def node_object(self) -> Object:
        """The Node that this driver runs on."""
        return self.request("GET", f"/api/v1/nodes/{_quoted(self.node)}")

    def set_claim_devices(self, namespace: str, name: str, uid: str, devices: t.Sequence[Object]) -> bool:
        """Replace this driver's entries in the claim's status with `devices` (v1 AllocatedDeviceStatus).

        An empty sequence removes them. Returns False if the claim no longer exists, or another one has its name.
        """
        subpath = f"/namespaces/{_quoted(namespace)}/resourceclaims/{_quoted(name)}"
        for _attempt in range(_MAX_ATTEMPTS):
            claim = self.claim(namespace, name)
            if claim is None or claim["metadata"].get("uid") != uid:
                return False
            before = claim.get("status", {}).get("devices") or []
            others = [entry for entry in before if entry.get("driver") != self.driver]
            after = [*others, *devices]
            if after == before:
                return True
            if is_nested_deeper(others, DEPTH - _STATUS_DEPTH):
                message = "status.devices: an entry of another driver is nested too deep to be written back unchanged"
                raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message)
            version = {"uid": uid, "resourceVersion": claim["metadata"]["resourceVersion"]}
            # A merge patch keeps the order of keys in the allocation's opaque configuration. Server-side apply sorts
            # the keys, and the server (1.34 and 1.37) then rejects the request as a change of the allocation.
            body = {"metadata": version, "status": {"devices": after or None}}
            try:
                self.resource("PATCH", f"{subpath}/status", body, content_type=MERGE)
                return True
            except ApiError as error:
                if error.reason == "NotFound":
                    return False
                if error.status != HTTPStatus.CONFLICT:
                    raise
        message = f"status.devices: was not written, because the claim changed during each of {_MAX_ATTEMPTS} attempts"
        raise ApiError(HTTPStatus.CONFLICT, "Conflict", message)

    def event(self, regarding: Object, reason: str, note: str, warning: bool = False, action: str = "Prepare") -> None:
        """Create an Event about an object (a Pod, ResourceClaim or Node). A note that is too long is shortened."""
        metadata = regarding["metadata"]
        namespace = metadata.get("namespace") or "default"
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        reference = {name: regarding[name] for name in ("apiVersion", "kind") if regarding.get(name)}
        reference |= {name: metadata[name] for name in ("name", "namespace", "uid") if metadata.get(name)}
        body: Object = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name'][:50].rstrip('-.')}-", "namespace": namespace},
            "eventTime": now,
            "reportingController": self.driver,
            "reportingInstance": self.node[:128],
            "action": action,
            "reason": reason,
            "regarding": reference,
            "note": shortened(note),
            "type": "Warning" if warning else "Normal",
        }
        self.request("POST", f"/apis/events.k8s.io/v1/namespaces/{_quoted(namespace)}/events", body)

    def token(self, namespace: str, account: str, node: Object, seconds: int) -> Object:
        """Request a token for a service account, bound to a Node. Returns the TokenRequest, with `status.token` and
        `status.expirationTimestamp`."""
        metadata = node["metadata"]
        bound = {"apiVersion": "v1", "kind": "Node", "name": metadata["name"], "uid": metadata["uid"]}
        body: Object = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds, "boundObjectRef": bound},
        }
        path = f"/api/v1/namespaces/{_quoted(namespace)}/serviceaccounts/{_quoted(account)}/token"
        return self.request("POST", path, body, retry_seconds=0)

    def slices(self) -> tuple[list[Object], str]:
        """This driver's slices of this node as v1, and the resourceVersion to watch from."""
        answer = self.resource("GET", "/resourceslices", query=self._own_slices(), retry_seconds=0)
        kind = {"apiVersion": versions.V1, "kind": "ResourceSlice"}
        return [{**item, **kind} for item in answer["items"]], answer["metadata"]["resourceVersion"]

    def slices_of(self, driver: str) -> list[Object]:
        """The slices of another driver on this node, as v1; at most the first MAX_SLICES."""
        query = {"fieldSelector": f"spec.driver={driver},spec.nodeName={self.node}", "limit": str(MAX_SLICES)}
        answer = self.resource("GET", "/resourceslices", query=query)
        return [item for item in answer.get("items") or () if isinstance(item, dict)]

    def _own_slices(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.driver={self.driver},spec.nodeName={self.node}"}

    def watch_slices(self, since: str) -> t.Iterator[tuple[str, Object]]:
        """Watch this driver's slices from the resourceVersion `since`. Yields the type (`ADDED`, `MODIFIED`, `DELETED`,
        `BOOKMARK`) and object of each event.

        Ends after about two minutes; continue from the last object's resourceVersion. Objects are in the server's
        version. Raises ApiError with status 410 if `since` is too old: then list the slices again.
        """
        query = {
            **self._own_slices(),
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        response = self.open(Request("GET", f"/apis/{self.api_version}/resourceslices", query=query), stream=True)
        try:
            incomplete = b""
            for chunk in response.stream(65536):
                *lines, incomplete = (incomplete + chunk).split(b"\n")
                for line in lines:
                    event = loads_pruned(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
                    yield event["type"], event["object"]
        except (urllib3.exceptions.HTTPError, ValueError, OSError) as error:
            raise Unreachable(f"the watch of slices has ended: {error}") from error
        finally:
            response.close()

    def create_slice(self, desired: Object, dry_run: bool = False) -> Object:
        """Create a slice and return it as stored. Raises ApiError with status 409 if one of this name exists."""
        query = {"dryRun": "All"} if dry_run else {}
        return self.resource("POST", "/resourceslices", desired, query, retry_seconds=0)

    def update_slice(self, changed: Object) -> Object:
        """Update a slice and return it as stored. Raises ApiError with status 409 if it has changed since it was
        read."""
        return self.resource("PUT", f"/resourceslices/{_quoted(changed['metadata']['name'])}", changed, retry_seconds=0)

    def delete_slice(self, obsolete: Object) -> None:
        """Delete exactly this slice. Succeeds if the slice no longer exists, has changed, or has been replaced."""
        metadata = obsolete["metadata"]
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        body: Object = {"preconditions": preconditions}
        try:
            self.resource("DELETE", f"/resourceslices/{_quoted(metadata['name'])}", body, retry_seconds=0)
        except ApiError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise

    def features(self) -> Features:
        """Which optional fields of slices the server keeps, found by creating slices with dry runs."""

        def create(body: Object) -> Object | None:
            try:
                return self.create_slice(body, dry_run=True)
            except ApiError as error:
                if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                    raise
                return None

        return features.find(self.driver, self.node, create, self.server_version)

    def server_version(self) -> str:
        """The version of the API server, such as `v1.37.1`; empty if it does not tell the driver."""
        try:
            return str(self.request("GET", "/version", retry_seconds=0).get("gitVersion") or "")
        except ApiError as error:
            if error.status not in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
                raise  # without a version, the driver would publish no shares
            return ""

    def api_addresses(self) -> tuple[Address, ...]:
        """The addresses of the API server; empty if its name cannot be resolved now."""
        parts = urllib.parse.urlsplit(self.server)
        try:
            results = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
        except OSError:
            return ()
        return tuple(dict.fromkeys(ipaddress.ip_address(str(result[4][0]).partition("%")[0]) for result in results))


def node_addresses(node: Object) -> tuple[Address, ...]:
    """The InternalIP and ExternalIP addresses of a Node."""
    addresses = []
    for entry in node.get("status", {}).get("addresses") or ():
        if entry.get("type") in ("InternalIP", "ExternalIP"):
            try:
                addresses.append(ipaddress.ip_address(entry.get("address", "")))
            except ValueError:
                continue
    return tuple(addresses)


def _quoted(name: str) -> str:
    """A name as one segment of a URL's path."""
    return urllib.parse.quote(name, safe="")
