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

#: The folder of each api.proto file in k8s.io/kubelet/pkg/apis, by protobuf package.
FILES = {
    "pluginregistration": "pluginregistration/v1",
    "k8s.io.kubelet.pkg.apis.dra.v1": "dra/v1",
    "k8s.io.kubelet.pkg.apis.dra.v1beta1": "dra/v1beta1",
    "v1": "dra-health/v1",
    "v1alpha1": "dra-health/v1alpha1",
}
#: The environment without the package folders of this Python, which another Python cannot use.
_CLEAN_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def compile_protos(source: Path, build: Path) -> descriptor_pool.DescriptorPool:
    """Compile the api.proto files below ``source`` with protoc, without the Go options of older files.

    ``LANEWISE_PROTOC`` names a Python that has grpcio-tools, in case this one does not.
    """
    protoc = [os.environ.get("LANEWISE_PROTOC", sys.executable), "-m", "grpc_tools.protoc"]
    if subprocess.run([*protoc, "--version"], env=_CLEAN_ENVIRONMENT, capture_output=True, check=False).returncode:
        pytest.skip("needs protoc (grpcio-tools)")
    protos = [f"{folder}/api.proto" for folder in FILES.values() if (source / folder / "api.proto").exists()]
    for proto in protos:
        text = re.sub(r"(?m)^(import|option \().*gogoproto.*$| \[\(gogoproto.*?\]", "", (source / proto).read_text())
        (build / proto).parent.mkdir(parents=True)
        (build / proto).write_text(text)
    subprocess.run(
        [*protoc, f"-I{build}", f"--descriptor_set_out={build}/set", *protos], env=_CLEAN_ENVIRONMENT, check=True
    )
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString((build / "set").read_bytes()).file:
        pool.Add(file)
    return pool


def api_folders() -> list[Path]:
    """The folders pkg/apis of all versions of k8s.io/kubelet in Go's module cache, oldest first."""
    return sorted((Path.home() / "go/pkg/mod/k8s.io").glob("kubelet@*/pkg/apis"))


def without_metadata(file: t.Any) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of a file without its name, options and JSON names, which have no effect on the wire format."""
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    proto.ClearField("name")
    proto.ClearField("options")
    for message in proto.message_type:
        for part in [message, *message.nested_type]:
            for field in part.field:
                field.ClearField("json_name")
    for definitions in (proto.message_type, proto.service, proto.enum_type):
        definitions.sort(key=lambda definition: definition.name)
    for service in proto.service:
        for method in service.method:
            method.ClearField("options")
    return proto


def message_name(package: str) -> str:
    """The name of a message of the package, by which descriptor pools find the file."""
    return {"pluginregistration": "PluginInfo", "v1": "DeviceHealth", "v1alpha1": "DeviceHealth"}.get(package, "Device")


@pytest.mark.skipif(not api_folders(), reason="no k8s.io/kubelet in Go's module cache")
@pytest.mark.parametrize("source", api_folders(), ids=lambda source: source.parent.parent.name)
def test_messages_equal_those_of_kubernetes(source: Path, tmp_path: Path) -> None:
    """The newest version has the same messages. Older versions may lack the last fields of a message."""
    kubernetes_pool = compile_protos(source, tmp_path / "protos")
    compared = 0
    for package, folder in FILES.items():
        if (source / folder / "api.proto").exists():
            name = f"{package}.{message_name(package)}"
            ours, theirs = (
                without_metadata(pool.FindMessageTypeByName(name).file) for pool in (protocol.pool, kubernetes_pool)
            )
            if source != api_folders()[-1]:
                drop_newer_fields(ours, theirs)
            assert ours == theirs, package
            compared += 1
    assert compared == len(FILES) or source != api_folders()[-1]


def drop_newer_fields(ours: descriptor_pb2.FileDescriptorProto, theirs: descriptor_pb2.FileDescriptorProto) -> None:
    """Remove the last fields of our messages if an older version of Kubernetes has fewer."""
    for our_message, their_message in zip(ours.message_type, theirs.message_type, strict=True):
        del our_message.field[len(their_message.field) :], our_message.oneof_decl[len(their_message.oneof_decl) :]


@pytest.mark.skipif(not api_folders(), reason="no k8s.io/kubelet in Go's module cache")
def test_the_comparison_of_messages_finds_a_changed_field_number(tmp_path: Path) -> None:
    theirs = without_metadata(
        compile_protos(api_folders()[-1], tmp_path / "protos").FindMessageTypeByName("v1.DeviceHealth").file
    )
    ours = without_metadata(protocol.pool.FindMessageTypeByName("v1.DeviceHealth").file)
    assert ours == theirs
    ours.message_type[0].field[0].number += 20
    assert ours != theirs


def test_health_values_equal_those_of_the_health_messages() -> None:
    statuses = protocol.pool.FindEnumTypeByName("v1.HealthStatus").values_by_name
    assert protocol.HEALTH_STATUS == {name.lower(): value.number for name, value in statuses.items()}


def test_all_services_are_supported_and_have_methods() -> None:
    assert protocol.SUPPORTED == (
        *(f"{version}.DRAPlugin" for version in protocol.DRA),
        *(f"{version}.DRAResourceHealth" for version in protocol.HEALTH),
    )
    for service in (protocol.REGISTRATION, *protocol.DRA.values(), *protocol.HEALTH.values()):
        assert protocol.methods(service)
