# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Requests to the API server: connections, retries, and the version of resource.k8s.io.

It uses urllib3. The kubernetes package takes 20 MiB and a second to import, and would return the same dictionaries.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import ssl
import threading
import time
import typing as t
import urllib.parse
from dataclasses import dataclass
from http import HTTPStatus

import urllib3

from ..base import trace
from ..base.errors import DriverError, Unreachable
from ..base.objects import Object
from ..dra.kube import versions
from ..dra.kube.bounded_json import JsonError, loads_pruned
from . import access as credentials
from .access import Access, AccessError

_CONNECT_SECONDS, _READ_SECONDS = 3.0, 15.0
_RETRY_SECONDS = 15.0  # kubelet's timeout for preparing a claim is 45 s
#: Seconds after which the server ends a watch.
WATCH_SECONDS = 120
_CONNECTIONS = 24  # kept open, more than kubelet's concurrent calls: a new one costs both sides 3 ms of CPU time
_RETRIED_STATUSES = (429, 500, 502, 503, 504)
JSON, MERGE = "application/json", "application/merge-patch+json"
#: The reason of a 404 for an unknown path instead of a missing object.
NOT_SERVED = "NotServed"


class ApiError(DriverError):
    """The API server returned an error. `status` is the HTTP status, `reason` that of the API (such as `NotFound`) or
    NOT_SERVED. `retry_after` is the delay in seconds that the server requests."""

    def __init__(self, status: int, reason: str, message: str, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


@dataclass(frozen=True)
class Request:
    """A request; `body` is sent as JSON unless it is None."""

    method: str
    path: str
    body: Object | None = None
    query: t.Mapping[str, str] | None = None
    content_type: str = JSON

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class _Waiting(threading.local):
    """The action that a thread runs while it waits for the response to its next request."""

    action: t.Callable[[], None] | None = None


_waiting = _Waiting()


@contextlib.contextmanager
def while_waiting(action: t.Callable[[], None] | None) -> t.Iterator[None]:
    """Run the action in this thread once within the block: after a request is sent, before the response is read. It
    adds no delay if the server takes longer, and needs no second thread, which would compete for the interpreter."""
    _waiting.action = action
    try:
        yield
    finally:
        _waiting.action = None


class _Https(urllib3.connection.HTTPSConnection):
    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # its parent overrides http.client's, too
        action, _waiting.action = _waiting.action, None
        if action:
            action()
        return super().getresponse()


class _Pool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Https


class _Connection:
    """A pool of connections with one set of credentials."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._stamp = credentials.stamp(access.sources)
        self._token = access.token
        self._token_stamp: credentials.Stamp = ()
        context = ssl.create_default_context(cadata=access.authority or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if access.certificate:
            descriptor = os.memfd_create("client")  # the ssl module reads certificates only from files
            try:
                os.write(descriptor, access.certificate.encode())
                context.load_cert_chain(f"/proc/self/fd/{descriptor}")
            finally:
                os.close(descriptor)
        server = urllib3.util.parse_url(access.server)
        self.prefix = (server.path or "").rstrip("/")
        # no PoolManager, which would look up the pool of the only server for each request
        self.pool = _Pool(
            str(server.host),
            server.port or 443,
            maxsize=_CONNECTIONS,
            ssl_context=context,
            server_hostname=access.server_name,
            assert_hostname=access.server_name,
        )

    def stale(self) -> bool:
        """Whether a file from which the credentials were read has changed."""
        return credentials.stamp(self.access.sources) != self._stamp

    def headers(self) -> dict[str, str]:
        """The headers that authenticate a request. Raises AccessError."""
        if path := self.access.token_file:
            stamp = credentials.stamp([path])
            if stamp != self._token_stamp:
                self._token = credentials.checked_token(credentials.text(path), path)
                self._token_stamp = stamp
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def forget_token(self) -> None:
        """Read the token file again for the next request."""
        self._token_stamp = ()


class Client:
    """Requests of one driver on one node. Every method may be called from any thread.

    All methods raise ApiError if the server returns an error, Unreachable if it does not answer in time, and
    AccessError if the credentials cannot be read. `retry_seconds` is the default of `request`. `access` is called again
    when a file from which the credentials were read has changed.
    """

    def __init__(
        self, access: t.Callable[[], Access], driver: str, node: str, retry_seconds: float = _RETRY_SECONDS
    ) -> None:
        self.driver = driver
        self.node = node
        self._load = access
        self._retry_seconds = retry_seconds
        self._lock = threading.Lock()
        self._connected: _Connection | None = None
        self._version = ""

    def _connection(self) -> _Connection:
        with self._lock:
            if self._connected is None or self._connected.stale():
                try:
                    self._connected = _Connection(self._load())
                except (ssl.SSLError, OSError, ValueError) as error:
                    raise AccessError(f"the API server's certificates cannot be used: {error}") from error
            return self._connected

    @property
    def server(self) -> str:
        """The server's address, an https URL."""
        return self._connection().access.server

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: t.Mapping[str, str] | None = None,
        content_type: str = JSON,
        retry_seconds: float | None = None,
    ) -> Object:
        """Send a request and return the JSON object of the response, as `bounded_json.loads_pruned` reads it.

        Requests of any method are retried for `retry_seconds` (default: that of the client) if the server does not
        answer or returns one of _RETRIED_STATUSES. Pass 0 if a request must not be sent again in these cases. After
        status 401 it is always sent once more, with the token read again.
        """
        request = Request(method, path, body, query, content_type)
        deadline = time.monotonic() + (self._retry_seconds if retry_seconds is None else retry_seconds)
        delay = 0.1
        token_reread = False
        while True:
            wait = 0.0
            last_error: DriverError
            try:
                with trace.step(str(request)):
                    return self._once(request)
            except ApiError as error:
                if error.status == HTTPStatus.UNAUTHORIZED and not token_reread:
                    # the token file may have been replaced after it was read
                    token_reread = True
                    self._connection().forget_token()
                    continue
                if error.status not in _RETRIED_STATUSES:
                    raise
                wait = float(error.retry_after)
                last_error = error
            except Unreachable as error:
                last_error = error
            wait = max(wait, delay * random.uniform(0.5, 1.5))
            if time.monotonic() + wait > deadline:
                raise last_error
            time.sleep(wait)
            delay = min(delay * 2, 2.0)

    def _once(self, request: Request) -> Object:
        response = self.open(request)
        try:
            return t.cast("Object", loads_pruned(response.data)) if response.data else {}
        except JsonError as error:
            raise Unreachable(f"{request}: the response is not valid JSON: {error}") from error

    def open(self, request: Request, stream: bool = False) -> urllib3.BaseHTTPResponse:
        """Send a request once and return the response. With `stream` the body is not read yet, and reading may take as
        long as a watch."""
        connection = self._connection()
        query = f"?{urllib.parse.urlencode(request.query)}" if request.query else ""
        url = connection.prefix + request.path + query
        headers = {"Accept": JSON, "User-Agent": f"{self.driver}/{self.node}", **connection.headers()}
        content = None
        if request.body is not None:
            content = json.dumps(request.body, separators=(",", ":")).encode()
            headers["Content-Type"] = request.content_type
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=WATCH_SECONDS + 10 if stream else _READ_SECONDS)
        try:
            response = connection.pool.urlopen(
                request.method,
                url,
                body=content,
                headers=headers,
                retries=False,
                redirect=False,
                timeout=timeout,
                preload_content=not stream,
            )
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"the API server does not answer {request}: {error}") from error
        if response.status >= 300:
            data = response.data
            response.release_conn()
            raise _api_error(response, data, str(request))
        return response

    @property
    def api_version(self) -> str:
        """The version of resource.k8s.io in use: the newest one that both the server and the driver support.

        Raises DriverError if there is none.
        """
        if not self._version:
            try:
                self._version = versions.choose(self.served())
            except LookupError as error:
                message = f"the driver does not support the API server: {error}; use Kubernetes 1.34 or newer"
                raise DriverError(message) from error
        return self._version

    def served(self) -> list[str]:
        """The versions of resource.k8s.io that the server serves, such as `resource.k8s.io/v1beta1`.

        Raises ApiError with status 404 if dynamic resource allocation is disabled.
        """
        group = self.request("GET", f"/apis/{versions.GROUP}")
        return [version["groupVersion"] for version in group["versions"]]

    def forget_version(self) -> None:
        """Request the versions again before the next use: the server may have been replaced."""
        self._version = ""

    def resource(
        self,
        method: str,
        subpath: str,
        body: Object | None = None,
        query: t.Mapping[str, str] | None = None,
        retry_seconds: float | None = None,
        content_type: str = JSON,
    ) -> Object:
        """As `request`, for objects of resource.k8s.io at `subpath` below the API version. They are sent in the
        server's version and returned as v1."""
        for attempt in (1, 2):
            version = self.api_version
            content = versions.convert(body, version) if body and body.get("apiVersion") else body
            try:
                response = self.request(
                    method, f"/apis/{version}{subpath}", content, query, content_type, retry_seconds
                )
            except ApiError as error:
                if error.reason == NOT_SERVED and attempt == 1:
                    self.forget_version()
                    continue
                raise
            return _as_v1(response, version)
        raise AssertionError("the second attempt returns or raises")


