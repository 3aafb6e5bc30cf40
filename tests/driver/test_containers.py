# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The CDI specs and metadata files of a claim, read by the CDI library and by the metadata decoder of Kubernetes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import stat
import subprocess
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.folders import under
from ansible_collections.lanewise.dra.tests.driver.killed import killed_at_each_step
from ansible_collections.lanewise.dra.tests.driver.kubelet import UID
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, run
from ansible_collections.lanewise.dra.tests.oracle.trees import CACHE
from hypothesis import given, settings
from hypothesis import strategies as st
from lanewise_driver.base import files
from lanewise_driver.base.calls import ClaimRef
from lanewise_driver.base.paths import Paths
from lanewise_driver.claims import cdi, metadata
from lanewise_driver.claims.cdi import Device, DeviceNode, Mount
from lanewise_driver.claims.claim_files import ClaimFiles
from lanewise_driver.claims.metadata import DeviceMetadata
from lanewise_driver.claims.records import DeviceRecord, RdmaRecord, Record
from lanewise_driver.hook import install
from lanewise_driver.hook.install import install_hook
from lanewise_driver.publish import inventory

GO = shutil.which("go")
SOURCE = Path(__file__).resolve().parent / "consumer"
CLAIM = ClaimRef("training", "worker-0-nics", UID.format(1))
NETWORK = {"interfaceName": "rdma0", "hardwareAddress": "02:00:00:00:00:01", "ips": ["10.1.0.2/24", "fd00::2/64"]}
VERBS = DeviceNode("/dev/infiniband/uverbs0", 231, 192)
MANAGER = DeviceNode("/dev/infiniband/rdma_cm", 10, 120)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = under(tmp_path)
    made.make()
    return made


@pytest.fixture(scope="session")
def consumer() -> Path:
    """A Go program that reads the files with the libraries that runtimes and workloads use."""
    if GO is None:
        pytest.skip("no Go toolchain to build the CDI library with")
    binary = CACHE / "consumer"
    if not binary.exists() or binary.stat().st_mtime < max(path.stat().st_mtime for path in SOURCE.iterdir()):
        binary.parent.mkdir(parents=True, exist_ok=True)
        command = [GO, "build", "-trimpath", "-o", str(binary), "."]
        subprocess.run(command, cwd=SOURCE, env={**os.environ, "CGO_ENABLED": "0"}, check=True)
        os.utime(binary)
    return binary


