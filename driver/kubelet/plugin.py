# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The gRPC server for kubelet on Unix sockets: registration, prepare and unprepare, and device health.

A failed request does not stop the server, and an error of one claim is reported for that claim only.
Source: k8s.io/dynamic-resource-allocation/kubeletplugin and k8s.io/kubernetes pkg/kubelet/cm/dra/plugin.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import typing as t
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..base import logs
from ..base.calls import ClaimRef, DeviceHealth, PreparedDevice, Service
from ..base.errors import DriverError
from ..base.lock import InstanceLock, serialized
from ..base.metrics import PREPARE, UNPREPARE, Metrics
from ..base.objects import Object
from ..base.paths import Paths
from ..dra.config.interface_config import DRIVER
from . import protocol

if t.TYPE_CHECKING:
    import grpc

# gRPC's fork handlers are for programs whose child processes use gRPC, and the handlers can deadlock. The driver does
# not fork, but other code in the same process may. gRPC reads this variable once, when the library is loaded.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

log = logging.getLogger(__name__)

#: Maximum number of concurrent calls. Kubelet makes one call for each pod that starts or ends.
MAX_CALLS = 16
#: Maximum number of concurrent health streams, each of which occupies a thread. Kubelet has one, or two while it
#: reconnects.
MAX_STREAMS = 4
#: The interval of health reports if nothing changes, and the time after which kubelet considers health unknown.
HEALTH_INTERVAL_SECONDS = 10
HEALTH_TIMEOUT_SECONDS = 30
#: The interval of checks whether the driver's own sockets still exist.
WATCH_INTERVAL_SECONDS = 2.0
#: How long running calls may take to finish: kubelet's timeout for a call is 45 seconds.
GRACE_SECONDS = 45.0
#: How long to wait for an older process of the same driver to end.
OLD_PROCESS_SECONDS = 20.0

_MESSAGE_LIMIT = 4000
_HEALTH_MESSAGE_LIMIT = 1024

_Handler = t.Callable[[protocol.Message, "grpc.ServicerContext"], protocol.Message]


