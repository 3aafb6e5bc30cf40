# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The server for createRuntime hooks (program.py), on a Unix socket that only root can use.

A hook sends a line with the claim's UID and the container's process ID, then the container's OCI state as JSON. With
these bytes it sends an open file descriptor of the container's network namespace; then it shuts down its side. The
response is one line: `done`, `again` and a reason, or `refused` and a reason.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import struct
import threading
import time
import typing as t
from pathlib import Path

from ..base import logs
from ..base.calls import AttachRequest, ClaimRef, Service
from ..base.errors import Busy, DriverError
from ..base.lock import serialized
from ..base.metrics import ATTACH, Metrics
from ..base.paths import Paths
from ..dra.kube.bounded_json import loads
from ..kernel import netns as namespaces

log = logging.getLogger(__name__)

T = t.TypeVar("T")

#: Hooks that are served at the same time; others wait in the socket's queue.
WORKERS = 32
#: Seconds within which a hook must send its request, and maximum bytes of the request. A pod's annotations can take
#: 256 KiB, and more in JSON; CRI-O repeats them in an annotation.
READ_TIMEOUT_SECONDS = 5.0
MAX_REQUEST_BYTES = 4 << 20
#: Seconds without a hook after which the server checks its own socket, and whether to stop.
CHECK_SECONDS = 0.5
#: Seconds after which a socket under a temporary name is considered abandoned.
DRAFT_SECONDS = 1.0
#: Seconds for which `stop` waits for running attaches.
GRACE_SECONDS = 30.0


class HookServer:
    """Listens on Paths.hook_socket and calls the service's `attach`. `instance` as in kubelet.plugin.Plugin."""

    def __init__(self, paths: Paths, service: Service, metrics: Metrics, instance: str | None = None) -> None:
        self.path = paths.hook_socket
        self.service = service
        self.metrics = metrics
        self._lock = paths.serialize_lock if instance else None
        self._slots = threading.BoundedSemaphore(WORKERS)
        self._inode = 0
        self._stopping = threading.Event()
        self._running = 0
        #: Why hooks have to retry, by claim and container.
        self._busy = logs.Conditions(log)
        self._ended = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen. An existing socket is replaced: hooks then use the newest instance. Raises OSError."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sweep()
        listener = self._listen()
        self._thread = threading.Thread(target=self._run, args=(listener,), name="hooks", daemon=True)
        self._thread.start()

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Accept no more hooks, and wait at most `grace` seconds for running attaches. May be called again."""
        self._stopping.set()
        if self._thread:
            self._thread.join()
        with self._ended:
            self._ended.wait_for(lambda: self._running == 0, grace)

    def _sweep(self) -> None:
        """Remove sockets under temporary names that killed processes left behind."""
        for draft in self.path.parent.glob(f"{self.path.name}.*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - draft.stat().st_mtime > DRAFT_SECONDS:
                    draft.unlink()

    def _listen(self) -> socket.socket:
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.bind(str(draft))
            os.chmod(draft, 0o600)
            listener.listen(128)
            listener.settimeout(CHECK_SECONDS)
            self._inode = os.stat(draft).st_ino
            # atomic: hooks find either the old socket, or this one, which is already listening
            os.rename(draft, self.path)
        except OSError:
            listener.close()
            draft.unlink(missing_ok=True)
            raise
        return listener

    def _run(self, listener: socket.socket) -> None:
        """Accept hooks. Listen again if no process listens at the path: the socket was removed, or a newer instance had
        replaced it and has ended."""
        while not self._stopping.is_set():
            try:
                connection, _unused = listener.accept()
            except TimeoutError:
                if _has_listener(self.path):
                    continue
                log.warning("no process listens on the socket for hooks %s any more: listening again", self.path)
                try:
                    replacement = self._listen()
                except OSError as error:
                    log.error("could not listen for hooks at %s, trying again: %s", self.path, error)
                    self.metrics.error("hooks")
                else:
                    listener.close()
                    listener = replacement
            except OSError as error:
                # for example too many open files
                log.error("could not accept a hook's connection, trying again: %s", error)
                self.metrics.error("hooks")
                self._stopping.wait(0.1)
            else:
                self._serve_in_thread(connection)
        try:
            if os.stat(self.path).st_ino == self._inode:
                self.path.unlink()
        except FileNotFoundError:
            pass
        # this closes queued connections, and their hooks retry
        listener.close()

    def _serve_in_thread(self, connection: socket.socket) -> None:
        """Serve a hook in a new thread as soon as fewer than WORKERS are running, unless the server stops first."""
        while not self._slots.acquire(timeout=CHECK_SECONDS):
            if self._stopping.is_set():
                connection.close()  # the hook retries
                return
        with self._ended:
            self._running += 1
        try:
            threading.Thread(target=self._serve, args=(connection,), name="hook", daemon=True).start()
        except RuntimeError as error:  # a limit of the machine or of the driver's cgroup is reached
            log.error("could not serve a hook, which retries: %s", error)
            self.metrics.error("hooks")
            connection.close()
            self._end()
            self._stopping.wait(0.1)

    def _end(self) -> None:
        self._slots.release()
        with self._ended:
            self._running -= 1
            self._ended.notify_all()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._respond(connection)
        except OSError as error:
            log.warning("could not respond to a hook: %s", error)
        except Exception:
            log.exception("unexpected error: this is a bug in the driver")
        finally:
            self._end()

    def _respond(self, connection: socket.socket) -> None:
        uid = _peer_uid(connection)
        if uid != 0:
            log.warning("refused a connection of user %d to the socket for hooks: only root may use it", uid)
            self.metrics.error("hooks")
            return
        netns: list[int] = []
        try:
            response = self._response(_receive(connection, netns), netns)
        finally:
            for descriptor in netns:
                os.close(descriptor)
        connection.settimeout(READ_TIMEOUT_SECONDS)
        connection.sendall(" ".join(response.split()).encode("utf-8", "replace") + b"\n")

    def _response(self, content: bytes, netns: t.Sequence[int]) -> str:
        with contextlib.ExitStack() as stack:
            try:
                with self.metrics.operation(ATTACH):
                    request = _parse_request(content, netns)
                    stack.enter_context(_log_context(request))
                    self._attach(request)
            except Busy as error:
                key = request.uid, request.container
                self._busy.report(key, logging.INFO, f"the container waits: {error.message}")
                return f"again {error.message}"
            except DriverError as error:
                log.warning("%s", error.message)
                return f"refused {error.message or type(error).__name__}"
            except Exception as error:
                log.exception("unexpected error: this is a bug in the driver")
                return f"refused the driver failed: {type(error).__name__}: {error}"
        return "done"

    def _attach(self, request: AttachRequest) -> None:
        if self._stopping.is_set():
            raise Busy("the driver is stopping")
        with serialized(self._lock):
            self.service.attach(request)
        self._busy.clear((request.uid, request.container))


def _log_context(request: AttachRequest) -> t.ContextManager[None]:
    return logs.context(
        claim=request.uid,
        operation=ATTACH,
        container=request.container,
        pod_uid=request.pod_uid,
        pod=f"{request.pod_namespace}/{request.pod_name}",
    )


def _has_listener(path: Path) -> bool:
    """Whether a process listens on this socket. The check connects a socket of another type, which fails with
    EPROTOTYPE if a process has this socket open, and which that process does not notice (unix(7)). If the check cannot
    be made, for example because too many files are open, the answer is True."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as datagram_socket:
            datagram_socket.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    except OSError:
        pass
    return True