def read(consumer: Path, *arguments: str | Path) -> t.Any:
    """Run the consumer. Returns its decoded output."""
    done = subprocess.run([consumer, *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def devices(paths: Paths) -> tuple[list[Device], dict[str, Mount]]:
    """Write metadata for three devices of two requests. Returns the devices, and the mounts of the metadata by
    request."""
    attributes = {"ifName": {"string": "eth7"}, "resource.kubernetes.io/pciBusID": {"string": "0000:8a:00.0"}}
    mounts = metadata.write(
        paths,
        CLAIM,
        [
            DeviceMetadata("nic/fast", "node", "pci-0000-8a-00-0", attributes),
            DeviceMetadata("nic/fast", "node", "pci-0000-8b-00-0", {}),
            DeviceMetadata("plain", "node", "pci-0000-8c-00-0", {"rail": {"int": 3}, "up": {"bool": True}}),
        ],
    )
    return [
        Device("nic/fast", "pci-0000-8a-00-0", (VERBS, MANAGER), (mounts["nic"],)),
        Device("nic/fast", "pci-0000-8b-00-0", (MANAGER,), (mounts["nic"],)),
        Device("plain", "pci-0000-8c-00-0", (), (mounts["plain"],)),
    ], mounts


def test_a_container_gets_the_devices_mounts_and_hook_of_its_claim(paths: Paths, consumer: Path) -> None:
    listed, mounts = devices(paths)
    ids = cdi.write(paths, CLAIM.uid, listed)
    assert ids[0] == f"k8s.lanewise.dev/claim={CLAIM.uid}_nic_pci-0000-8a-00-0"
    spec = read(consumer, "cdi", paths.cdi_dir, *ids)
    # a container has one hook for all devices of the claim
    (hook,) = spec["hooks"]["createRuntime"]
    assert set(spec["hooks"]) == {"createRuntime"}
    assert hook["args"] == [
        *("/bin/sh", str(paths.hook_script), "/opt/lanewise/current/bin/python"),
        *(str(paths.hook_program), str(paths.hook_socket), CLAIM.uid, "30"),
    ]
    assert hook["path"] == hook["args"][0] and hook["timeout"] > int(hook["args"][-1])
    assert hook["env"] == ["LC_ALL=C.UTF-8"]
    nodes = {node["path"]: (node["type"], node["major"], node["minor"]) for node in spec["linux"]["devices"]}
    assert nodes == {"/dev/infiniband/uverbs0": ("c", 231, 192), "/dev/infiniband/rdma_cm": ("c", 10, 120)}
    assert len(spec["linux"]["devices"]) == 2
    for allowed in spec["linux"]["resources"]["devices"]:
        assert (allowed["allow"], allowed["access"]) == (True, "rw")
    assert {(mount["source"], mount["destination"]) for mount in spec["mounts"]} == {
        (str(mount.host), mount.container) for mount in mounts.values()
    }
    assert len(spec["mounts"]) == 2 and all({"ro", "bind"} <= set(mount["options"]) for mount in spec["mounts"])


def test_a_container_gets_nothing_of_other_requests(paths: Paths, consumer: Path) -> None:
    listed, mounts = devices(paths)
    ids = cdi.write(paths, CLAIM.uid, listed)
    spec = read(consumer, "cdi", paths.cdi_dir, ids[2])
    assert "linux" not in spec and [mount["source"] for mount in spec["mounts"]] == [str(mounts["plain"].host)]
    assert len(spec["hooks"]["createRuntime"]) == 1
    # a container with several claims has one hook for each
    other = UID.format(2)
    more = cdi.write(paths, other, [Device("nic", "pci-0000-8d-00-0", (VERBS,))])
    spec = read(consumer, "cdi", paths.cdi_dir, *ids, *more)
    assert [hook["args"][-2] for hook in spec["hooks"]["createRuntime"]] == [CLAIM.uid, other]


def test_admin_access_has_no_hook(paths: Paths, consumer: Path) -> None:
    listed, _unused = devices(paths)
    ids = cdi.write(paths, CLAIM.uid, listed, hook=False)
    assert "hooks" not in read(consumer, "cdi", paths.cdi_dir, *ids)


def test_admin_access_opens_no_device(paths: Paths, consumer: Path) -> None:
    known = inventory.Device("pci-0000-8a-00-0", {"name": "pci-0000-8a-00-0"}, address="0000:8a:00.0")
    rdma = RdmaRecord([VERBS], [])
    device_record = DeviceRecord("pci-0000-8a-00-0", "node", "nic", known, rdma=rdma)
    nodes = {}
    for device in (device_record, dataclasses.replace(device_record, admin=True)):
        [prepared] = ClaimFiles(paths, None).write(Record(CLAIM.uid, "training", "nics", None, "boot", [device]))
        spec = read(consumer, "cdi", paths.cdi_dir, *prepared.cdi_ids)
        nodes[device.admin] = [node["path"] for node in spec.get("linux", {}).get("devices", ())]
    assert nodes == {False: [VERBS.path], True: []}


#: A name of a request or device.
LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)


def test_any_names_of_requests_and_devices_make_a_valid_spec(paths: Paths, consumer: Path) -> None:
    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.tuples(LABEL, LABEL), min_size=1, max_size=32, unique=True))
    def check(names: list[tuple[str, str]]) -> None:
        listed = [Device(request, device, (VERBS,)) for request, device in names]
        ids = cdi.write(paths, CLAIM.uid, listed)
        assert len(set(ids)) == len(names)
        read(consumer, "cdi", paths.cdi_dir, *ids)

    check()


def test_specs_use_no_feature_newer_than_cdi_0_5_0(paths: Paths) -> None:
    """A library refuses specs of versions that are newer than its own (specs-go/version.go)."""
    listed, _unused = devices(paths)
    common = cdi.CommonEdits(("LANEWISE_MAP=/run/lanewise/map",), (cdi.Mount(paths.pod_map(CLAIM.uid), "/run/map"),))
    spec = cdi.specification(paths, CLAIM.uid, listed, common=common)
    assert spec["cdiVersion"] == "0.5.0" and set(spec) <= {"cdiVersion", "kind", "devices", "containerEdits"}
    for edits in [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]:
        assert set(edits) <= {"deviceNodes", "env", "mounts", "hooks"}
    assert "." not in spec["kind"].partition("/")[2]


