# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Numbers for Prometheus, and whether the driver is alive and ready, over HTTP."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import typing as t
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from .errors import Busy, KernelError, Refused

log = logging.getLogger(__name__)

#: The operations on claims.
PREPARE = "prepare"
UNPREPARE = "unprepare"
ATTACH = "attach"
DETACH = "detach"

#: What a device can be counted as.
PUBLISHED = "published"
ALLOCATED = "allocated"
WITHHELD = "withheld"

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """All numbers of one driver."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._operations = Histogram(
            "lanewise_operation_seconds",
            "Time that an operation on a claim took, by how it ended: ok, refused, busy, kernel or failed.",
            ["operation", "outcome"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._devices = Gauge(
            "lanewise_devices",
            "Devices of the node by state: published, allocated (to a claim on this node), withheld (never published).",
            ["state"],
            registry=self.registry,
        )
        self._published = Gauge(
            "lanewise_published_timestamp_seconds",
            "When the ResourceSlices were last found equal to the node's devices, 0 for not yet.",
            registry=self.registry,
        )
        self._registered = Gauge("lanewise_registered", "1 where kubelet has taken the driver.", registry=self.registry)
        self._errors = Counter(
            "lanewise_errors",
            "Errors outside operations on claims, by the part that met them.",
            ["part"],
            registry=self.registry,
        )
        for operation in (PREPARE, UNPREPARE, ATTACH, DETACH):
            self._operations.labels(operation, "ok")

    @contextlib.contextmanager
    def operation(self, name: str) -> t.Iterator[None]:
        """Time the block as operation C(name), its outcome told by the exception that leaves it."""
        start = time.monotonic()
        outcome = "failed"
        try:
            yield
            outcome = "ok"
        except Refused:
            outcome = "refused"
            raise
        except Busy:
            outcome = "busy"
            raise
        except KernelError:
            outcome = "kernel"
            raise
        finally:
            self._operations.labels(name, outcome).observe(time.monotonic() - start)

    def devices(self, state: str, count: int) -> None:
        """How many devices are C(state) now."""
        self._devices.labels(state).set(count)

    def published(self) -> None:
        """The slices are as they should be, now."""
        self._published.set_to_current_time()

    def registered(self, registered: bool) -> None:
        """Whether kubelet has taken the driver."""
        self._registered.set(int(registered))

    def error(self, part: str) -> None:
        """An error of C(part), such as C(publish)."""
        self._errors.labels(part).inc()

    def text(self) -> bytes:
        """All numbers in Prometheus' text format."""
        return generate_latest(self.registry)


class Web:
    """Serves /metrics, /healthz (the process answers) and /readyz (503 with the reasons, one a line, or 200).

    C(address) is C(host:port), an IPv6 host in brackets; port 0 takes a free one. C(reasons) tells why the driver is
    not ready.
    """

    def __init__(self, address: str, metrics: Metrics, reasons: t.Callable[[], t.Sequence[str]]) -> None:
        self.address = address
        self.metrics = metrics
        self.reasons = reasons
        self._server: ThreadingHTTPServer | None = None

    @property
    def port(self) -> int:
        """The port that is listened on, 0 while none is."""
        return int(self._server.server_address[1]) if self._server else 0

    def start(self) -> None:
        """Listen. Raises OSError, ValueError for an address that is none."""
        host, _unused, port = self.address.rpartition(":")
        server = _Server((host.strip("[]"), int(port)), self)
        self._server = server
        threading.Thread(target=server.serve_forever, name="web", daemon=True).start()

    def stop(self) -> None:
        """Stop listening. May be called at any time."""
        server, self._server = self._server, None
        if server:
            server.shutdown()
            server.server_close()

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body for a path."""
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, self.metrics.text()
        if path == "/healthz":
            return 200, "text/plain; charset=utf-8", b"ok\n"
        if path == "/readyz":
            reasons = self.reasons()
            text = "".join(f"{reason}\n" for reason in reasons) or "ok\n"
            return 503 if reasons else 200, "text/plain; charset=utf-8", text.encode()
        return 404, "text/plain; charset=utf-8", b"not found\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], web: Web) -> None:
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        self.web = web
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        """As the base class, without its look-up of the host's name in DNS."""
        import socketserver

        socketserver.TCPServer.server_bind(self)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10
    server_version = "lanewise"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            status, kind, body = self.server.web.answer(self.path.partition("?")[0])
        except Exception:
            log.exception("%s failed", self.path)
            status, kind, body = 500, "text/plain; charset=utf-8", b"failed\n"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: t.Any) -> None:
        log.debug(format, *args)