def _as_v1(response: Object, version: str) -> Object:
    kind = str(response.get("kind"))
    if kind.endswith("List"):
        item_kind = kind[: -len("List")]
        items = [
            versions.convert({**item, "apiVersion": version, "kind": item_kind}, versions.V1)
            for item in response["items"]
        ]
        return {**response, "apiVersion": versions.V1, "items": items}
    if (version, kind) in versions.SERVED and response.get("apiVersion") == version:
        return versions.convert(response, versions.V1)
    return response


def _api_error(response: urllib3.BaseHTTPResponse, data: bytes, request: str) -> ApiError:
    """The error for a response: with the reason and message of a Status, or else with the start of the body."""
    reason = NOT_SERVED if response.status == HTTPStatus.NOT_FOUND else ""
    message = data[:500].decode(errors="replace").strip()
    try:
        status = loads_pruned(data)
        if status.get("kind") == "Status":
            reason, message = status.get("reason") or "", status.get("message") or ""
            if response.status == HTTPStatus.NOT_FOUND and not (status.get("details") or {}).get("name"):
                reason = NOT_SERVED
    except (ValueError, AttributeError):
        pass
    after = response.headers.get("Retry-After", "")
    seconds = min(int(after), 10) if after.isdigit() else 0
    return ApiError(response.status, reason, f"{request}: {response.status} {message}", seconds)
