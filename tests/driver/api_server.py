# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The part of an API server that a driver needs, for machines without Kubernetes: objects by path, over HTTPS.

It stores, lists and merges objects. It validates nothing, and a watch never sends an event.
"""

from __future__ import annotations

import http.server
import itertools
import json
import ssl
import threading
import time
import typing as t
import urllib.parse
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.authority import Authority

RESOURCE = "/apis/resource.k8s.io"
_LISTS = {"resourceslices": "ResourceSliceList"}


class ApiServer:
    """Serves ``objects``, each under its full path, on a port of 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, Object] = {RESOURCE: {"versions": [{"groupVersion": f"{RESOURCE[6:]}/v1"}]}}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        authority = Authority(folder)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.server)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.kubeconfig = self._kubeconfig(folder, authority.certificate)

    def _kubeconfig(self, folder: Path, certificate: Path) -> Path:
        server = f"https://127.0.0.1:{self._server.server_address[1]}"
        path = folder / "kubeconfig"
        content = {
            "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(certificate)}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "driver"}}],
            "current-context": "test",
            "users": [{"name": "driver", "user": {}}],
        }
        path.write_text(json.dumps(content))
        return path

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, path: str, content: Object) -> Object:
        """Store an object under its path, as a new version."""
        with self._lock:
            number = str(next(self._numbers))
            metadata = {"uid": f"uid-{number}", **content.get("metadata", {}), "resourceVersion": number}
            self.objects[path] = {**content, "metadata": metadata}
            return self.objects[path]

    def answer(self, method: str, path: str, query: t.Mapping[str, list[str]], body: Object) -> tuple[int, Object]:
        """Handle a request. Returns the status and the object of the response."""
        if method == "POST":
            metadata = body.get("metadata", {})
            name = metadata.get("name") or f"{metadata.get('generateName', '')}{next(self._numbers)}"
            content = {**body, "metadata": {**metadata, "name": name}}
            return 201, content if "dryRun" in query else self.put(f"{path}/{name}", content)
        if method == "GET" and path.rpartition("/")[2] in _LISTS:
            items = [item for key, item in self.objects.items() if key.rpartition("/")[0] == path]
            return 200, {"kind": _LISTS[path.rpartition("/")[2]], "items": items, "metadata": {"resourceVersion": "1"}}
        object_path = path.removesuffix("/status")
        found = self.objects.get(object_path)
        if found is None:
            details = {"name": path.rpartition("/")[2]}
            return 404, {"kind": "Status", "reason": "NotFound", "message": "not found", "details": details}
        if method == "DELETE":
            return 200, self.objects.pop(object_path)
        if method == "PUT":
            return 200, self.put(object_path, body)
        if method == "PATCH":
            return 200, self.put(object_path, _merged(found, body))
        return 200, found

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _respond(self) -> None:
                parts = urllib.parse.urlsplit(self.path)
                query = urllib.parse.parse_qs(parts.query)
                if "watch" in query:
                    self.close_connection = True
                    self.send_response(200)
                    self.end_headers()
                    time.sleep(float(query["timeoutSeconds"][0]))
                    return
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, found = server.answer(self.command, parts.path, query, json.loads(content or b"{}"))
                encoded = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _respond

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:  # the driver was killed
                    self.close_connection = True

            def log_message(self, format: str, *words: t.Any) -> None:
                """Log nothing."""

        return Handler


def _merged(old: t.Any, new: t.Any) -> t.Any:
    """``old`` with the JSON merge patch ``new`` (RFC 7396) applied."""
    if not isinstance(new, dict):
        return new
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found