class Plugin:
    """The driver as kubelet sees it.

    `instance` is the UID of the driver's pod if two pods of the driver may run side by side during an update; then
    `Paths.serialize_lock` serializes operations on claims between the pods. It is None if only one instance of the
    driver runs on the node.
    """

    def __init__(self, paths: Paths, service: Service, metrics: Metrics, instance: str | None = None) -> None:
        self.paths = paths
        self.service = service
        self.metrics = metrics
        self.instance = instance
        self.service_socket = paths.service_socket(instance)
        self.registration_socket = paths.registration_socket(instance)
        self._lock = paths.serialize_lock if instance else None
        self._instance_lock = None if instance else InstanceLock(Path(f"{self.service_socket}.lock"))
        self._servers: list[_Server] = []
        self._registered = False
        self._failure = "kubelet has not contacted it yet"
        self._stopping = threading.Event()
        self._changes = threading.Condition()
        self._change = 0
        self._streams = threading.BoundedSemaphore(MAX_STREAMS)
        self._watch: threading.Thread | None = None

    @property
    def registration_problem(self) -> str:
        """Why kubelet has not registered the driver, as far as the driver knows; empty if the driver is registered."""
        return "" if self._registered else self._failure

    def start(self) -> None:
        """Listen: first on the service socket, then on the registration socket, through which kubelet finds the
        service.

        Raises DriverError if another process of the same driver does not end, or a socket cannot be created.
        """
        self.paths.make()
        self._acquire()
        try:
            self._listen()
        except BaseException:
            self._close(0)
            if self._instance_lock:
                self._instance_lock.release()
            raise
        self._watch = threading.Thread(target=self._watch_sockets, name="plugin", daemon=True)
        self._watch.start()

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Deregister, let running calls finish within `grace` seconds, and remove the sockets. May be called again."""
        self._stopping.set()
        self.health_changed()
        if self._watch:
            self._watch.join()
        self._close(grace)
        if self._instance_lock:
            self._instance_lock.release()

    def health_changed(self) -> None:
        """Send health to kubelet now, before the next regular report."""
        with self._changes:
            self._change += 1
            self._changes.notify_all()

    def _acquire(self) -> None:
        deadline = time.monotonic() + OLD_PROCESS_SECONDS
        while self._instance_lock and not self._instance_lock.acquire():
            if time.monotonic() > deadline or self._stopping.wait(0.1):
                raise DriverError(f"{self._instance_lock.path}: another process of {DRIVER} is running on this node")

    def _listen(self) -> None:
        calls: dict[str, dict[str, _Handler]] = {
            **{name: self._dra_handlers(name) for name in protocol.DRA.values()},
            **{name: {"NodeWatchResources": self._health_handler(name)} for name in protocol.HEALTH.values()},
        }
        self._servers.append(_Server(self.service_socket, calls, MAX_CALLS + MAX_STREAMS))
        calls = {protocol.REGISTRATION: {"GetInfo": self._get_info, "NotifyRegistrationStatus": self._notify_status}}
        self._servers.append(_Server(self.registration_socket, calls, 2))

    def _close(self, grace: float) -> None:
        # the registration socket first: kubelet makes no new calls once that socket is removed
        while self._servers:
            self._servers.pop().stop(grace)
        self._report(False, "stopped")

    def _watch_sockets(self) -> None:
        """Listen again if the sockets were removed, for example because kubelet was reinstalled."""
        while not self._stopping.wait(WATCH_INTERVAL_SECONDS):
            try:
                if len(self._servers) == 2 and all(server.exists() for server in self._servers):
                    continue
                log.warning("the driver's sockets for kubelet were removed: listening again")
                self.metrics.error("plugin")
                self._close(1)
                # before listening: kubelet may register the driver immediately
                self._report(
                    False, "its sockets were removed, and kubelet has not contacted it since it started to listen again"
                )
                self.paths.make()
                self._listen()
            except (DriverError, OSError, RuntimeError) as error:  # RuntimeError: no more threads
                log.error("cannot listen for kubelet: %s", error)
                self._report(False, f"it cannot listen for kubelet: {error}")

    def _report(self, registered: bool, failure: str = "") -> None:
        self._registered, self._failure = registered, failure
        self.metrics.registered(registered)

    def _get_info(self, request: protocol.Message, context: grpc.ServicerContext) -> protocol.Message:
        return protocol.message("pluginregistration.PluginInfo")(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self.service_socket),
            supported_versions=protocol.SUPPORTED,
        )

    def _notify_status(self, request: protocol.Message, context: grpc.ServicerContext) -> protocol.Message:
        if request.plugin_registered:
            log.info("kubelet registered the driver")
            self._report(True)
        else:
            log.error("kubelet refused to register the driver: %s", request.error)
            self.metrics.error("plugin")
            self._report(False, f"kubelet refused to register it: {request.error}")
        return protocol.message("pluginregistration.RegistrationStatusResponse")()

    def _dra_handlers(self, service: str) -> dict[str, _Handler]:
        methods = protocol.methods(service)

        def prepare(request: protocol.Message, context: grpc.ServicerContext) -> protocol.Message:
            response = methods["NodePrepareResources"].response()
            self._for_each_claim(PREPARE, request, response, context, self._prepare)
            return response

        def unprepare(request: protocol.Message, context: grpc.ServicerContext) -> protocol.Message:
            response = methods["NodeUnprepareResources"].response()
            self._for_each_claim(UNPREPARE, request, response, context, self._unprepare)
            return response

        return {"NodePrepareResources": prepare, "NodeUnprepareResources": unprepare}

    def _for_each_claim(
        self,
        operation: str,
        request: protocol.Message,
        response: protocol.Message,
        context: grpc.ServicerContext,
        work: t.Callable[[ClaimRef, protocol.Message], None],
    ) -> None:
        """Call `work` for each claim of the request, with the claim's entry in the response, and report errors
        there."""
        for requested in request.claims:
            if requested.uid in response.claims:
                continue
            entry = response.claims[requested.uid]
            if not context.is_active():
                entry.error = "kubelet cancelled the call"
                continue
            claim = ClaimRef(requested.namespace, requested.name, requested.uid)
            with logs.context(claim=claim.uid, claim_name=str(claim), operation=operation):
                try:
                    with self.metrics.operation(operation):
                        work(claim, entry)
                except Exception as error:  # noqa: BLE001  # reported to kubelet for this claim
                    entry.Clear()
                    entry.error = _error_text(error)

    def _prepare(self, claim: ClaimRef, entry: protocol.Message) -> None:
        problem = claim.problem()
        if problem:
            raise DriverError(problem)
        with serialized(self._lock):
            devices = self.service.prepare(claim)
        for device in devices:
            _fill_device(entry.devices.add(), device)

    def _unprepare(self, claim: ClaimRef, entry: protocol.Message) -> None:
        if claim.problem():
            # the claim was never prepared: nothing to undo, and an error would keep its pod terminating forever
            log.warning("ignoring unprepare of an invalid claim: %s", claim.problem())
            return
        with serialized(self._lock):
            self.service.unprepare(claim)

    def _health_handler(self, service: str) -> _Handler:
        import grpc

        response = protocol.methods(service)["NodeWatchResources"].response

        def watch(request: protocol.Message, context: grpc.ServicerContext) -> t.Iterator[protocol.Message]:
            if not self._streams.acquire(blocking=False):
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {MAX_STREAMS} health streams")
            # add_callback returns False if the stream has already ended
            if not context.add_callback(self.health_changed):
                self._streams.release()
                return
            try:
                while context.is_active() and not self._stopping.is_set():
                    seen = self._change
                    try:
                        yield response(devices=[_health(device) for device in self.service.health()])
                    except Exception:
                        # without a report, kubelet considers the health unknown after a while
                        log.exception("could not determine the devices' health; kubelet will consider it unknown")
                        self.metrics.error("health")
                    self._wait(seen, context)
            finally:
                self._streams.release()

        return watch

    def _wait(self, seen: int, context: grpc.ServicerContext) -> None:
        with self._changes:
            self._changes.wait_for(
                lambda: self._change != seen or self._stopping.is_set() or not context.is_active(),
                HEALTH_INTERVAL_SECONDS,
            )


class _Server:
    """A gRPC server on a Unix socket that only root can access."""

    def __init__(self, path: Path, services: dict[str, dict[str, _Handler]], workers: int) -> None:
        import grpc

        self.path = path
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=path.name)
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        for service, handlers in services.items():
            methods = protocol.methods(service)
            table = {name: _handler(methods[name], handler) for name, handler in handlers.items()}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, table),))
        path.unlink(missing_ok=True)
        try:
            self._server.add_insecure_port(f"unix:{urllib.parse.quote(str(path))}")
            os.chmod(path, 0o600)
            self._inode = os.stat(path).st_ino
            self._server.start()
        except (RuntimeError, OSError) as error:
            self._server.stop(0).wait()
            raise DriverError(f"{path}: cannot listen: {error}") from None

    def exists(self) -> bool:
        """Whether this server's socket still exists, and was not replaced by another one."""
        try:
            return os.stat(self.path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def stop(self, grace: float) -> None:
        if self.exists():
            self.path.unlink(missing_ok=True)
        self._server.stop(grace).wait()
        self._pool.shutdown(wait=False)


def _handler(method: protocol.Method, handler: _Handler) -> grpc.RpcMethodHandler:
    import grpc

    create = grpc.unary_stream_rpc_method_handler if method.stream else grpc.unary_unary_rpc_method_handler
    return create(
        handler,
        request_deserializer=method.request.FromString,
        response_serializer=method.response.SerializeToString,
    )


def _fill_device(entry: protocol.Message, device: PreparedDevice) -> None:
    # kubelet compares these names with the containers' main requests, so remove subrequests, as Kubernetes' helper does
    entry.request_names.extend(dict.fromkeys(request.partition("/")[0] for request in device.requests))
    entry.pool_name = device.pool
    entry.device_name = device.device
    entry.cdi_device_ids.extend(device.cdi_ids)
    if device.share_id and "share_id" in entry.DESCRIPTOR.fields_by_name:
        entry.share_id = device.share_id


def _health(device: DeviceHealth) -> Object:
    return {
        "device": {"pool_name": device.pool, "device_name": device.device},
        "health": protocol.HEALTH_STATUS[device.health],
        "last_updated_time": int(device.updated),
        "health_check_timeout_seconds": HEALTH_TIMEOUT_SECONDS,
        "message": _text(device.message, _HEALTH_MESSAGE_LIMIT),
    }


def _error_text(error: Exception) -> str:
    """The error text for kubelet. Never empty: an empty text would mean success."""
    if isinstance(error, DriverError):
        log.warning("%s", error.message)
        return _text(error.message, _MESSAGE_LIMIT) or type(error).__name__
    log.exception("unexpected error: this is a bug in the driver")
    return _text(f"the driver failed: {type(error).__name__}: {error}", _MESSAGE_LIMIT)


def _text(text: str, limit: int) -> str:
    """The text, cut to `limit` characters and valid for protobuf."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 3] + "..."
