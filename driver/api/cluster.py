# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The API server as the driver sees it: few requests, plain JSON objects, DRA objects always in the form of v1.

urllib3 and not the kubernetes package: the latter takes 20 MiB and a second to import, and would only hand the same
dictionaries through.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import ipaddress
import json
import os
import random
import socket
import ssl
import threading
import time
import typing as t
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path

import urllib3

from ..base import trace
from ..base.errors import DriverError, Unreachable
from ..dra.kube import schema, versions
from ..dra.kube.bounded_json import DEPTH, JsonError, is_nested_deeper, loads_cut
from .events import shortened
from .features import Features, cut

Object = dict[str, t.Any]

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONNECT_SECONDS, _READ_SECONDS = 3.0, 15.0
_PATIENCE_SECONDS = 15.0  # kubelet waits 45 s for what a claim needs
_WATCH_SECONDS = 120
_CONNECTIONS = 24  # kept open: as many as kubelet's calls at once, and more; each new one costs both sides 3 ms of CPU
_RETRIED = (429, 500, 502, 503, 504)
_JSON, _MERGE = "application/json", "application/merge-patch+json"
_CONFLICTS = 5  # attempts to change what others change at the same time
_PROBE = "lanewise-dra-features"
_STATUS_DEPTH = 3  # levels of a claim around the entries of status.devices, and one to spare
#: Our word for a 404 that means the path and not the object.
NOT_SERVED = "NotServed"


