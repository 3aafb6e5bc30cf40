# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What containers get from a claim, as the CDI library and the metadata decoder of Kubernetes read the files."""

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
    """A program with the libraries with which runtimes and workloads read the files."""
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
    done = subprocess.run([consumer, *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def devices(paths: Paths) -> tuple[list[Device], dict[str, Mount]]:
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


def test_a_container_gets_its_devices(paths: Paths, consumer: Path) -> None:
    listed, mounts = devices(paths)
    ids = cdi.write(paths, CLAIM.uid, listed)
    assert ids[0] == f"k8s.lanewise.dev/claim={CLAIM.uid}_nic_pci-0000-8a-00-0"
    spec = read(consumer, "cdi", paths.cdi_dir, *ids)
    # the driver is asked once, for any number of devices of the claim in a container
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
    # several claims in a container: one request for each
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


LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)


def test_any_names_make_a_valid_spec(paths: Paths, consumer: Path) -> None:
    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.tuples(LABEL, LABEL), min_size=1, max_size=32, unique=True))
    def check(names: list[tuple[str, str]]) -> None:
        listed = [Device(request, device, (VERBS,)) for request, device in names]
        ids = cdi.write(paths, CLAIM.uid, listed)
        assert len(set(ids)) == len(names)
        read(consumer, "cdi", paths.cdi_dir, *ids)

    check()


def test_specs_use_no_feature_newer_than_cdi_0_5_0(paths: Paths) -> None:
    """A library refuses specs newer than itself: nothing newer than 0.5.0 is used (specs-go/version.go)."""
    listed, _unused = devices(paths)
    common = cdi.CommonEdits(("LANEWISE_MAP=/run/lanewise/map",), (cdi.Mount(paths.pod_map(CLAIM.uid), "/run/map"),))
    spec = cdi.specification(paths, CLAIM.uid, listed, common=common)
    assert spec["cdiVersion"] == "0.5.0" and set(spec) <= {"cdiVersion", "kind", "devices", "containerEdits"}
    for edits in [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]:
        assert set(edits) <= {"deviceNodes", "env", "mounts", "hooks"}
    assert "." not in spec["kind"].partition("/")[2]


def test_values_that_the_library_refuses_are_not_written(paths: Paths) -> None:
    with pytest.raises(ValueError, match="changes nothing"):
        cdi.write(paths, CLAIM.uid, [Device("nic", "a")])
    with pytest.raises(ValueError, match="twice"):
        cdi.write(paths, CLAIM.uid, [Device("nic/a", "a", (VERBS,)), Device("nic/b", "a", (VERBS,))])
    shares = [Device("nic", "a", (VERBS,), share_id=share) for share in ("x", "y")]
    assert len(set(cdi.write(paths, CLAIM.uid, shares))) == 2
    assert cdi.write(paths, CLAIM.uid, []) == [] and cdi.written(paths) == set()


