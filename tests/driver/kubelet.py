# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A client that calls the driver as kubelet does, and a substitute for the driver's service."""

from __future__ import annotations

import contextlib
import threading
import time
import typing as t
from pathlib import Path

import grpc
from google.protobuf import message_factory
from lanewise_driver.base.calls import AttachRequest, ClaimRef, DeviceHealth, PreparedDevice
from lanewise_driver.base.errors import Busy, Refused

UID = "5f0c1b9e-0000-4000-8000-0000000000{:02x}"


class Kubelet:
    """A gRPC client. `pool` has the descriptors of its services and messages."""

    def __init__(self, socket: Path, pool: t.Any) -> None:
        self.pool = pool
        self.channel = grpc.insecure_channel(f"unix:{socket}")

    def message(self, name: str, **fields: t.Any) -> t.Any:
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))(**fields)

    def call(self, service: str, method: str, timeout: float = 30, **fields: t.Any) -> t.Any:
        """Call a method. Returns the response, or a stream of responses. Raises grpc.RpcError."""
        descriptor = self.pool.FindServiceByName(service).methods_by_name[method]
        make = self.channel.unary_stream if descriptor.server_streaming else self.channel.unary_unary
        method_call = make(
            f"/{service}/{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(descriptor.output_type).FromString,
        )
        request = message_factory.GetMessageClass(descriptor.input_type)(**fields)
        return method_call(request, wait_for_ready=True, timeout=timeout)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> Kubelet:
        return self

    def __exit__(self, *_unused: object) -> None:
        self.close()


class FileService:
    """A service that keeps prepared claims as files in a folder, which several instances may share. Some claim names
    cause errors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.devices = {"nic0": "healthy"}
        self.attached: list[AttachRequest] = []
        self.busy = 0
        self.delay = 0.0
        self.running = threading.Semaphore(0)

    @contextlib.contextmanager
    def exclusive(self) -> t.Iterator[None]:
        """Run an operation. Fails if another operation runs, in any process."""
        marker = self.folder / "running"
        marker.touch(exist_ok=False)
        try:
            time.sleep(self.delay)
            yield
        finally:
            marker.unlink()

    def prepare(self, claim: ClaimRef) -> t.Sequence[PreparedDevice]:
        if claim.name == "refused":
            raise Refused("config: mtu 70000 is above 9000")
        if claim.name == "silent":
            raise Refused("")
        if claim.name == "crashed":
            raise KeyError("no such thing \ud800")
        if claim.name == "wrong":
            return [PreparedDevice("node", None, ("nic",))]  # type: ignore[arg-type]
        if claim.name == "exclusive":
            with self.exclusive():
                pass
        (self.folder / claim.uid).touch()
        ids = (f"k8s.lanewise.dev/claim={claim.uid}_nic_nic0",)
        return [PreparedDevice("node", "nic0", ("nic/fast", "nic/slow", "other"), ids, "share")]

    def unprepare(self, claim: ClaimRef) -> None:
        if claim.name == "refused":
            raise Refused("the interface does not come back")
        (self.folder / claim.uid).unlink(missing_ok=True)

    def attach(self, request: AttachRequest) -> None:
        self.running.release()
        time.sleep(self.delay)
        if self.busy:
            self.busy -= 1
            raise Busy("nic0 is still with claim other")
        if request.annotations.get("refuse"):
            raise Refused(request.annotations["refuse"])
        # the descriptor is only valid during this call
        self.attached.append(request)
        (self.folder / "netns").write_text(str(request.netns.stat().st_ino))

    def health(self) -> t.Sequence[DeviceHealth]:
        return [DeviceHealth("node", name, health, 1_700_000_000.9, "m") for name, health in self.devices.items()]
