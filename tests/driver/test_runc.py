# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A container that runc starts with what the CDI library injects: the hook, the device node and the device metadata."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.folders import under
from ansible_collections.lanewise.dra.tests.driver.kubelet import UID
from ansible_collections.lanewise.dra.tests.driver.test_containers import consumer, read
from lanewise_driver.base.calls import AttachRequest, ClaimRef
from lanewise_driver.base.errors import Refused
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.base.paths import Paths
from lanewise_driver.claims import cdi, metadata
from lanewise_driver.claims.metadata import DeviceMetadata
from lanewise_driver.hook.install import install_hook
from lanewise_driver.hook.server import HookServer

__all__ = ["consumer"]  # the fixture of test_containers, which is also used here

CLAIM = ClaimRef("training", "nics", UID.format(1))
NETWORK = {"interfaceName": "rdma0", "hardwareAddress": "02:00:00:00:00:01", "ips": ["10.1.0.2/24"]}
#: The program of the container: prints its network namespace, whether it may open the device, and the metadata.
PROGRAM = """
#include <stdio.h>
#include <sys/stat.h>
int main(int count, char **path) {
    struct stat netns;
    int character;
    stat("/proc/self/ns/net", &netns);
    printf("%lu %s\\n", (unsigned long)netns.st_ino, fopen("/dev/infiniband/rdma_cm", "r+") ? "device" : "no device");
    FILE *file = fopen(path[1], "r");
    while (file && (character = fgetc(file)) != EOF) putchar(character);
    return 0;
}
"""


def runtimes() -> list[str]:
    """The runc of the machine, and those that the cluster tests have built."""
    built = sorted((Path.home() / ".cache/lanewise-dra/runc").glob("*/runc"))
    return [str(path) for path in (shutil.which("runc"), *built) if path]


pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make containers"),
    pytest.mark.skipif(not runtimes(), reason="no runc"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the container's program"),
]


class AttachService:
    """Answers attach requests of hooks: writes network data to the metadata as the driver does, or refuses."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.refusal = ""
        self.attached: list[tuple[str, int]] = []

    def attach(self, request: AttachRequest) -> None:
        if self.refusal:
            raise Refused(self.refusal)
        self.attached.append((request.pod_uid, request.netns.stat().st_ino))
        metadata.write(self.paths, CLAIM, [DeviceMetadata("nic", "node", "a", {}, NETWORK)])


@pytest.fixture
def root() -> t.Iterator[Path]:
    """A folder with a short path, because the length of socket paths is limited."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="d") as folder:
        yield Path(folder)


def make_bundle(root: Path, runc: str, injected: dict[str, t.Any], arguments: list[str]) -> Path:
    """Create an OCI bundle of the program, with what the CDI library injects into the container."""
    folder = root / "bundle"
    (folder / "rootfs/bin").mkdir(parents=True)
    subprocess.run(
        ["cc", "-static", "-x", "c", "-o", folder / "rootfs/bin/show", "-"], input=PROGRAM.encode(), check=True
    )
    subprocess.run([runc, "spec"], cwd=folder, check=True)
    spec = json.loads((folder / "config.json").read_text())
    spec["process"] = {**spec["process"], "terminal": False, "args": ["/bin/show", *arguments]}
    spec["process"].pop("rlimits", None)
    spec["root"]["readonly"] = False
    spec["annotations"] = {"io.kubernetes.cri.sandbox-uid": "pod-uid"}
    spec["hooks"] = injected["hooks"]
    spec["mounts"] += injected["mounts"]
    spec["linux"]["devices"] = injected["linux"]["devices"]
    spec["linux"]["resources"] = {
        "devices": [{"allow": False, "access": "rwm"}, *injected["linux"]["resources"]["devices"]]
    }
    (folder / "config.json").write_text(json.dumps(spec))
    return folder


@pytest.mark.parametrize("runc", runtimes())
def test_a_container_of_runc_starts_with_its_device_unless_attach_is_refused(
    root: Path, runc: str, consumer: Path
) -> None:
    paths = under(root, hook_python=Path(sys.executable))
    paths.make()
    install_hook(paths)
    mount = metadata.write(paths, CLAIM, [DeviceMetadata("nic", "node", "a", {})])["nic"]
    # the numbers of /dev/null, which exists on every machine
    node = cdi.DeviceNode("/dev/infiniband/rdma_cm", 1, 3)
    ids = cdi.write(paths, CLAIM.uid, [cdi.Device("nic", "a", (node,), (mount,))])
    bundle = make_bundle(root, runc, read(consumer, "cdi", paths.cdi_dir, *ids), [mount.container])
    service = AttachService(paths)
    server = HookServer(paths, service, Metrics())  # type: ignore[arg-type]
    server.start()

    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = [runc, "--root", root / "state", "run", "--bundle", bundle, f"lanewise-{os.getpid()}-{name}"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    done = run("good")
    assert done.returncode == 0, done.stderr
    first, *metadata_lines = done.stdout.splitlines()
    ((pod, netns),) = service.attached
    assert pod == "pod-uid" and first == f"{netns} device"
    assert netns != os.stat("/proc/self/ns/net").st_ino
    # attach has written to the file after it was mounted
    for line in metadata_lines:
        assert json.loads(line)["requests"][0]["devices"][0]["networkData"] == NETWORK
    assert len(metadata_lines) == len(metadata.VERSIONS)

    service.refusal = "claim nics: mtu 70000 is above 9216"
    done = run("refused")
    assert done.returncode == 1 and done.stdout == ""
    assert "stderr: lanewise.dev: claim nics: mtu 70000 is above 9216" in done.stderr
    server.stop(1)
