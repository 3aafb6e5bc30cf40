# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The map of a claim for its pod, on example machines: which NIC belongs to which GPU. Values from the slices of
another driver are used only if the probe confirms them. Unknown values are UNKNOWN."""

from __future__ import annotations

import dataclasses
import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.machines.builder import build
from hypothesis import given
from hypothesis import strategies as st
from lanewise_driver.api.client import ApiError
from lanewise_driver.base.calls import Pod
from lanewise_driver.base.errors import Unreachable
from lanewise_driver.base.objects import Object
from lanewise_driver.base.paths import Paths
from lanewise_driver.base.settings import Settings
from lanewise_driver.claims import environment, pod_map
from lanewise_driver.claims.claim_files import ClaimFiles
from lanewise_driver.claims.peers import MAX_DRIVERS, add_levels, peers
from lanewise_driver.claims.records import DeviceRecord, Record, add_facts, decode, encode, encode_facts
from lanewise_driver.publish.inventory import Inventory
from lanewise_driver.publish.places import Places
from lanewise_driver.topology.boards import nearest

NODE = "node-1"
UID = "claim-uid-1"
GPU_DRIVER = "gpu.nvidia.com"
BUS_ID = "resource.kubernetes.io/pciBusID"


class Api:
    """The slices and claims of an API server. Records the names of drivers and claims that are read."""

    node = NODE

    def __init__(self, slices: t.Sequence[Object] = (), error: Exception | None = None) -> None:
        self.slices, self.error, self.read = list(slices), error, list[str]()
        self.claims: dict[str, Object] = {}

    def slices_of(self, driver: str) -> list[Object]:
        self.read.append(driver)
        if self.error:
            raise self.error
        return [entry for entry in self.slices if entry["spec"]["driver"] == driver]

    def claim(self, namespace: str, name: str, meanwhile: t.Callable[[], None] | None = None) -> Object | None:
        self.read.append(name)
        return self.claims.get(name)


@pytest.fixture(name="machine", scope="module")
def _machine(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    return inventory(tmp_path_factory.mktemp("machine"), "hgx-h100")


def inventory(folder: Path, name: str, **settings: t.Any) -> Inventory:
    """The inventory of an example machine, which is built in the folder."""
    tree = build(name, folder / name)
    return Inventory(lambda: Settings(node_name=NODE, **settings), lambda: [], str(tree))


def gpu_slice(devices: t.Mapping[str, t.Mapping[str, str]], generation: int = 1, **pool: t.Any) -> Object:
    """A slice of the GPU driver. Attributes are strings."""
    listed = [
        {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}
        for name, attributes in devices.items()
    ]
    pool_fields = {"name": NODE, "generation": generation, "resourceSliceCount": 1, **pool}
    return {"spec": {"driver": GPU_DRIVER, "nodeName": NODE, "pool": pool_fields, "devices": listed}}


def uuid(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def slice_of_all_gpus(places: Places) -> Object:
    """All GPUs of the machine, as the GPU driver publishes them."""
    return gpu_slice(
        {f"gpu-{number}": {BUS_ID: address, "uuid": uuid(number)} for number, address in enumerate(sorted(places.gpus))}
    )


def claim(*results: tuple[str, str, str]) -> Object:
    """An allocated claim. Each result is a driver, a device and a request."""
    listed = [
        {"driver": driver, "pool": NODE, "device": device, "request": request} for driver, device, request in results
    ]
    return {"metadata": {"uid": UID}, "status": {"allocation": {"devices": {"results": listed}}}}


def device(machine: Inventory, address: str, **more: t.Any) -> DeviceRecord:
    """The NIC with this PCI address, as a record contains it."""
    name = f"pci-{address.replace(':', '-').replace('.', '-')}"
    known = machine.device(name)
    assert known, name
    return DeviceRecord(name, NODE, "nic", known, interface=known.interface or "", **more)


def record(machine: Inventory, nics: t.Sequence[str], gpus: t.Sequence[t.Any] = (), **more: t.Any) -> Record:
    """The record of a claim with these NICs and with the results of `peers` for its GPUs."""
    devices = [device(machine, address) for address in nics]
    pod = Pod("ns", "pod", "pod-uid")
    claim_record = Record(UID, "ns", "claim", pod, "boot", devices, pod_claim_name="devices", mapped=True, **more)
    claim_record.peers = list(gpus)
    add_levels(claim_record.peers, claim_record.devices, machine.places)
    return claim_record


def nearest_nics(machine: Inventory, gpu: str) -> list[str]:
    return list(machine.places.board.nearest_nics(gpu)[1])


def record_of_pair(machine: Inventory, gpu: int, **more: t.Any) -> Record:
    """The record of a claim with a GPU and its nearest NICs."""
    address = sorted(machine.places.gpus)[gpu]
    api = Api([slice_of_all_gpus(machine.places)])
    found = peers(claim((GPU_DRIVER, f"gpu-{gpu}", "gpu")), api, lambda: machine.places)
    return record(machine, nearest_nics(machine, address), found, **more)


def test_a_claim_with_only_devices_of_this_driver_needs_no_request(machine: Inventory) -> None:
    api = Api()

    def places() -> Places:
        raise AssertionError("the places of the node are not needed")

    assert peers(claim(("lanewise.dev", "pci-0000-18-00-0", "nic")), api, places) == []
    assert api.read == []


def test_each_gpu_is_paired_with_its_nearest_nic(machine: Inventory) -> None:
    gpus = sorted(machine.places.gpus)
    assert len(gpus) == 8
    for number, address in enumerate(gpus):
        found = pod_map.content(record_of_pair(machine, number), NODE)
        [gpu], [nic] = found["gpus"], found["nics"]
        assert (gpu["pciAddress"], gpu["uuid"]) == (address, uuid(number))
        assert gpu["pcieRoot"] == nic["pcieRoot"] and gpu["rail"] == nic["rail"] == number
        assert found["pairs"] == [{"gpu": address, "nic": nic["pciAddress"], "level": "PIX"}]
        assert nic["rdmaDevices"] and "reason" not in gpu


def test_each_gpu_is_paired_with_a_different_nic(machine: Inventory) -> None:
    """A GPU without a nearby NIC gets the NIC that no other GPU has."""
    gpus = sorted(machine.places.gpus)
    api = Api([slice_of_all_gpus(machine.places)])
    requested = claim((GPU_DRIVER, "gpu-0", "a"), (GPU_DRIVER, "gpu-5", "b"))
    found = peers(requested, api, lambda: machine.places)
    assert api.read == [GPU_DRIVER]
    [first], [second], [third] = (nearest_nics(machine, gpus[number]) for number in (0, 5, 7))
    both = record(machine, [second, first], found)
    assert [(pair.gpu.address, pair.nic.known.address) for pair in pod_map.pairs(both)] == [
        (gpus[0], first),
        (gpus[5], second),
    ]
    other = record(machine, [first, third], found)
    assert {pair.nic.known.address for pair in pod_map.pairs(other)} == {first, third}
    assert [pair.level for pair in pod_map.pairs(other)] == ["PIX", "NODE"]


@pytest.mark.parametrize("name", ["gb200", "gb300", "dgx-a100", "mi300x", "azure-vm", "epyc-nps4"])
def test_on_every_board_each_gpu_is_paired_with_a_nearest_nic(name: str, tmp_path: Path) -> None:
    """For a claim with all GPUs and NICs of a machine, if the distances of the GPU to NICs are known."""
    machine = inventory(tmp_path, name)
    board, published_nics = machine.places.board, machine.publication.addresses.values()
    nics = [nic for nic in board.nics if nic in published_nics]
    api = Api([slice_of_all_gpus(machine.places)])
    requested = claim(*((GPU_DRIVER, f"gpu-{number}", "gpu") for number in range(len(board.gpus))))
    claim_record = record(machine, nics, peers(requested, api, lambda: machine.places))
    found = {pair.gpu.address: pair for pair in pod_map.pairs(claim_record)}
    assert board.gpus and nics
    for gpu in board.gpus:
        level, nearest_to_gpu = nearest({nic: board.level(gpu, nic) for nic in nics})
        if level == "UNKNOWN":
            assert gpu not in found
        else:
            assert (found[gpu].level, found[gpu].nic.known.address in nearest_to_gpu) == (level, True)


def test_partitions_of_a_gpu_are_paired_with_the_same_nic(machine: Inventory) -> None:
    gpu = min(machine.places.gpus)
    uuids = ["MIG-00000000-0000-0000-0000-000000000001", "MIG-00000000-0000-0000-0000-000000000002"]
    slices = [
        gpu_slice({f"gpu-0-mig-{number}": {BUS_ID: gpu, "uuid": mig_uuid} for number, mig_uuid in enumerate(uuids)})
    ]
    requested = claim(*((GPU_DRIVER, f"gpu-0-mig-{number}", f"part-{number}") for number in range(2)))
    gpus = peers(requested, Api(slices), lambda: machine.places)
    claim_record = record(machine, nearest_nics(machine, gpu), gpus, variables=["vllm"])
    found = pod_map.content(claim_record, NODE)
    assert [entry["uuid"] for entry in found["gpus"]] == uuids
    assert {entry["pciAddress"] for entry in found["gpus"]} == {gpu} and len(found["pairs"]) == 1
    variables = dict(variable.split("=", 1) for variable in pod_map.variables(claim_record))
    assert variables["VLLM_GPU_NIC_PCIE_MAPPING"] == f"{gpu}={nearest_nics(machine, gpu)[0]}"
    pairs = variables["LANEWISE_PAIRS_DEVICES"].split(";")
    assert [pair.split(",")[1] for pair in pairs] == [f"uuid={mig_uuid}" for mig_uuid in uuids]
    assert all(f"nic={nearest_nics(machine, gpu)[0]}" in pair for pair in pairs)
    claim_record.devices = []
    assert "nic=UNKNOWN" in pod_map.variables(claim_record)[1]


#: Slices from which the PCI address of gpu-0 cannot be taken, and a part of the reason.
UNUSABLE_SLICES: dict[str, tuple[t.Callable[[Places], list[Object]], str]] = {
    "no slice": (lambda places: [], "does not publish the device"),
    "another pool": (
        lambda places: [gpu_slice({"gpu-0": {BUS_ID: min(places.gpus)}}, name="other")],
        "does not publish the device",
    ),
    "missing in the newest generation": (
        lambda places: [slice_of_all_gpus(places), gpu_slice({"gpu-1": {BUS_ID: min(places.gpus)}}, 2)],
        "does not publish the device",
    ),
    "no address": (lambda places: [gpu_slice({"gpu-0": {"uuid": uuid(0)}})], "publishes no PCI address"),
    "a text instead of an address": (
        lambda places: [gpu_slice({"gpu-0": {BUS_ID: f"{min(places.gpus)}\nNCCL_IB_HCA=="}})],
        "publishes no PCI address",
    ),
    "a NIC's address": (
        lambda places: [gpu_slice({"gpu-0": {BUS_ID: places.board.nics[0]}})],
        "is not that of a GPU on this node",
    ),
    "an address of another machine": (
        lambda places: [gpu_slice({"gpu-0": {BUS_ID: "0000:ff:1f.0"}})],
        "is not that of a GPU on this node",
    ),
    "no mapping": (
        lambda places: [{"spec": {"driver": GPU_DRIVER, "pool": 7, "devices": 3}}, {"spec": {"driver": GPU_DRIVER}}],
        "does not publish the device",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE_SLICES)
def test_unusable_slices_give_unknown_values(machine: Inventory, case: str) -> None:
    slices, reason = UNUSABLE_SLICES[case]
    api = Api(slices(machine.places))
    found = peers(claim((GPU_DRIVER, "gpu-0", "gpu")), api, lambda: machine.places)
    nic = nearest_nics(machine, min(machine.places.gpus))
    claim_record = record(machine, nic, found, variables=["nccl", "vllm"])
    [gpu] = pod_map.content(claim_record, NODE)["gpus"]
    assert (gpu["pciAddress"], gpu["rail"], gpu["pcieRoot"], gpu["nearestNICs"]["level"]) == ("UNKNOWN",) * 4
    assert reason in gpu["reason"]
    assert pod_map.pairs(claim_record) == []
    assert "LANEWISE_PAIRS_DEVICES=gpu=UNKNOWN" in pod_map.variables(claim_record)
    assert "unknown which NIC goes with gpu-0" in pod_map.left_out(claim_record)["vllm"]


def test_only_slices_of_the_newest_generation_are_used(machine: Inventory) -> None:
    """In any order of the slices of a pool."""
    first, second, *_rest = sorted(machine.places.gpus)
    old = gpu_slice({"gpu-0": {BUS_ID: first}}, 1)
    new = [gpu_slice({"gpu-0": {BUS_ID: second}}, 2), gpu_slice({"gpu-1": {BUS_ID: first}}, 2)]
    for slices in ([old, *new], [*new, old], [new[1], old, new[0]]):
        [found] = peers(claim((GPU_DRIVER, "gpu-0", "gpu")), Api(slices), lambda: machine.places)
        assert found.address == second


def test_a_gpu_is_found_by_other_attribute_names_of_its_address(machine: Inventory) -> None:
    first = min(machine.places.gpus)
    for name in ("pcieBusID", f"{GPU_DRIVER}/pcieBusID", "pciAddress"):
        api = Api([gpu_slice({"gpu-0": {name: first.upper()}})])
        [found] = peers(claim((GPU_DRIVER, "gpu-0", "gpu")), api, lambda: machine.places)
        assert found.address == first


def test_a_refused_request_gives_unknown_values_and_an_outage_is_an_error(machine: Inventory) -> None:
    refusing = Api(error=ApiError(403, "Forbidden", "no " * 500))
    [found] = peers(claim((GPU_DRIVER, "gpu-0", "gpu")), refusing, lambda: machine.places)
    assert not found.address and "could not be read" in found.unknown and len(found.unknown) < 300
    with pytest.raises(Unreachable):  # then kubelet tries again
        peers(claim((GPU_DRIVER, "gpu-0", "gpu")), Api(error=Unreachable("down")), lambda: machine.places)


def test_a_claim_with_many_drivers_causes_a_limited_number_of_requests(machine: Inventory) -> None:
    requested = claim(*((f"gpu.example{number}.com", "gpu-0", "gpu") for number in range(30)))
    api = Api()
    found = peers(requested, api, lambda: machine.places)
    assert len(api.read) == MAX_DRIVERS
    assert len(found) == 30 and all(peer.unknown for peer in found)


KEYS = st.sampled_from(["", "driver", "pool", "device", "request", "spec", "devices", "attributes", "uuid", BUS_ID])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
HOSTILE_TEXTS = st.text(max_size=70) | st.sampled_from(["a\nB=c", "GPU-1,nic=x", "../../x", "a" * 65, "x;y=z", "\0"])


@given(
    result=JSON,
    name=HOSTILE_TEXTS,
    uuids=HOSTILE_TEXTS,
    address=HOSTILE_TEXTS,
    other=JSON,
)
def test_nothing_hostile_gets_into_a_variable(
    machine: Inventory, result: t.Any, name: str, uuids: str, address: str, other: t.Any
) -> None:
    gpu = min(machine.places.gpus)
    requested = claim(
        (GPU_DRIVER, "gpu-0", "gpu"), (GPU_DRIVER, name, "gpu"), (GPU_DRIVER, "gpu-1", name), (name, "gpu-0", "gpu")
    )
    requested["status"]["allocation"]["devices"]["results"].append(result)
    attributes = {"gpu-0": {BUS_ID: gpu, "uuid": uuids}, "gpu-1": {BUS_ID: address, "uuid": uuids}}
    api = Api([gpu_slice(attributes), {"spec": {"driver": GPU_DRIVER, "pool": {"name": NODE}, "devices": [other]}}])
    found = peers(requested, api, lambda: machine.places)
    claim_record = record(
        machine, nearest_nics(machine, gpu), found, variables=["nccl", "ucx", "vllm", "nccl_topology"]
    )
    for variable in pod_map.variables(claim_record):
        key, value = variable.split("=", 1)
        assert key.replace("_", "").isalnum() and value.isascii() and value.isprintable() and " " not in value
    [pair] = [variable for variable in pod_map.variables(claim_record) if variable.startswith("LANEWISE_PAIRS_")]
    assert pair.count("uuid=") == pair.count("nic=") == 1
    json.loads(pod_map.encode(claim_record, NODE))
    stored = decode(encode(claim_record))
    add_facts(stored, encode_facts(claim_record))
    assert stored == claim_record


# variables of libraries


def test_variables_of_libraries_are_not_set_by_default(machine: Inventory) -> None:
    found = pod_map.variables(record_of_pair(machine, 0))
    assert [variable.partition("=")[0] for variable in found] == ["LANEWISE_MAP", "LANEWISE_PAIRS_DEVICES"]


def test_variables_name_the_nics_for_nccl_and_vllm(machine: Inventory) -> None:
    gpus = sorted(machine.places.gpus)
    found = peers(
        claim((GPU_DRIVER, "gpu-1", "b"), (GPU_DRIVER, "gpu-0", "a")),
        Api([slice_of_all_gpus(machine.places)]),
        lambda: machine.places,
    )
    nics = [nearest_nics(machine, gpus[number])[0] for number in (1, 0)]
    claim_record = record(machine, nics, found, variables=["nccl", "vllm", "nccl_topology"])
    variables = dict(variable.split("=", 1) for variable in pod_map.variables(claim_record))
    names = sorted(name for nic in claim_record.devices for name in nic.known.rdma_devices)
    assert len(names) == 2
    # all NICs of the claim, matched exactly, and not those of a single rank
    assert variables["NCCL_IB_HCA"] == f"={','.join(names)}"
    mapping = f"{gpus[0]}={nics[1]},{gpus[1]}={nics[0]}"
    assert variables["VLLM_GPU_NIC_PCIE_MAPPING"] == mapping
    # NCCL needs all NICs, so vLLM must not select a NIC for it
    assert variables["VLLM_NIC_SELECTION_VARS"] == "UCX_NET_DEVICES:1"
    assert variables["NCCL_TOPO_FILE"] == "/run/lanewise/nccl-topology.xml"
    claim_record.variables = ["ucx"]
    assert f"UCX_NET_DEVICES={','.join(f'{name}:1' for name in names)}" in pod_map.variables(claim_record)
    assert pod_map.content(claim_record, NODE)["environment"].keys() == {
        "LANEWISE_MAP",
        "LANEWISE_PAIRS_DEVICES",
        "UCX_NET_DEVICES",
    }


def test_vllm_gets_no_mapping_if_a_gpu_has_no_nic(machine: Inventory) -> None:
    """vLLM stops at a GPU that is not in the mapping."""
    claim_record = record_of_pair(machine, 0, variables=["vllm"])
    claim_record.devices = []
    assert "unknown which NIC" in pod_map.left_out(claim_record)["vllm"]
    assert not any("VLLM" in variable for variable in pod_map.variables(claim_record))


def pod(*names: str, **status: t.Any) -> Object:
    """A pod with the claim `claim`, which is from a template, and with the claims of these names."""
    entries = [{"name": name, "resourceClaimName": name} for name in names]
    statuses = [{"name": "devices", "resourceClaimName": "claim"}]
    spec = {"resourceClaims": [*entries, {"name": "devices", "resourceClaimTemplateName": "pair"}]}
    return {"spec": spec, "status": {"resourceClaimStatuses": statuses, **status}}


def choose_variables(machine: Inventory, claim_record: Record, its_pod: Object, api: Api) -> environment.Choice:
    return environment.choose(("nccl", "vllm"), claim_record.claim, its_pod, t.cast(t.Any, api), machine)


def test_all_claims_of_a_pod_give_nccl_the_same_nics(machine: Inventory) -> None:
    """Every claim of a pod gives NCCL the same list, so it does not matter which one the container runtime uses."""
    gpus = sorted(machine.places.gpus)
    first, second = nearest_nics(machine, gpus[0])[0], nearest_nics(machine, gpus[1])[0]
    api = Api()
    for name, nic in (("claim", first), ("other", second)):
        api.claims[name] = claim(("lanewise.dev", device(machine, nic).device, "nic"))
    values = set()
    for name, nic in (("claim", first), ("other", second)):
        claim_record = dataclasses.replace(record(machine, [nic]), name=name)
        choice = choose_variables(machine, claim_record, pod("other"), api)
        claim_record.variables, claim_record.left_out, claim_record.beside = (
            choice.variables,
            choice.left_out,
            choice.beside,
        )
        values.update(variable for variable in pod_map.variables(claim_record) if variable.startswith("NCCL_IB_HCA="))
        assert "vLLM needs all in one claim" in choice.left_out["vllm"]
    [value] = values
    assert len(value.split(",")) == 2


def test_variables_are_left_out_if_another_claim_of_the_pod_is_unknown(machine: Inventory) -> None:
    claim_record = record(machine, [])
    api = Api()
    api.claims["unknown-device"] = claim(("lanewise.dev", "pci-0000-ff-1f-0", "nic"))
    api.claims["gpus"] = claim((GPU_DRIVER, "gpu-0", "gpu"))
    without_status = pod()
    without_status["status"] = {}
    for its_pod, reason in (
        (pod("missing"), "does not exist"),
        (pod("unknown-device"), "it is unknown which devices claim unknown-device"),
        (pod(*map(str, range(40))), "the pod has more than 17 claims"),
        (without_status, "the names of the pod's claims are not all known"),
        ({"spec": {"resourceClaims": [7]}}, "the names of the pod's claims are not all known"),
    ):
        left_out = choose_variables(machine, claim_record, its_pod, api).left_out
        assert set(left_out) == {"nccl", "vllm"} and reason in left_out["nccl"], left_out
    extended = pod(extendedResourceClaimStatus={"resourceClaimName": "gpus"})
    assert set(choose_variables(machine, claim_record, extended, api).left_out) == {"vllm"}
    assert choose_variables(machine, claim_record, pod(), api).left_out == {}


def test_variables_of_claims_with_similar_names_differ(machine: Inventory) -> None:
    claim_record = record_of_pair(machine, 0)
    names = set()
    for template, name in (("a-b", "x"), ("", "a-b"), ("claim-a-b", "x")):
        renamed = dataclasses.replace(claim_record, pod_claim_name=template, name=name)
        names.add(pod_map.variables(renamed)[1].partition("=")[0])
    assert names == {"LANEWISE_PAIRS_A_B", "LANEWISE_CLAIM_PAIRS_A_B", "LANEWISE_PAIRS_CLAIM_A_B"}
    dotted = dataclasses.replace(claim_record, pod_claim_name="", name="a.b")
    assert [variable.partition("=")[0] for variable in pod_map.variables(dotted)] == ["LANEWISE_MAP"]


# files


def test_a_claim_mounts_its_map_and_the_nccl_topology(machine: Inventory, tmp_path: Path) -> None:
    paths = Paths(plugin_dir=tmp_path / "plugin", run_dir=tmp_path / "run", cdi_dir=tmp_path / "cdi")
    files = ClaimFiles(paths, None, node=NODE)
    claim_record = record_of_pair(machine, 0, variables=["nccl_topology"])
    files.write_nccl_topology("<system/>")
    files.write(claim_record)
    edits = json.loads(paths.cdi_spec(UID).read_bytes())["containerEdits"]
    mounts = {mount["containerPath"]: mount for mount in edits["mounts"]}
    assert mounts["/run/lanewise/map/resourceclaimtemplates/devices.json"]["hostPath"] == str(paths.pod_map(UID))
    assert mounts["/run/lanewise/nccl-topology.xml"]["hostPath"] == str(paths.nccl_topology)
    assert all("ro" in mount["options"] for mount in mounts.values())
    assert edits["env"] == pod_map.variables(claim_record)
    before = paths.pod_map(UID).stat().st_ino
    assert json.loads(paths.pod_map(UID).read_text())["nics"][0]["addresses"] == "UNKNOWN"
    claim_record.devices[0].network = {
        "interfaceName": "net1",
        "ips": ["192.0.2.7/24"],
        "hardwareAddress": "02:00:00:00:00:01",
    }
    files.write_metadata(claim_record)
    [nic] = json.loads(paths.pod_map(UID).read_text())["nics"]
    assert (nic["addresses"], nic["mac"]) == (["192.0.2.7/24"], "02:00:00:00:00:01")
    assert paths.pod_map(UID).stat().st_ino == before, "containers have mounted this file"
    files.remove(UID)
    assert not paths.pod_map(UID).exists()


def test_facts_for_the_map_are_stored_beside_the_record(machine: Inventory, tmp_path: Path) -> None:
    """A claim from a release without maps gets no map, because the map would say that the claim has no GPU. The record
    itself has no field that such a release does not know."""
    paths = Paths(plugin_dir=tmp_path / "plugin", run_dir=tmp_path / "run", cdi_dir=tmp_path / "cdi")
    files = ClaimFiles(paths, None, node=NODE)
    claim_record = record_of_pair(machine, 0, variables=["nccl"], left_out={"ucx": "why"}, beside=["mlx5_7"])
    assert not json.loads(encode(claim_record)).keys() & {"mapped", "peers", "variables", "left_out", "beside"}
    old = decode(encode(claim_record))
    files.read_facts(old)
    assert not old.mapped
    files.write(old)
    spec = json.loads(paths.cdi_spec(UID).read_bytes())
    assert list(spec["containerEdits"]) == ["hooks"]
    assert not paths.pod_map(UID).exists()
    files.write_facts(claim_record)
    read = decode(encode(claim_record))
    files.read_facts(read)
    assert read == claim_record
    for content in (b"", b"{}", b'{"schema": 1, "peers": 7}', b'{"schema": 99}'):
        paths.pod_facts(UID).write_bytes(content)
        read = decode(encode(claim_record))
        files.read_facts(read)
        assert not read.mapped and not read.peers
    without_gpu = record(machine, nearest_nics(machine, min(machine.places.gpus)))
    files.write_facts(without_gpu)
    assert not paths.pod_facts(UID).exists(), "a claim with only NICs needs no facts file"
    files.write(without_gpu)
    read = decode(encode(without_gpu))
    files.read_facts(read)
    assert read == without_gpu


def test_the_nccl_topology_is_written_for_nvidia_gpus_only(tmp_path: Path) -> None:
    nvidia = inventory(tmp_path, "hgx-h100", pod_environment=("nccl_topology",)).places
    assert nvidia.nccl.startswith("<system")
    amd = inventory(tmp_path, "mi300x", pod_environment=("nccl_topology",)).places
    assert not amd.nccl and "not all NVIDIA's" in amd.no_nccl_reason
    assert not inventory(tmp_path, "hgx-h100").places.nccl


def test_a_changed_setting_takes_effect_without_a_restart(tmp_path: Path) -> None:
    current = [Settings(node_name=NODE)]
    machine = Inventory(lambda: current[0], lambda: [], str(build("hgx-h100", tmp_path / "m")))
    assert not machine.places.nccl
    current[0] = dataclasses.replace(current[0], pod_environment=("nccl_topology",))
    assert machine.places.nccl
