# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Requests to an API server without a client library of Kubernetes."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.bounded_json import loads_pruned

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML


class _NoAnswer(http.client.RemoteDisconnected):
    """The connection was closed before the first byte of the response."""


class Client:
    """One user of one server on 127.0.0.1. Each thread has its own connection and reuses it.

    `certificate` holds certificate and key; without one the user is anonymous.
    """

    def __init__(self, port: int, authority: Path, certificate: Path | None = None, timeout: float = 60) -> None:
        self._address = ("127.0.0.1", port, timeout)
        self._tls = ssl.create_default_context(cafile=str(authority))
        if certificate:
            self._tls.load_cert_chain(certificate)
        self._local = threading.local()

    def _send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes, str]:
        connection = self._local.connection
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ssl.SSLEOFError) as error:
            raise _NoAnswer("") from error
        return answer.status, answer.read(), answer.headers.get_content_type()

    def request(self, method: str, path: str, body: t.Any = None, content_type: str | None = None) -> tuple[int, t.Any]:
        """The status and the body of the response: parsed JSON, or else text.

        `body` is sent as JSON unless it is bytes. A PATCH is a merge patch unless `content_type` says otherwise.
        Raises OSError or http.client.HTTPException if there is no response.
        """
        content = body if body is None or isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        headers = {"Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = content_type or (MERGE_PATCH if method == "PATCH" else "application/json")
        existing = getattr(self._local, "connection", None)
        if existing is None:
            host, port, timeout = self._address
            self._local.connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)
        try:
            try:
                status, answer, media_type = self._send(method, path, content, headers)
            except _NoAnswer:
                if existing is None:
                    raise
                # the server has probably closed the idle connection
                self._local.connection.close()
                status, answer, media_type = self._send(method, path, content, headers)
        except BaseException:
            self._local.connection.close()
            self._local.connection = None
            raise
        return status, loads_pruned(answer) if media_type == "application/json" and answer else answer.decode()

    def openapi(self, group_version: str) -> dict[str, t.Any]:
        """The OpenAPI v3 document of `v1` or of a group's version, as `resource.k8s.io/v1`."""
        top = "apis" if "/" in group_version else "api"
        status, document = self.request("GET", f"/openapi/v3/{top}/{group_version}")
        if status != 200:
            raise LookupError(f"the server has no OpenAPI document for {group_version}: {document}")
        return t.cast("dict[str, t.Any]", document)

    def close(self) -> None:
        """Close this thread's connection."""
        if getattr(self._local, "connection", None):
            self._local.connection.close()
            self._local.connection = None