def _peer_uid(connection: socket.socket) -> int:
    """The user ID of the connected process."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _receive(connection: socket.socket, netns: list[int]) -> bytes:
    """Read a whole request; received file descriptors are added to `netns`. Raises OSError, also for a request that is
    too long or takes too long."""
    deadline = time.monotonic() + READ_TIMEOUT_SECONDS
    connection.settimeout(READ_TIMEOUT_SECONDS)
    content, descriptors, _unused, _unused = socket.recv_fds(connection, 65536, 1, socket.MSG_CMSG_CLOEXEC)
    netns.extend(descriptors)
    parts, size = [content], len(content)
    while content:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        content = connection.recv(65536)
        parts.append(content)
        size += len(content)
        if size > MAX_REQUEST_BYTES or time.monotonic() > deadline:
            raise OSError(f"the request exceeds {MAX_REQUEST_BYTES} bytes or {READ_TIMEOUT_SECONDS:g} s")
    return b"".join(parts)


def _parse_request(content: bytes, netns: t.Sequence[int]) -> AttachRequest:
    """The request that a hook has sent. Raises DriverError if it is invalid."""
    try:
        head, _unused, text = content.partition(b"\n")
        uid, pid = head.decode().split(" ")
        state = loads(text)
        if _checked_type(state["pid"], int) != int(pid):
            raise ValueError(pid)
        request = AttachRequest(
            uid=uid,
            netns=Path(f"/proc/{os.getpid()}/fd/{netns[0]}" if netns else ""),
            pid=int(pid),
            container=_checked_type(state["id"], str),
            annotations={name: _checked_type(value, str) for name, value in (state.get("annotations") or {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DriverError("the hook did not send the OCI state of a container") from None
    problem = ClaimRef("default", "any", request.uid).problem()
    if problem:
        raise DriverError(problem)
    if not netns or not namespaces.is_open(netns[0]):
        raise DriverError("the hook did not send a network namespace")
    return request


def _checked_type(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind) or value.__class__ is not kind:  # isinstance would accept a bool as an int
        raise TypeError(value)
    return value