def test_specs_are_written_once_and_removed(paths: Paths) -> None:
    listed, _unused = devices(paths)
    for number in (1, 2):
        cdi.write(paths, UID.format(number), listed)
    (paths.cdi_dir / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    before = paths.cdi_spec(CLAIM.uid).stat()
    assert stat.S_IMODE(before.st_mode) == 0o644
    cdi.write(paths, CLAIM.uid, listed)
    assert paths.cdi_spec(CLAIM.uid).stat().st_ino == before.st_ino, "an unchanged spec is left alone"
    left = paths.cdi_dir / f"{paths.cdi_spec(CLAIM.uid).name}.0badcafe{files.UNFINISHED}"
    fresh = left.with_name(left.name.replace("0badcafe", "11111111"))
    for draft in (left, fresh):
        draft.touch()
    os.utime(left, (0, 0))
    assert cdi.written(paths) == {UID.format(1), UID.format(2)}
    assert not left.exists() and fresh.exists()
    for _unused in range(2):
        cdi.remove(paths, CLAIM.uid)
    assert cdi.written(paths) == {UID.format(2)}


def test_a_writer_killed_at_any_step_leaves_a_complete_spec(paths: Paths, consumer: Path) -> None:
    """A runtime sees the old spec or the new one, whenever the driver dies; the next try succeeds."""
    listed, _unused = devices(paths)
    ids = cdi.write(paths, CLAIM.uid, listed[:1])
    seen = []
    for _unused in killed_at_each_step(lambda: cdi.write(paths, CLAIM.uid, listed)):
        seen.append(len(json.loads(paths.cdi_spec(CLAIM.uid).read_text())["devices"]))
        read(consumer, "cdi", paths.cdi_dir, *ids)
        cdi.write(paths, CLAIM.uid, listed[:1])
    assert len(seen) > 4 and set(seen) == {1, 3}
    assert seen == sorted(seen)


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
    assert [one["apiVersion"] for one in objects] == list(metadata.VERSIONS)
    assert stat.S_IMODE(mounts["nic"].host.stat().st_mode) == 0o644


def test_metadata_is_mounted_at_the_paths_of_kubernetes(paths: Paths) -> None:
    _unused, mounts = devices(paths)
    base = "/var/run/kubernetes.io/dra-device-attributes"
    assert mounts["nic"].container == f"{base}/resourceclaims/worker-0-nics/nic/lanewise.dev-metadata.json"
    device = DeviceMetadata("nic", "node", "a", {})
    templated = metadata.write(paths, ClaimRef("n", "pod-nics-x7k", UID.format(2)), [device], "nics")
    assert templated["nic"].container == f"{base}/resourceclaimtemplates/nics/nic/lanewise.dev-metadata.json"
    assert json.loads(templated["nic"].host.read_text().splitlines()[0])["podClaimName"] == "nics"
    constants = Path.home() / "go/pkg/mod/k8s.io"
    for source in constants.glob("dynamic-resource-allocation@*/api/metadata/types.go"):
        assert dict(re.findall(r'(\w+) += "(.*)"', source.read_text()))["ContainerDir"] == base


def test_network_data_reaches_a_container_that_has_the_file(paths: Paths, consumer: Path) -> None:
    """The file is mounted before the hook runs, so it stays the same file and is complete at any moment."""
    listed = [DeviceMetadata("nic", "node", "a", {"ifName": {"string": "eth7"}})]
    mount = metadata.write(paths, CLAIM, listed)["nic"]
    attached = [DeviceMetadata("nic", "node", "a", {"ifName": {"string": "eth7"}}, NETWORK)]
    with mount.host.open("rb") as mounted:
        for generation, now in ((1, listed), (2, attached), (2, attached), (3, listed), (3, listed), (4, attached)):
            assert metadata.write(paths, CLAIM, now)["nic"] == mount
            mounted.seek(0)
            first = json.loads(mounted.read().split(b"\n")[0])
            assert first["metadata"]["generation"] == generation
            found = read(consumer, "metadata", mount.host)
            network = found["Requests"][0]["Devices"][0]["NetworkData"]
            assert network == (NETWORK if now is attached else None)


def test_damaged_metadata_is_written_again(paths: Paths, consumer: Path) -> None:
    device = DeviceMetadata("nic", "node", "a", {})
    mount = metadata.write(paths, CLAIM, [device])["nic"]
    inode = mount.host.stat().st_ino
    for broken in (b"", b"{", b"[]\n", b'{"kind": "x"}\n', b"\xff" * 5000):
        mount.host.write_bytes(broken)
        metadata.write(paths, CLAIM, [device])
        assert read(consumer, "metadata", mount.host)["generation"] == 1
        assert mount.host.stat().st_ino == inode


def test_a_full_disk_changes_nothing() -> None:
    @on_a_node
    def test() -> None:
        run("mkdir /run/full; mount -t tmpfs -o size=64k tmpfs /run/full")
        small = under(Path("/run/full"))
        small.make()
        device = DeviceMetadata("nic", "node", "a", {"ifName": {"string": "eth7"}})
        mount = metadata.write(small, CLAIM, [device])["nic"]
        ids = cdi.write(small, CLAIM.uid, [Device("nic", "a", mounts=(mount,))])
        before = mount.host.read_bytes(), small.cdi_spec(CLAIM.uid).read_bytes()
        run("dd if=/dev/zero of=/run/full/filler bs=4k", check=False)
        long = dataclasses.replace(device, network={**NETWORK, "ips": [f"10.1.{n}.2/24" for n in range(256)]})
        for write in (
            lambda: metadata.write(small, CLAIM, [long]),
            lambda: cdi.write(small, CLAIM.uid, [Device("nic", "b", mounts=(mount,))]),
            lambda: files.replace(small.state_dir / "new.json", b"x" * 100, 0o600),
        ):
            with pytest.raises(OSError, match="No space"):
                write()
        assert (mount.host.read_bytes(), small.cdi_spec(CLAIM.uid).read_bytes()) == before
        assert list(small.plugin_dir.rglob(f"*{files.UNFINISHED}")) == []
        assert list(small.cdi_dir.iterdir()) == [small.cdi_spec(CLAIM.uid)]
        # removing and rewriting need no space
        assert cdi.write(small, CLAIM.uid, [Device("nic", "a", mounts=(mount,))]) == ids
        cdi.remove(small, CLAIM.uid)
        metadata.remove(small, CLAIM.uid)
        Path("/run/full/filler").unlink()
        metadata.write(small, CLAIM, [long])

    test()


def test_metadata_is_removed(paths: Paths) -> None:
    devices(paths)
    assert metadata.written(paths) == {CLAIM.uid}
    for _unused in range(2):
        metadata.remove(paths, CLAIM.uid)
    assert metadata.written(paths) == set()


def test_hook_is_installed(paths: Paths) -> None:
    for _unused in range(2):
        install_hook(paths)
    sources = Path(install.__file__).parent
    assert paths.hook_program.read_bytes() == (sources / "program.py").read_bytes()
    assert paths.hook_script.read_bytes() == (sources / "hook.sh").read_bytes()
    before = paths.hook_program.stat().st_mtime_ns
    time.sleep(0.01)
    install_hook(paths)
    assert paths.hook_program.stat().st_mtime_ns == before
