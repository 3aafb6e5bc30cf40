# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Metrics, liveness and readiness over HTTP, served by one thread to any client.

Processes of the node and pods in its network can connect without authentication. So the server uses one thread, a
bounded number of connections and bytes, and no keep-alive: clients cannot take resources from the service for kubelet.
If a client connects and sends its request immediately, it gets a response even if many other clients send nothing:
the oldest connections are dropped first.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
import typing as t
from dataclasses import dataclass, field

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from .base.metrics import Metrics

log = logging.getLogger(__name__)

#: Maximum connections; the oldest is dropped for a new one.
MAX_CONNECTIONS = 64
#: Maximum duration of a connection in seconds, and maximum size of a request in bytes.
CONNECTION_SECONDS, REQUEST_BYTES = 5.0, 8192
#: Seconds that the thread sleeps for each second of CPU time, and the maximum seconds of one sleep: a flood of requests
#: must not block the threads that attach devices.
SLEEP_PER_CPU_SECOND, MAX_SLEEP_SECONDS = 3.0, 0.2
_BATCH = 16  # connections accepted between two checks of the existing ones
_TEXT = "text/plain; charset=utf-8"
_PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Error", 503: "Not Ready"}
_LISTENER, _WAKE = "listener", "wake"


@dataclass
class _Connection:
    """A client's connection. `end` is the monotonic time at which it is dropped, `request` what was received so far,
    `response` what is still to be sent."""

    socket: socket.socket
    end: float
    request: bytes = b""
    response: memoryview = field(default_factory=lambda: memoryview(b""))


class Web:
    """Serves /metrics, /healthz (200 while the process runs) and /readyz (200, or 503 with one reason per line).

    `address` is `host:port`, an IPv6 host in brackets; port 0 selects a free one. `not_ready_reasons` returns why the
    driver is not ready.
    """

    def __init__(self, address: str, metrics: Metrics, not_ready_reasons: t.Callable[[], t.Sequence[str]]) -> None:
        self.address = address
        self.metrics = metrics
        self.not_ready_reasons = not_ready_reasons
        self._listener: socket.socket | None = None
        self._wake: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port of the listening socket, 0 if there is none."""
        return int(self._listener.getsockname()[1]) if self._listener else 0

    def start(self) -> None:
        """Listen. Raises OSError, and ValueError for an invalid address."""
        host, _unused, port = self.address.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, int(port)), family=family, backlog=MAX_CONNECTIONS)
        self._listener.setblocking(False)
        self._wake, wake = socket.socketpair()
        loop = _Loop(self._listener, wake, self.answer)
        self._thread = threading.Thread(target=loop.run, name="web", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening. May be called at any time."""
        if self._wake and self._thread:
            self._wake.close()
            self._thread.join()
        self._listener = self._wake = self._thread = None

    def answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body for a request."""
        if method != "GET":
            return 405, _TEXT, b"only GET is supported\n"
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, self.metrics.text()
        if path == "/healthz":
            return 200, _TEXT, b"ok\n"
        if path == "/readyz":
            reasons = self.not_ready_reasons()
            text = "".join(f"{reason}\n" for reason in reasons) or "ok\n"
            return 503 if reasons else 200, _TEXT, text.encode()
        return 404, _TEXT, b"not found\n"


class _Loop:
    """The thread's loop. It ends when the other end of `wake` is closed, and closes all its sockets."""

    def __init__(
        self, listener: socket.socket, wake: socket.socket, answer: t.Callable[[str, str], tuple[int, str, bytes]]
    ) -> None:
        self._listener = listener
        self._wake = wake
        self._answer = answer
        self._selector = selectors.DefaultSelector()
        self._connections: dict[socket.socket, _Connection] = {}  # the oldest first

    def run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, _LISTENER)
        self._selector.register(self._wake, selectors.EVENT_READ, _WAKE)
        try:
            while True:
                ready = self._selector.select(CONNECTION_SECONDS if self._connections else None)
                if any(key.data == _WAKE for key, _events in ready):
                    return
                before = time.thread_time()
                # serve clients that have sent something before dropping any
                for key, _events in ready:
                    if isinstance(key.data, _Connection):
                        self._serve(key.data)
                if any(key.data == _LISTENER for key, _events in ready):
                    self._accept()
                self._drop_expired()
                time.sleep(min(SLEEP_PER_CPU_SECOND * (time.thread_time() - before), MAX_SLEEP_SECONDS))
        except Exception:
            log.exception("the HTTP server failed: metrics and readiness are not served until the driver restarts")
        finally:
            for connection in list(self._connections.values()):
                self._close(connection)
            self._selector.close()
            self._listener.close()
            self._wake.close()

    def _accept(self) -> None:
        for _attempt in range(_BATCH):
            try:
                accepted, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # for example too many open files, or the client has disconnected
                log.debug("a connection could not be accepted: %s", error)
                time.sleep(MAX_SLEEP_SECONDS)
                return
            accepted.setblocking(False)
            while len(self._connections) >= MAX_CONNECTIONS:
                self._close(next(iter(self._connections.values())))
            connection = _Connection(accepted, time.monotonic() + CONNECTION_SECONDS)
            self._connections[accepted] = connection
            self._selector.register(accepted, selectors.EVENT_READ, connection)
            self._serve(connection)  # most clients have sent their request by now

    def _drop_expired(self) -> None:
        now = time.monotonic()
        for connection in [candidate for candidate in self._connections.values() if candidate.end < now]:
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        del self._connections[connection.socket]
        connection.socket.close()

    def _serve(self, connection: _Connection) -> None:
        if connection.socket not in self._connections:
            return
        try:
            if not connection.response:
                part = connection.socket.recv(REQUEST_BYTES)
                connection.request += part
                if not part:
                    self._close(connection)
                    return
                if b"\r\n\r\n" not in connection.request and len(connection.request) < REQUEST_BYTES:
                    return
                connection.response = memoryview(self._response(connection.request))
                self._selector.modify(connection.socket, selectors.EVENT_WRITE, connection)
            connection.response = connection.response[connection.socket.send(connection.response) :]
            if not connection.response:
                connection.socket.shutdown(socket.SHUT_WR)
                self._close(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._close(connection)

    def _response(self, request: bytes) -> bytes:
        status, content_type, body = 400, _TEXT, b"not an HTTP request\n"
        parts = request.partition(b"\r\n")[0].split(b" ")
        if len(parts) == 3 and parts[2].startswith(b"HTTP/1.") and b"\r\n\r\n" in request:
            method, path = (part.decode("ascii", "replace") for part in parts[:2])
            try:
                status, content_type, body = self._answer(method, path.partition("?")[0])
            except Exception:
                log.exception("%s failed", path[:100])
                status, content_type, body = 500, _TEXT, b"failed\n"
        head = (
            f"HTTP/1.1 {status} {_PHRASES[status]}\r\nServer: lanewise\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body