class ApiError(DriverError):
    """The API server refused a request. C(status) is the HTTP status, C(reason) the API's word (C(NotFound))."""

    def __init__(self, status: int, reason: str, message: str, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after  #: seconds


class AccessError(DriverError):
    """Credentials that cannot be read."""


@dataclass(frozen=True)
class _Request:
    """C(body) is sent as JSON, where it is not None."""

    method: str
    path: str
    body: t.Any = None
    query: t.Mapping[str, str] | None = None
    content_type: str = _JSON

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Access:
    """How to reach the API server. C(authority) is PEM text, C(certificate) certificate and key of a client in PEM.

    C(sources) are the files that all this was read from, but for C(token_file), which is read again when it changes.
    """

    server: str
    authority: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    server_name: str | None = None
    sources: tuple[Path, ...] = ()


def in_cluster(folder: Path = _ACCOUNT) -> Access:
    """The service account of the pod that this process runs in. Raises AccessError."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise AccessError("no kubeconfig is set, and this is no pod with a service account")
    authority = _read(folder / "ca.crt")
    host = f"[{host}]" if ":" in host else host
    return Access(f"https://{host}:{port}", authority, token_file=folder / "token", sources=(folder / "ca.crt",))


def from_kubeconfig(path: Path, token_file: Path | None = None) -> Access:
    """The current context of a kubeconfig; C(token_file) takes the place of the user's credentials in it.

    Raises AccessError for one that cannot be read, and for what needs a program to log in.
    """
    import yaml

    try:
        data = yaml.safe_load(_read(path))
        name = data["current-context"]
        context = _named(data["contexts"], name)["context"]
        cluster = _named(data["clusters"], context["cluster"])["cluster"]
        user: Object = {}
        if not token_file:
            user = _named(data["users"], context["user"])["user"] or {}
        server = cluster["server"].rstrip("/")
        if not server.startswith("https://"):
            raise AccessError(f"{path}: the server {server!r} is not reached by https")
        if user.get("exec") or user.get("auth-provider"):
            raise AccessError(f"{path}: the user logs in by a program; give a token_file instead")
        sources = [path]

        def pem(holder: Object, key: str) -> str:
            if holder.get(f"{key}-data"):
                return base64.b64decode(holder[f"{key}-data"], validate=True).decode("ascii")
            if holder.get(key):
                sources.append(path.parent / holder[key])
                return _read(sources[-1])
            return ""

        authority = pem(cluster, "certificate-authority")
        certificate = ""
        if user.get("client-certificate") or user.get("client-certificate-data"):
            certificate = f"{pem(user, 'client-certificate')}\n{pem(user, 'client-key')}"
        if user.get("tokenFile"):
            token_file = path.parent / user["tokenFile"]
        return Access(
            server=server,
            authority=authority,
            certificate=certificate,
            token=user.get("token") or "",
            token_file=token_file,
            server_name=cluster.get("tls-server-name"),
            sources=tuple(sources),
        )
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error, yaml.YAMLError) as error:
        raise AccessError(f"{path} is no kubeconfig that could be read: {error!r}") from error


def _named(entries: t.Sequence[Object], name: str) -> Object:
    return next(entry for entry in [*entries, {}] if entry.get("name", name) == name)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AccessError(f"{path} cannot be read: {error}") from error


def _stamp(paths: t.Iterable[Path]) -> tuple[t.Any, ...]:
    found = []
    for path in paths:
        try:
            status = path.stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)


class _Connection:
    """A pool of connections with the credentials of one moment."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._stamp = _stamp(access.sources)
        self._token = access.token
        self._token_stamp: tuple[t.Any, ...] = ()
        context = ssl.create_default_context(cadata=access.authority or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if access.certificate:
            descriptor = os.memfd_create("client")  # the ssl module takes certificates from files only
            try:
                os.write(descriptor, access.certificate.encode())
                context.load_cert_chain(f"/proc/self/fd/{descriptor}")
            finally:
                os.close(descriptor)
        self.pool = urllib3.PoolManager(
            maxsize=_CONNECTIONS,
            retries=False,
            ssl_context=context,
            server_hostname=access.server_name,
            assert_hostname=access.server_name,
            timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS),
        )

    def stale(self) -> bool:
        return _stamp(self.access.sources) != self._stamp

    def headers(self) -> dict[str, str]:
        """Raises AccessError."""
        if self.access.token_file:
            stamp = _stamp([self.access.token_file])
            if stamp != self._token_stamp:
                self._token = _read(self.access.token_file).strip()
                self._token_stamp = stamp
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def forget_token(self) -> None:
        self._token_stamp = ()


class Cluster:
    """Access for one driver on one node. Every method may be called from any thread.

    All methods raise ApiError where the server refuses, Unreachable where it does not answer in time and AccessError
    where the credentials cannot be read; requests that do no harm twice are retried before that for C(patience)
    seconds. C(access) is called again when a file that the credentials came from has changed.
    """

    def __init__(
        self, access: t.Callable[[], Access], driver: str, node: str, patience: float = _PATIENCE_SECONDS
    ) -> None:
        self.driver = driver
        self.node = node
        self._load = access
        self._patience = patience
        self._lock = threading.Lock()
        self._connected: _Connection | None = None
        self._version = ""

    # requests

    def _connection(self) -> _Connection:
        with self._lock:
            if self._connected is None or self._connected.stale():
                try:
                    self._connected = _Connection(self._load())
                except (ssl.SSLError, OSError, ValueError) as error:
                    raise AccessError(f"the API server's certificates cannot be used: {error}") from error
            return self._connected

    def request(
        self,
        method: str,
        path: str,
        body: t.Any = None,
        query: t.Mapping[str, str] | None = None,
        content_type: str = _JSON,
        patience: float | None = None,
    ) -> Object:
        """The JSON object that comes back, as bounded_json.loads_cut reads it. C(patience) is how many seconds to go on
        trying; 0 tries once."""
        asked = _Request(method, path, body, query, content_type)
        deadline = time.monotonic() + (self._patience if patience is None else patience)
        delay = 0.1
        fresh = False
        while True:
            wait, last = 0.0, DriverError("not asked yet")
            try:
                with trace.step(str(asked)):
                    return self._once(asked)
            except ApiError as error:
                if error.status == 401 and not fresh:
                    # the token was just replaced, or the file was read in between
                    fresh = True
                    self._connection().forget_token()
                    continue
                if error.status not in _RETRIED:
                    raise
                wait = float(error.retry_after)
                last = error
            except Unreachable as error:
                last = error
            wait = max(wait, delay * random.uniform(0.5, 1.5))
            if time.monotonic() + wait > deadline:
                raise last
            time.sleep(wait)
            delay = min(delay * 2, 2.0)

    def _once(self, asked: _Request) -> Object:
        response = self._open(asked)
        try:
            return t.cast("Object", loads_cut(response.data)) if response.data else {}
        except JsonError as error:
            raise Unreachable(f"{asked}: what came back cannot be read: {error}") from error

    def _open(self, asked: _Request, stream: bool = False) -> urllib3.BaseHTTPResponse:
        connection = self._connection()
        query = f"?{urllib.parse.urlencode(asked.query)}" if asked.query else ""
        url = connection.access.server + asked.path + query
        headers = {"Accept": _JSON, "User-Agent": f"{self.driver}/{self.node}", **connection.headers()}
        content = None
        if asked.body is not None:
            content = json.dumps(asked.body, separators=(",", ":")).encode()
            headers["Content-Type"] = asked.content_type
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=_WATCH_SECONDS + 10) if stream else None
        more: dict[str, t.Any] = {"timeout": timeout} if timeout else {}
        try:
            response = connection.pool.request(
                asked.method, url, body=content, headers=headers, preload_content=not stream, **more
            )
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"the API server does not answer {asked}: {error}") from error
        if response.status >= 300:
            data = response.data
            response.release_conn()
            raise _refusal(response, data, str(asked))
        return response

    # versions

    @property
    def api_version(self) -> str:
        """The version of resource.k8s.io that is spoken: the newest that the server has."""
        if not self._version:
            self._version = versions.choose(self.served())
        return self._version

    def served(self) -> list[str]:
        """The versions of resource.k8s.io that the server has, such as C(resource.k8s.io/v1beta1).

        Raises ApiError with status 404 where dynamic resource allocation is switched off.
        """
        group = self.request("GET", f"/apis/{schema.GROUP}")
        return [version["groupVersion"] for version in group["versions"]]

    def forget_version(self) -> None:
        """Ask again which versions there are: the server may be another one now."""
        self._version = ""

    def _resource(
        self,
        method: str,
        rest: str,
        body: Object | None = None,
        query: t.Mapping[str, str] | None = None,
        patience: float | None = None,
        content_type: str = _JSON,
    ) -> Object:
        """A request for DRA objects, which go out in the server's version and come back in v1."""
        for attempt in (1, 2):
            version = self.api_version
            content = versions.convert(body, version) if body and body.get("apiVersion") else body
            try:
                answer = self.request(method, f"/apis/{version}{rest}", content, query, content_type, patience)
            except ApiError as error:
                if error.reason == NOT_SERVED and attempt == 1:
                    self.forget_version()
                    continue
                raise
            return _as_v1(answer, version)
        raise AssertionError

    # objects

    def claim(self, namespace: str, name: str) -> Object | None:
        """The ResourceClaim as v1; None where there is none of this name. Callers check its UID."""
        return self._found("GET", f"/namespaces/{_part(namespace)}/resourceclaims/{_part(name)}")

    def _found(self, method: str, rest: str) -> Object | None:
        try:
            return self._resource(method, rest)
        except ApiError as error:
            if error.reason == "NotFound":
                return None
            raise

    def pod(self, namespace: str, name: str) -> Object | None:
        """The Pod; None where there is none."""
        try:
            return self.request("GET", f"/api/v1/namespaces/{_part(namespace)}/pods/{_part(name)}")
        except ApiError as error:
            if error.reason == "NotFound":
                return None
            raise

    def node_object(self) -> Object:
        """The Node that this driver runs on."""
        return self.request("GET", f"/api/v1/nodes/{_part(self.node)}")

    def set_claim_devices(self, namespace: str, name: str, uid: str, devices: t.Sequence[Object]) -> bool:
        """Make C(devices) (v1 AllocatedDeviceStatus) all that this driver says in the claim's status.

        An empty sequence clears it. False where the claim is gone, or is another claim of the same name.
        """
        rest = f"/namespaces/{_part(namespace)}/resourceclaims/{_part(name)}"
        for _attempt in range(_CONFLICTS):
            claim = self.claim(namespace, name)
            if claim is None or claim["metadata"].get("uid") != uid:
                return False
            before = claim.get("status", {}).get("devices") or []
            others = [entry for entry in before if entry.get("driver") != self.driver]
            after = [*others, *devices]
            if after == before:
                return True
            if is_nested_deeper(others, DEPTH - _STATUS_DEPTH):
                what = "status.devices: what another driver wrote is nested too deep to be written back as it is"
                raise ApiError(422, "Invalid", what)
            version = {"uid": uid, "resourceVersion": claim["metadata"]["resourceVersion"]}
            # A merge patch leaves the keys of the allocation's opaque configuration in their order. A server-side apply
            # sorts them, and the server then refuses it as a change of the allocation (1.34 and 1.37).
            body = {"metadata": version, "status": {"devices": after or None}}
            try:
                self._resource("PATCH", f"{rest}/status", body, content_type=_MERGE)
                return True
            except ApiError as error:
                if error.reason == "NotFound":
                    return False
                if error.status != 409:
                    raise
        raise Unreachable(f"the status of claim {namespace}/{name} changes all the time")

    def event(self, regarding: Object, reason: str, note: str, warning: bool = False, action: str = "Prepare") -> None:
        """Tell something about an object (a Pod or ResourceClaim as read from the server). A note that is too
        long is shortened. Raises as the others."""
        metadata = regarding["metadata"]
        namespace = metadata.get("namespace") or "default"
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        reference = {name: regarding[name] for name in ("apiVersion", "kind") if regarding.get(name)}
        reference |= {name: metadata[name] for name in ("name", "namespace", "uid") if metadata.get(name)}
        body = {
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
        self.request("POST", f"/apis/events.k8s.io/v1/namespaces/{_part(namespace)}/events", body)

    def token(self, namespace: str, account: str, node: Object, seconds: int) -> Object:
        """A TokenRequest for a service account, bound to a Node: C(status.token) and C(status.expirationTimestamp)."""
        metadata = node["metadata"]
        bound = {"apiVersion": "v1", "kind": "Node", "name": metadata["name"], "uid": metadata["uid"]}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds, "boundObjectRef": bound},
        }
        path = f"/api/v1/namespaces/{_part(namespace)}/serviceaccounts/{_part(account)}/token"
        return self.request("POST", path, body, patience=0)

    # slices

    def slices(self) -> tuple[list[Object], str]:
        """Our slices of this node as v1, and the resourceVersion to watch from."""
        answer = self._resource("GET", "/resourceslices", query=self._own(), patience=0)
        kind = {"apiVersion": schema.V1, "kind": "ResourceSlice"}
        return [{**item, **kind} for item in answer["items"]], answer["metadata"]["resourceVersion"]

    def _own(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.driver={self.driver},spec.nodeName={self.node}"}

    def watch_slices(self, since: str) -> t.Iterator[tuple[str, Object]]:
        """Type (C(ADDED), C(MODIFIED), C(DELETED), C(BOOKMARK)) and object of each change of our slices.

        Ends after about two minutes; the last object's resourceVersion is where to go on. Objects are in the server's
        version. Raises ApiError with status 410 where C(since) is too old: list again then.
        """
        query = {
            **self._own(),
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        asked = _Request("GET", f"/apis/{self.api_version}/resourceslices", query=query)
        response = self._open(asked, stream=True)
        try:
            rest = b""
            for chunk in response.stream(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = loads_cut(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
                    yield event["type"], event["object"]
        except (urllib3.exceptions.HTTPError, ValueError, OSError) as error:
            raise Unreachable(f"the watch of slices has ended: {error}") from error
        finally:
            response.close()

    def create_slice(self, desired: Object, dry_run: bool = False) -> Object:
        """The slice as stored. Raises ApiError with status 409 where there is one of this name."""
        query = {"dryRun": "All"} if dry_run else {}
        return self._resource("POST", "/resourceslices", desired, query, patience=0)

    def update_slice(self, changed: Object) -> Object:
        """The slice as stored. Raises ApiError with status 409 where it has changed since it was read."""
        return self._resource("PUT", f"/resourceslices/{_part(changed['metadata']['name'])}", changed, patience=0)

    def delete_slice(self, obsolete: Object) -> None:
        """Delete exactly this slice; that it is gone already, or has become another, is no error."""
        metadata = obsolete["metadata"]
        exactly = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        body = {"preconditions": exactly}
        try:
            self._resource("DELETE", f"/resourceslices/{_part(metadata['name'])}", body, patience=0)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def features(self) -> Features:
        """What the server keeps of slices, found out by creating some without storing them."""
        features = Features()
        taint = {"key": f"{self.driver}/probe", "effect": "NoSchedule"}
        one = {"counterSet": "probe", "counters": {"functions": {"value": "1"}}}
        features = self._try(features, {"devices": [{"name": "probe", "taints": [taint], "consumesCounters": [one]}]})
        if not features.counters:
            return self._try(features, {"devices": [{"name": "probe", "taints": [taint]}]})
        return self._try(features, {"sharedCounters": [{"name": "probe", "counters": {"functions": {"value": "1"}}}]})

    def _try(self, features: Features, content: Object) -> Features:
        pool = {"name": self.node, "generation": 0, "resourceSliceCount": 1}
        body = {
            "apiVersion": schema.V1,
            "kind": "ResourceSlice",
            "metadata": {"generateName": f"{_PROBE}-"},
            "spec": {"driver": self.driver, "nodeName": self.node, "pool": pool, **content},
        }
        try:
            stored = self.create_slice(body, dry_run=True)
        except ApiError as error:
            if error.status != 422:
                raise
            return cut(features, [".consumesCounters"])  # it must stand with its counter set: 1.34 with its gate on
        return cut(features, versions.dropped(body["spec"], stored["spec"]))

    def api_addresses(self) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, ...]:
        """The addresses of the API server; empty where its name cannot be resolved now."""
        parts = urllib.parse.urlsplit(self._connection().access.server)
        try:
            found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
        except OSError:
            return ()
        return tuple(dict.fromkeys(ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found))


def node_addresses(node: Object) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, ...]:
    """The InternalIP and ExternalIP addresses of a Node."""
    found = []
    for entry in node.get("status", {}).get("addresses") or ():
        if entry.get("type") in ("InternalIP", "ExternalIP"):
            try:
                found.append(ipaddress.ip_address(entry.get("address", "")))
            except ValueError:
                continue
    return tuple(found)


def _part(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _as_v1(answer: Object, version: str) -> Object:
    kind = str(answer.get("kind"))
    if kind.endswith("List"):
        single = kind[: -len("List")]
        items = [versions.convert({**one, "apiVersion": version, "kind": single}, schema.V1) for one in answer["items"]]
        return {**answer, "apiVersion": schema.V1, "items": items}
    if (version, kind) in schema.SERVED and answer.get("apiVersion") == version:
        return versions.convert(answer, schema.V1)
    return answer


def _refusal(response: urllib3.BaseHTTPResponse, data: bytes, what: str) -> ApiError:
    """The API's own words, where they are its own."""
    reason, message = NOT_SERVED if response.status == 404 else "", data[:500].decode(errors="replace").strip()
    try:
        status = loads_cut(data)
        if status.get("kind") == "Status":
            reason, message = status.get("reason") or "", status.get("message") or ""
            if response.status == 404 and not (status.get("details") or {}).get("name"):
                reason = NOT_SERVED
    except (ValueError, AttributeError):
        pass
    after = response.headers.get("Retry-After", "")
    seconds = min(int(after), 10) if after.isdigit() else 0
    return ApiError(response.status, reason, f"{what}: {response.status} {message}", seconds)
