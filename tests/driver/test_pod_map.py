# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The map of a claim for its pod, on example machines. Values from the slices of another driver are used only if the
probe confirms them, and unknown values are UNKNOWN."""

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
GPUS = "gpu.nvidia.com"
BUS_ID = "resource.kubernetes.io/pciBusID"


class Api:
    """The slices and claims of an API server; counts what is read."""

    node = NODE

    def __init__(self, slices: t.Sequence[Object] = (), error: Exception | None = None) -> None:
        self.slices, self.error, self.read = list(slices), error, list[str]()
        self.claims: dict[str, Object] = {}

    def slices_of(self, driver: str) -> list[Object]:
        self.read.append(driver)
        if self.error:
            raise self.error
        return [one for one in self.slices if one["spec"]["driver"] == driver]

    def claim(self, namespace: str, name: str, meanwhile: t.Callable[[], None] | None = None) -> Object | None:
        self.read.append(name)
        return self.claims.get(name)


@pytest.fixture(name="machine", scope="module")
def _machine(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    return inventory(tmp_path_factory.mktemp("machine"), "hgx-h100")


def inventory(folder: Path, name: str, **settings: t.Any) -> Inventory:
    tree = build(name, folder / name)
    return Inventory(lambda: Settings(node_name=NODE, **settings), lambda: [], str(tree))


def gpu_slice(devices: t.Mapping[str, t.Mapping[str, str]], generation: int = 1, **pool: t.Any) -> Object:
    """A slice of the GPU driver; attributes are strings."""
    listed = [
        {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}
        for name, attributes in devices.items()
    ]
    named = {"name": NODE, "generation": generation, "resourceSliceCount": 1, **pool}
    return {"spec": {"driver": GPUS, "nodeName": NODE, "pool": named, "devices": listed}}


def uuid(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def published(places: Places) -> Object:
    """All GPUs of the machine, as their driver publishes them."""
    return gpu_slice(
        {f"gpu-{number}": {BUS_ID: address, "uuid": uuid(number)} for number, address in enumerate(sorted(places.gpus))}
    )


def claim(*results: tuple[str, str, str]) -> Object:
    listed = [
        {"driver": driver, "pool": NODE, "device": device, "request": request} for driver, device, request in results
    ]
    return {"metadata": {"uid": UID}, "status": {"allocation": {"devices": {"results": listed}}}}


def device(machine: Inventory, address: str, **more: t.Any) -> DeviceRecord:
    name = f"pci-{address.replace(':', '-').replace('.', '-')}"
    known = machine.device(name)
    assert known, name
    return DeviceRecord(name, NODE, "nic", known, interface=known.interface or "", **more)


def record(machine: Inventory, nics: t.Sequence[str], found: t.Sequence[t.Any] = (), **more: t.Any) -> Record:
    devices = [device(machine, address) for address in nics]
    pod = Pod("ns", "pod", "pod-uid")
    made = Record(UID, "ns", "claim", pod, "boot", devices, pod_claim_name="devices", mapped=True, **more)
    made.peers = list(found)
    add_levels(made.peers, made.devices, machine.places)
    return made


def nearest_nics(machine: Inventory, gpu: str) -> list[str]:
    return list(machine.places.board.nearest_nics(gpu)[1])


def one_pair(machine: Inventory, gpu: int, **more: t.Any) -> Record:
    address = sorted(machine.places.gpus)[gpu]
    api = Api([published(machine.places)])
    found = peers(claim((GPUS, f"gpu-{gpu}", "gpu")), api, lambda: machine.places)
    return record(machine, nearest_nics(machine, address), found, **more)


def test_a_claim_with_only_our_devices_needs_no_request(machine: Inventory) -> None:
    api = Api()

    def places() -> Places:
        raise AssertionError("the node is not asked either")

    assert peers(claim(("lanewise.dev", "pci-0000-18-00-0", "nic")), api, places) == []
    assert api.read == []


def test_every_gpu_goes_with_the_nic_beside_it(machine: Inventory) -> None:
    gpus = sorted(machine.places.gpus)
    assert len(gpus) == 8
    for number, address in enumerate(gpus):
        found = pod_map.content(one_pair(machine, number), NODE)
        [gpu], [nic] = found["gpus"], found["nics"]
        assert (gpu["pciAddress"], gpu["uuid"]) == (address, uuid(number))
        assert gpu["pcieRoot"] == nic["pcieRoot"] and gpu["rail"] == nic["rail"] == number
        assert found["pairs"] == [{"gpu": address, "nic": nic["pciAddress"], "level": "PIX"}]
        assert nic["rdmaDevices"] and "reason" not in gpu


def test_each_gpu_has_its_own_nic_near_or_far(machine: Inventory) -> None:
    """Each GPU gets its own NIC. A GPU without a nearby NIC gets the one that no other GPU has."""
    gpus = sorted(machine.places.gpus)
    api = Api([published(machine.places)])
    asked = claim((GPUS, "gpu-0", "a"), (GPUS, "gpu-5", "b"))
    found = peers(asked, api, lambda: machine.places)
    assert api.read == [GPUS]
    [first], [second], [third] = (nearest_nics(machine, gpus[number]) for number in (0, 5, 7))
    both = record(machine, [second, first], found)
    assert [(one.gpu.address, one.nic.known.address) for one in pod_map.pairs(both)] == [
        (gpus[0], first),
        (gpus[5], second),
    ]
    other = record(machine, [first, third], found)
    assert {one.nic.known.address for one in pod_map.pairs(other)} == {first, third}
    assert [one.level for one in pod_map.pairs(other)] == ["PIX", "NODE"]


@pytest.mark.parametrize("name", ["gb200", "gb300", "dgx-a100", "mi300x", "azure-vm", "epyc-nps4"])
def test_on_every_board_each_gpu_goes_with_a_nearest_nic(name: str, tmp_path: Path) -> None:
    """In a claim with all GPUs and NICs of a machine, each GPU is paired with one of its nearest NICs on the board."""
    one = inventory(tmp_path, name)
    board, published_nics = one.places.board, one.publication.addresses.values()
    nics = [nic for nic in board.nics if nic in published_nics]
    api = Api([published(one.places)])
    asked = claim(*((GPUS, f"gpu-{number}", "gpu") for number in range(len(board.gpus))))
    made = record(one, nics, peers(asked, api, lambda: one.places))
    found = {pair.gpu.address: pair for pair in pod_map.pairs(made)}
    assert board.gpus and nics
    for gpu in board.gpus:
        level, near_ones = nearest({nic: board.level(gpu, nic) for nic in nics})
        if level == "UNKNOWN":
            assert gpu not in found
        else:
            assert (found[gpu].level, found[gpu].nic.known.address in near_ones) == (level, True)


def test_partitions_of_a_gpu_have_one_nic(machine: Inventory) -> None:
    gpu = min(machine.places.gpus)
    uuids = ["MIG-00000000-0000-0000-0000-000000000001", "MIG-00000000-0000-0000-0000-000000000002"]
    slices = [gpu_slice({f"gpu-0-mig-{number}": {BUS_ID: gpu, "uuid": one} for number, one in enumerate(uuids)})]
    asked = claim(*((GPUS, f"gpu-0-mig-{number}", f"part-{number}") for number in range(2)))
    found_peers = peers(asked, Api(slices), lambda: machine.places)
    made = record(machine, nearest_nics(machine, gpu), found_peers, variables=["vllm"])
    found = pod_map.content(made, NODE)
    assert [one["uuid"] for one in found["gpus"]] == uuids
    assert {one["pciAddress"] for one in found["gpus"]} == {gpu} and len(found["pairs"]) == 1
    variables = dict(one.split("=", 1) for one in pod_map.variables(made))
    assert variables["VLLM_GPU_NIC_PCIE_MAPPING"] == f"{gpu}={nearest_nics(machine, gpu)[0]}"
    each = variables["LANEWISE_PAIRS_DEVICES"].split(";")
    assert [one.split(",")[1] for one in each] == [f"uuid={one}" for one in uuids]
    assert all(f"nic={nearest_nics(machine, gpu)[0]}" in one for one in each)
    made.devices = []
    assert "nic=UNKNOWN" in pod_map.variables(made)[1]


BAD: dict[str, tuple[t.Callable[[Places], list[Object]], str]] = {
    "no slice": (lambda places: [], "does not publish the device"),
    "another pool": (
        lambda places: [gpu_slice({"gpu-0": {BUS_ID: min(places.gpus)}}, name="other")],
        "does not publish the device",
    ),
    "gone in the newest generation": (
        lambda places: [published(places), gpu_slice({"gpu-1": {BUS_ID: min(places.gpus)}}, 2)],
        "does not publish the device",
    ),
    "no address": (lambda places: [gpu_slice({"gpu-0": {"uuid": uuid(0)}})], "publishes no PCI address"),
    "no address but a text": (
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
        lambda places: [{"spec": {"driver": GPUS, "pool": 7, "devices": 3}}, {"spec": {"driver": GPUS}}],
        "does not publish the device",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_slices_give_unknown_values(machine: Inventory, case: str) -> None:
    slices, reason = BAD[case]
    api = Api(slices(machine.places))
    found = peers(claim((GPUS, "gpu-0", "gpu")), api, lambda: machine.places)
    nic = nearest_nics(machine, min(machine.places.gpus))
    made = record(machine, nic, found, variables=["nccl", "vllm"])
    [gpu] = pod_map.content(made, NODE)["gpus"]
    assert (gpu["pciAddress"], gpu["rail"], gpu["pcieRoot"], gpu["nearestNICs"]["level"]) == ("UNKNOWN",) * 4
    assert reason in gpu["reason"]
    assert pod_map.pairs(made) == []
    assert "LANEWISE_PAIRS_DEVICES=gpu=UNKNOWN" in pod_map.variables(made)
    assert "unknown which NIC goes with gpu-0" in pod_map.left_out(made)["vllm"]


def test_the_newest_generation_counts(machine: Inventory) -> None:
    """For any order and any number of slices of a pool."""
    first, second, *_rest = sorted(machine.places.gpus)
    old = gpu_slice({"gpu-0": {BUS_ID: first}}, 1)
    new = [gpu_slice({"gpu-0": {BUS_ID: second}}, 2), gpu_slice({"gpu-1": {BUS_ID: first}}, 2)]
    for slices in ([old, *new], [*new, old], [new[1], old, new[0]]):
        [found] = peers(claim((GPUS, "gpu-0", "gpu")), Api(slices), lambda: machine.places)
        assert found.address == second


def test_a_gpu_is_found_by_older_names_of_its_address(machine: Inventory) -> None:
    first = min(machine.places.gpus)
    for name in ("pcieBusID", f"{GPUS}/pcieBusID", "pciAddress"):
        api = Api([gpu_slice({"gpu-0": {name: first.upper()}})])
        [found] = peers(claim((GPUS, "gpu-0", "gpu")), api, lambda: machine.places)
        assert found.address == first


def test_a_refused_request_gives_unknown_values_and_an_outage_is_an_error(machine: Inventory) -> None:
    refusing = Api(error=ApiError(403, "Forbidden", "no " * 500))
    [found] = peers(claim((GPUS, "gpu-0", "gpu")), refusing, lambda: machine.places)
    assert not found.address and "could not be read" in found.unknown and len(found.unknown) < 300
    with pytest.raises(Unreachable):  # kubelet tries again
        peers(claim((GPUS, "gpu-0", "gpu")), Api(error=Unreachable("down")), lambda: machine.places)


def test_a_claim_with_many_drivers_causes_a_limited_number_of_requests(machine: Inventory) -> None:
    asked = claim(*((f"gpu.example{number}.com", "gpu-0", "gpu") for number in range(30)))
    api = Api()
    found = peers(asked, api, lambda: machine.places)
    assert len(api.read) == MAX_DRIVERS
    assert len(found) == 30 and all(one.unknown for one in found)


NAMES = st.sampled_from(["", "driver", "pool", "device", "request", "spec", "devices", "attributes", "uuid", BUS_ID])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
HOSTILE = st.text(max_size=70) | st.sampled_from(["a\nB=c", "GPU-1,nic=x", "../../x", "a" * 65, "x;y=z", "\0"])


@given(
    result=JSON,
    name=HOSTILE,
    uuids=HOSTILE,
    address=HOSTILE,
    other=JSON,
)
def test_nothing_hostile_gets_into_a_variable(
    machine: Inventory, result: t.Any, name: str, uuids: str, address: str, other: t.Any
) -> None:
    gpu = min(machine.places.gpus)
    asked = claim((GPUS, "gpu-0", "gpu"), (GPUS, name, "gpu"), (GPUS, "gpu-1", name), (name, "gpu-0", "gpu"))
    asked["status"]["allocation"]["devices"]["results"].append(result)
    attributes = {"gpu-0": {BUS_ID: gpu, "uuid": uuids}, "gpu-1": {BUS_ID: address, "uuid": uuids}}
    api = Api([gpu_slice(attributes), {"spec": {"driver": GPUS, "pool": {"name": NODE}, "devices": [other]}}])
    found = peers(asked, api, lambda: machine.places)
    made = record(machine, nearest_nics(machine, gpu), found, variables=["nccl", "ucx", "vllm", "nccl_topology"])
    for variable in pod_map.variables(made):
        key, value = variable.split("=", 1)
        assert key.replace("_", "").isalnum() and value.isascii() and value.isprintable() and " " not in value
    [pair] = [one for one in pod_map.variables(made) if one.startswith("LANEWISE_PAIRS_")]
    assert pair.count("uuid=") == pair.count("nic=") == 1
    json.loads(pod_map.encode(made, NODE))
    stored = decode(encode(made))
    add_facts(stored, encode_facts(made))
    assert stored == made


# variables of libraries


def test_variables_are_opt_in(machine: Inventory) -> None:
    found = pod_map.variables(one_pair(machine, 0))
    assert [one.partition("=")[0] for one in found] == ["LANEWISE_MAP", "LANEWISE_PAIRS_DEVICES"]


def test_variables_name_the_nics_for_nccl_and_vllm(machine: Inventory) -> None:
    gpus = sorted(machine.places.gpus)
    found = peers(
        claim((GPUS, "gpu-1", "b"), (GPUS, "gpu-0", "a")), Api([published(machine.places)]), lambda: machine.places
    )
    nics = [nearest_nics(machine, gpus[number])[0] for number in (1, 0)]
    made = record(machine, nics, found, variables=["nccl", "vllm", "nccl_topology"])
    variables = dict(one.split("=", 1) for one in pod_map.variables(made))
    names = sorted(name for one in made.devices for name in one.known.rdma_devices)
    assert len(names) == 2
    # all NICs of the claim, matched exactly, and not those of a single rank
    assert variables["NCCL_IB_HCA"] == f"={','.join(names)}"
    mapping = f"{gpus[0]}={nics[1]},{gpus[1]}={nics[0]}"
    assert variables["VLLM_GPU_NIC_PCIE_MAPPING"] == mapping
    # NCCL has to see all NICs, so vLLM must not choose them for it
    assert variables["VLLM_NIC_SELECTION_VARS"] == "UCX_NET_DEVICES:1"
    assert variables["NCCL_TOPO_FILE"] == "/run/lanewise/nccl-topology.xml"
    made.variables = ["ucx"]
    assert f"UCX_NET_DEVICES={','.join(f'{name}:1' for name in names)}" in pod_map.variables(made)
    assert pod_map.content(made, NODE)["environment"].keys() == {
        "LANEWISE_MAP",
        "LANEWISE_PAIRS_DEVICES",
        "UCX_NET_DEVICES",
    }


def test_a_gpu_without_a_nic_has_no_mapping_at_all(machine: Inventory) -> None:
    """vLLM stops at a GPU that is not in the mapping."""
    made = one_pair(machine, 0, variables=["vllm"])
    made.devices = []
    assert "unknown which NIC" in pod_map.left_out(made)["vllm"]
    assert not any("VLLM" in one for one in pod_map.variables(made))


def pod(*names: str, **status: t.Any) -> Object:
    entries = [{"name": name, "resourceClaimName": name} for name in names]
    made = [{"name": "devices", "resourceClaimName": "claim"}]
    spec = {"resourceClaims": [*entries, {"name": "devices", "resourceClaimTemplateName": "pair"}]}
    return {"spec": spec, "status": {"resourceClaimStatuses": made, **status}}


def chosen(machine: Inventory, made: Record, its_pod: Object, api: Api) -> environment.Choice:
    return environment.choose(("nccl", "vllm"), made, its_pod, t.cast(t.Any, api), machine)


def test_all_claims_of_a_pod_give_nccl_the_same_nics(machine: Inventory) -> None:
    """Every claim of a pod gives NCCL the same list, so it does not matter which one the container runtime uses."""
    gpus = sorted(machine.places.gpus)
    first, second = nearest_nics(machine, gpus[0])[0], nearest_nics(machine, gpus[1])[0]
    api = Api()
    for name, nic in (("claim", first), ("other", second)):
        api.claims[name] = claim(("lanewise.dev", device(machine, nic).device, "nic"))
    values = set()
    for name, nic in (("claim", first), ("other", second)):
        made = dataclasses.replace(record(machine, [nic]), name=name)
        choice = chosen(machine, made, pod("other"), api)
        made.variables, made.left_out, made.beside = choice.variables, choice.left_out, choice.beside
        values.update(one for one in pod_map.variables(made) if one.startswith("NCCL_IB_HCA="))
        assert "vLLM needs all in one claim" in choice.left_out["vllm"]
    [value] = values
    assert len(value.split(",")) == 2


def test_variables_are_left_out_if_another_claim_of_the_pod_is_unknown(machine: Inventory) -> None:
    made = record(machine, [])
    api = Api()
    api.claims["far"] = claim(("lanewise.dev", "pci-0000-ff-1f-0", "nic"))
    api.claims["gpus"] = claim((GPUS, "gpu-0", "gpu"))
    late = pod()
    late["status"] = {}
    for its_pod, reason in (
        (pod("missing"), "does not exist"),
        (pod("far"), "it is unknown which devices claim far"),
        (pod(*map(str, range(40))), "the pod's claims are unknown, or more than"),
        (late, "the pod's claims are unknown"),
        ({"spec": {"resourceClaims": [7]}}, "the pod's claims are unknown"),
    ):
        left_out = chosen(machine, made, its_pod, api).left_out
        assert set(left_out) == {"nccl", "vllm"} and reason in left_out["nccl"], left_out
    extended = pod(extendedResourceClaimStatus={"resourceClaimName": "gpus"})
    assert set(chosen(machine, made, extended, api).left_out) == {"vllm"}
    assert chosen(machine, made, pod(), api).left_out == {}


def test_names_of_claims_cannot_be_confused(machine: Inventory) -> None:
    made = one_pair(machine, 0)
    names = set()
    for template, name in (("a-b", "x"), ("", "a-b"), ("claim-a-b", "x")):
        one = dataclasses.replace(made, pod_claim_name=template, name=name)
        names.add(pod_map.variables(one)[1].partition("=")[0])
    assert names == {"LANEWISE_PAIRS_A_B", "LANEWISE_CLAIM_PAIRS_A_B", "LANEWISE_PAIRS_CLAIM_A_B"}
    dotted = dataclasses.replace(made, pod_claim_name="", name="a.b")
    assert [one.partition("=")[0] for one in pod_map.variables(dotted)] == ["LANEWISE_MAP"]


# files


def test_a_claim_mounts_its_map_and_the_nccl_topology(machine: Inventory, tmp_path: Path) -> None:
    paths = Paths(plugin_dir=tmp_path / "plugin", run_dir=tmp_path / "run", cdi_dir=tmp_path / "cdi")
    files = ClaimFiles(paths, None, node=NODE)
    made = one_pair(machine, 0, variables=["nccl_topology"])
    files.write_nccl_topology("<system/>")
    files.write(made)
    edits = json.loads(paths.cdi_spec(UID).read_bytes())["containerEdits"]
    mounts = {one["containerPath"]: one for one in edits["mounts"]}
    assert mounts["/run/lanewise/map/resourceclaimtemplates/devices.json"]["hostPath"] == str(paths.pod_map(UID))
    assert mounts["/run/lanewise/nccl-topology.xml"]["hostPath"] == str(paths.nccl_topology)
    assert all("ro" in one["options"] for one in mounts.values())
    assert edits["env"] == pod_map.variables(made)
    before = paths.pod_map(UID).stat().st_ino
    assert json.loads(paths.pod_map(UID).read_text())["nics"][0]["addresses"] == "UNKNOWN"
    made.devices[0].network = {"interfaceName": "net1", "ips": ["192.0.2.7/24"], "hardwareAddress": "02:00:00:00:00:01"}
    files.write_metadata(made)
    [nic] = json.loads(paths.pod_map(UID).read_text())["nics"]
    assert (nic["addresses"], nic["mac"]) == (["192.0.2.7/24"], "02:00:00:00:00:01")
    assert paths.pod_map(UID).stat().st_ino == before, "containers have it mounted"
    files.remove(UID)
    assert not paths.pod_map(UID).exists()


def test_facts_for_the_map_are_stored_beside_the_record(machine: Inventory, tmp_path: Path) -> None:
    """A claim from a release without maps gets no map, because the map would say that the claim has no GPU. The record
    itself has no field that such a release does not know."""
    paths = Paths(plugin_dir=tmp_path / "plugin", run_dir=tmp_path / "run", cdi_dir=tmp_path / "cdi")
    files = ClaimFiles(paths, None, node=NODE)
    made = one_pair(machine, 0, variables=["nccl"], left_out={"ucx": "why"}, beside=["mlx5_7"])
    assert not json.loads(encode(made)).keys() & {"mapped", "peers", "variables", "left_out", "beside"}
    old = decode(encode(made))
    files.read_facts(old)
    assert not old.mapped
    files.write(old)
    spec = json.loads(paths.cdi_spec(UID).read_bytes())
    assert list(spec["containerEdits"]) == ["hooks"]
    assert not paths.pod_map(UID).exists()
    files.write_facts(made)
    read = decode(encode(made))
    files.read_facts(read)
    assert read == made
    for content in (b"", b"{}", b'{"schema": 1, "peers": 7}', b'{"schema": 99}'):
        paths.pod_facts(UID).write_bytes(content)
        read = decode(encode(made))
        files.read_facts(read)
        assert not read.mapped and not read.peers
    alone = record(machine, nearest_nics(machine, min(machine.places.gpus)))
    files.write_facts(alone)
    assert not paths.pod_facts(UID).exists(), "a claim with only NICs needs no facts file"
    files.write(alone)
    read = decode(encode(alone))
    files.read_facts(read)
    assert read == alone


def test_the_nccl_topology_is_written_for_nvidia_gpus_only(tmp_path: Path) -> None:
    wanted = inventory(tmp_path, "hgx-h100", pod_environment=("nccl_topology",)).places
    assert wanted.nccl.startswith("<system")
    other = inventory(tmp_path, "mi300x", pod_environment=("nccl_topology",)).places
    assert not other.nccl and "not all NVIDIA's" in other.no_nccl_reason
    assert not inventory(tmp_path, "hgx-h100").places.nccl


def test_a_setting_that_is_added_later_takes_effect(tmp_path: Path) -> None:
    current = [Settings(node_name=NODE)]
    one = Inventory(lambda: current[0], lambda: [], str(build("hgx-h100", tmp_path / "m")))
    assert not one.places.nccl
    current[0] = dataclasses.replace(current[0], pod_environment=("nccl_topology",))
    assert one.places.nccl