def test_specs_that_the_library_refuses_are_not_written(paths: Paths) -> None:
    with pytest.raises(ValueError, match="changes nothing"):
        cdi.write(paths, CLAIM.uid, [Device("nic", "a")])
    with pytest.raises(ValueError, match="twice"):
        cdi.write(paths, CLAIM.uid, [Device("nic/a", "a", (VERBS,)), Device("nic/b", "a", (VERBS,))])
    shares = [Device("nic", "a", (VERBS,), share_id=share) for share in ("x", "y")]
    assert len(set(cdi.write(paths, CLAIM.uid, shares))) == 2
    assert cdi.write(paths, CLAIM.uid, []) == [] and cdi.written(paths) == set()


def test_unchanged_specs_are_not_rewritten_and_old_unfinished_files_are_removed(paths: Paths) -> None:
    listed, _unused = devices(paths)
    for number in (1, 2):
        cdi.write(paths, UID.format(number), listed)
    (paths.cdi_dir / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    before = paths.cdi_spec(CLAIM.uid).stat()
    assert stat.S_IMODE(before.st_mode) == 0o644
    cdi.write(paths, CLAIM.uid, listed)
    assert paths.cdi_spec(CLAIM.uid).stat().st_ino == before.st_ino, "an unchanged spec is not written again"
    old = paths.cdi_dir / f"{paths.cdi_spec(CLAIM.uid).name}.0badcafe{files.UNFINISHED}"
    new = old.with_name(old.name.replace("0badcafe", "11111111"))
    for unfinished in (old, new):
        unfinished.touch()
    os.utime(old, (0, 0))
    assert cdi.written(paths) == {UID.format(1), UID.format(2)}
    assert not old.exists() and new.exists()
    for _attempt in range(2):
        cdi.remove(paths, CLAIM.uid)
    assert cdi.written(paths) == {UID.format(2)}


def test_a_writer_killed_at_any_step_leaves_a_complete_spec(paths: Paths, consumer: Path) -> None:
    """Wherever the driver is killed, a runtime finds the old spec or the new one, and the next write succeeds."""
    listed, _unused = devices(paths)
    ids = cdi.write(paths, CLAIM.uid, listed[:1])
    numbers = []
    for _step in killed_at_each_step(lambda: cdi.write(paths, CLAIM.uid, listed)):
        numbers.append(len(json.loads(paths.cdi_spec(CLAIM.uid).read_text())["devices"]))
        read(consumer, "cdi", paths.cdi_dir, *ids)
        cdi.write(paths, CLAIM.uid, listed[:1])
    assert len(numbers) > 4 and set(numbers) == {1, 3}
    assert numbers == sorted(numbers)


def test_kubernetes_decodes_the_metadata(paths: Paths, consumer: Path) -> None:
    _unused, mounts = devices(paths)
    found = read(consumer, "metadata", mounts["nic"].host)
    identity = (found["namespace"], found["name"], found["uid"])
    assert identity == (CLAIM.namespace, CLAIM.name, CLAIM.uid) and found["generation"] == 1
    (request,) = found["Requests"]
    assert request["Name"] == "nic/fast"
    assert [device["Name"] for device in request["Devices"]] == ["pci-0000-8a-00-0", "pci-0000-8b-00-0"]
    assert request["Devices"][0]["Driver"] == "lanewise.dev" and request["Devices"][0]["Pool"] == "node"
    assert request["Devices"][0]["Attributes"]["ifName"] == {"string": "eth7"}
    (plain,) = read(consumer, "metadata", mounts["plain"].host)["Requests"][0]["Devices"]
    assert plain["Attributes"] == {"rail": {"int": 3}, "up": {"bool": True}}
    objects = [json.loads(line) for line in mounts["nic"].host.read_text().splitlines()]
    assert [entry["apiVersion"] for entry in objects] == list(metadata.VERSIONS)
    assert stat.S_IMODE(mounts["nic"].host.stat().st_mode) == 0o644


def test_metadata_is_mounted_at_the_paths_of_kubernetes(paths: Paths) -> None:
    _unused, mounts = devices(paths)
    base = "/var/run/kubernetes.io/dra-device-attributes"
    assert mounts["nic"].container == f"{base}/resourceclaims/worker-0-nics/nic/lanewise.dev-metadata.json"
    device = DeviceMetadata("nic", "node", "a", {})
    templated = metadata.write(paths, ClaimRef("n", "pod-nics-x7k", UID.format(2)), [device], "nics")
    assert templated["nic"].container == f"{base}/resourceclaimtemplates/nics/nic/lanewise.dev-metadata.json"
    assert json.loads(templated["nic"].host.read_text().splitlines()[0])["podClaimName"] == "nics"
    modules = Path.home() / "go/pkg/mod/k8s.io"
    for source in modules.glob("dynamic-resource-allocation@*/api/metadata/types.go"):
        assert dict(re.findall(r'(\w+) += "(.*)"', source.read_text()))["ContainerDir"] == base


def test_network_data_is_written_into_the_mounted_metadata_file(paths: Paths, consumer: Path) -> None:
    """The file is mounted before the hook runs, so its inode stays the same."""
    listed = [DeviceMetadata("nic", "node", "a", {"ifName": {"string": "eth7"}})]
    mount = metadata.write(paths, CLAIM, listed)["nic"]
    attached = [DeviceMetadata("nic", "node", "a", {"ifName": {"string": "eth7"}}, NETWORK)]
    with mount.host.open("rb") as mounted:
        for generation, written in ((1, listed), (2, attached), (2, attached), (3, listed), (3, listed), (4, attached)):
            assert metadata.write(paths, CLAIM, written)["nic"] == mount
            mounted.seek(0)
            first = json.loads(mounted.read().split(b"\n")[0])
            assert first["metadata"]["generation"] == generation
            found = read(consumer, "metadata", mount.host)
            network = found["Requests"][0]["Devices"][0]["NetworkData"]
            assert network == (NETWORK if written is attached else None)


def test_damaged_metadata_is_written_again(paths: Paths, consumer: Path) -> None:
    device = DeviceMetadata("nic", "node", "a", {})
    mount = metadata.write(paths, CLAIM, [device])["nic"]
    inode = mount.host.stat().st_ino
    for broken in (b"", b"{", b"[]\n", b'{"kind": "x"}\n', b"\xff" * 5000):
        mount.host.write_bytes(broken)
        metadata.write(paths, CLAIM, [device])
        assert read(consumer, "metadata", mount.host)["generation"] == 1
        assert mount.host.stat().st_ino == inode


def test_writes_to_a_full_disk_fail_and_keep_the_files() -> None:
    @on_a_node
    def test() -> None:
        run("mkdir /run/full; mount -t tmpfs -o size=64k tmpfs /run/full")
        paths = under(Path("/run/full"))
        paths.make()
        device = DeviceMetadata("nic", "node", "a", {"ifName": {"string": "eth7"}})
        mount = metadata.write(paths, CLAIM, [device])["nic"]
        ids = cdi.write(paths, CLAIM.uid, [Device("nic", "a", mounts=(mount,))])
        before = mount.host.read_bytes(), paths.cdi_spec(CLAIM.uid).read_bytes()
        run("dd if=/dev/zero of=/run/full/filler bs=4k", check=False)
        longer = dataclasses.replace(
            device, network={**NETWORK, "ips": [f"10.1.{number}.2/24" for number in range(256)]}
        )
        for write in (
            lambda: metadata.write(paths, CLAIM, [longer]),
            lambda: cdi.write(paths, CLAIM.uid, [Device("nic", "b", mounts=(mount,))]),
            lambda: files.replace(paths.state_dir / "new.json", b"x" * 100, 0o600),
        ):
            with pytest.raises(OSError, match="No space"):
                write()
        assert (mount.host.read_bytes(), paths.cdi_spec(CLAIM.uid).read_bytes()) == before
        assert list(paths.plugin_dir.rglob(f"*{files.UNFINISHED}")) == []
        assert list(paths.cdi_dir.iterdir()) == [paths.cdi_spec(CLAIM.uid)]
        # the same content can be written again, and files can be removed
        assert cdi.write(paths, CLAIM.uid, [Device("nic", "a", mounts=(mount,))]) == ids
        cdi.remove(paths, CLAIM.uid)
        metadata.remove(paths, CLAIM.uid)
        Path("/run/full/filler").unlink()
        metadata.write(paths, CLAIM, [longer])

    test()


def test_metadata_is_removed(paths: Paths) -> None:
    devices(paths)
    assert metadata.written(paths) == {CLAIM.uid}
    for _attempt in range(2):
        metadata.remove(paths, CLAIM.uid)
    assert metadata.written(paths) == set()


def test_the_hook_is_installed_and_an_unchanged_hook_is_not_rewritten(paths: Paths) -> None:
    for _attempt in range(2):
        install_hook(paths)
    sources = Path(install.__file__).parent
    assert paths.hook_program.read_bytes() == (sources / "program.py").read_bytes()
    assert paths.hook_script.read_bytes() == (sources / "hook.sh").read_bytes()
    before = paths.hook_program.stat().st_mtime_ns
    time.sleep(0.01)
    install_hook(paths)
    assert paths.hook_program.stat().st_mtime_ns == before
