# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The messages of the driver equal those of the api.proto files of Kubernetes, compiled by protoc."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from lanewise_driver.kubelet import protocol

FILES = {
    "pluginregistration": "pluginregistration/v1",
    "k8s.io.kubelet.pkg.apis.dra.v1": "dra/v1",
    "k8s.io.kubelet.pkg.apis.dra.v1beta1": "dra/v1beta1",
    "v1": "dra-health/v1",
    "v1alpha1": "dra-health/v1alpha1",
}
#: The environment without the package folders of this Python, which do not suit another Python.
_PLAIN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def compiled(source: Path, into: Path) -> descriptor_pool.DescriptorPool:
    """The api.proto files below ``source``, compiled by protoc without the Go options of older files.

    ``LANEWISE_PROTOC`` names a Python that has grpcio-tools, in case this one does not.
    """
    protoc = [os.environ.get("LANEWISE_PROTOC", sys.executable), "-m", "grpc_tools.protoc"]
    if subprocess.run([*protoc, "--version"], env=_PLAIN, capture_output=True, check=False).returncode:
        pytest.skip("no protoc (grpcio-tools)")
    names = [f"{folder}/api.proto" for folder in FILES.values() if (source / folder / "api.proto").exists()]
    for name in names:
        text = re.sub(r"(?m)^(import|option \().*gogoproto.*$| \[\(gogoproto.*?\]", "", (source / name).read_text())
        (into / name).parent.mkdir(parents=True)
        (into / name).write_text(text)
    subprocess.run([*protoc, f"-I{into}", f"--descriptor_set_out={into}/set", *names], env=_PLAIN, check=True)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString((into / "set").read_bytes()).file:
        pool.Add(file)
    return pool


def sources() -> list[Path]:
    """The folders pkg/apis of k8s.io/kubelet in Go's module cache."""
    return sorted((Path.home() / "go/pkg/mod/k8s.io").glob("kubelet@*/pkg/apis"))


def plain(file: t.Any) -> descriptor_pb2.FileDescriptorProto:
    """The description of a file without its name, Go package and JSON names, which have no effect on the wire."""
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    proto.ClearField("name")
    proto.ClearField("options")
    for message in proto.message_type:
        for part in [message, *message.nested_type]:
            for field in part.field:
                field.ClearField("json_name")
    for parts in (proto.message_type, proto.service, proto.enum_type):
        parts.sort(key=lambda part: part.name)
    for service in proto.service:
        for method in service.method:
            method.ClearField("options")
    return proto


def first_name(package: str) -> str:
    return {"pluginregistration": "PluginInfo", "v1": "DeviceHealth", "v1alpha1": "DeviceHealth"}.get(package, "Device")


@pytest.mark.skipif(not sources(), reason="no k8s.io/kubelet in Go's module cache")
@pytest.mark.parametrize("source", sources(), ids=lambda source: source.parent.parent.name)
def test_messages_equal_those_of_kubernetes(source: Path, tmp_path: Path) -> None:
    """Equal to the newest version; an older one may only lack the last fields of messages, which old peers skip."""
    theirs = compiled(source, tmp_path / "protos")
    compared = 0
    for package, folder in FILES.items():
        if (source / folder / "api.proto").exists():
            name = f"{package}.{first_name(package)}"
            our, their = (plain(pool.FindMessageTypeByName(name).file) for pool in (protocol.pool, theirs))
            if source != sources()[-1]:
                drop_newer(our, their)
            assert our == their, package
            compared += 1
    assert compared == len(FILES) or source != sources()[-1]


def drop_newer(our: descriptor_pb2.FileDescriptorProto, their: descriptor_pb2.FileDescriptorProto) -> None:
    for ours, theirs in zip(our.message_type, their.message_type, strict=True):
        del ours.field[len(theirs.field) :], ours.oneof_decl[len(theirs.oneof_decl) :]


@pytest.mark.skipif(not sources(), reason="no k8s.io/kubelet in Go's module cache")
def test_the_comparison_finds_a_difference(tmp_path: Path) -> None:
    theirs = plain(compiled(sources()[-1], tmp_path / "protos").FindMessageTypeByName("v1.DeviceHealth").file)
    ours = plain(protocol.pool.FindMessageTypeByName("v1.DeviceHealth").file)
    assert ours == theirs
    ours.message_type[0].field[0].number += 20
    assert ours != theirs


def test_health_values_equal_those_of_kubernetes() -> None:
    numbers = protocol.pool.FindEnumTypeByName("v1.HealthStatus").values_by_name
    assert protocol.HEALTH_STATUS == {name.lower(): value.number for name, value in numbers.items()}


def test_services_are_listed_newest_first() -> None:
    assert protocol.SUPPORTED == (
        *(f"{version}.DRAPlugin" for version in protocol.DRA),
        *(f"{version}.DRAResourceHealth" for version in protocol.HEALTH),
    )
    for service in (protocol.REGISTRATION, *protocol.DRA.values(), *protocol.HEALTH.values()):
        assert protocol.methods(service)
