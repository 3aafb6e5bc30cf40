# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The import of random, damaged and recorded NCCL and lstopo files. Recorded files are not in the repository."""

from __future__ import annotations

import json
import os
import pathlib
import tarfile

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology import probe
from ansible_collections.lanewise.dra.plugins.module_utils.topology.diagnosis.diagnose import diagnose
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.xml_import.read import read_xml
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.xml_documents import (
    CLOUD,
    DUMP,
    LSTOPO,
    LSTOPO_3,
    level,
    load,
)
from hypothesis import given, settings
from hypothesis import strategies as st

# A tree is the list of its subtrees, and a leaf is an empty list. Addresses are assigned depth-first.
TREES = st.recursive(st.just([]), lambda below: st.lists(below, min_size=1, max_size=4), max_leaves=20)


def nccl_document(trees, expected):
    """An NCCL file of these trees. Adds to `expected` the bridges above each address."""
    counter = iter(range(1, 1 << 16))

    def element(tree, above):
        number = next(counter)
        address = f"{number >> 8:04x}:{number & 0xFF:02x}:00.0"
        expected[address] = above
        if not tree:
            return f'<pci busid="{address.upper()}" class="0x030200"/>'
        inner = "".join(element(child, [*above, address]) for child in tree)
        return f'<pci busid="{address}" class="0x060400">{inner}</pci>'

    return f'<system version="1"><cpu numaid="0">{"".join(element(tree, []) for tree in trees)}</cpu></system>'


def lstopo_document(trees, expected):
    """An lstopo file of these trees. Adds to `expected` the bridges above each address."""
    counter = iter(range(1, 1 << 16))

    def element(tree, above):
        number = next(counter)
        address = f"0000:{number:02x}:00.0"
        expected[address] = above
        bus_id = f'pci_busid="{address}"'
        if not tree:
            return f'<object type="PCIDev" {bus_id} pci_type="0302 [10de:2330] [10de:16c1] a1"/>'
        inner = "".join(element(child, [*above, address]) for child in tree)
        identity = 'pci_type="0604 [1000:c030] [1000:c030] b0"'
        return f'<object type="Bridge" bridge_type="1-1" {bus_id} {identity}>{inner}</object>'

    hosts = "".join(
        f'<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[{index:02x}-ff]">{element(tree, [])}</object>'
        for index, tree in enumerate(trees)
    )
    return f'<topology version="2.0"><object type="Machine" cpuset="0x3">{hosts}</object></topology>'


@settings(max_examples=60, deadline=None)
@given(trees=st.lists(TREES, min_size=1, max_size=4), write_document=st.sampled_from([nccl_document, lstopo_document]))
def test_functions_of_any_tree_have_the_bridges_above_them(trees, write_document):
    expected = {}
    topology = load(write_document(trees, expected))
    assert {address: function.bridges for address, function in topology.functions.items()} == expected
    leaves = set(expected) - {bridge for bridges in expected.values() for bridge in bridges}
    assert {gpu.address for gpu in topology.gpus} == leaves
    assert [gpu.index for gpu in topology.gpus] == list(range(len(leaves)))


EDITS = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 12),
        st.one_of(
            st.text(max_size=6),
            st.sampled_from(['"', "<", "/>", "</object>", "<pci/>", "-1", "0x", "99999999999", "\0", "&#0;", "&x;"]),
        ),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=250, deadline=None)
@given(document=st.sampled_from([CLOUD, DUMP, LSTOPO, LSTOPO_3]), edits=EDITS)
def test_damaged_files_are_read_or_refused(document, edits):
    for position, length, text in edits:
        start = int(position * len(document))
        document = document[:start] + text + document[start + length :]
    try:
        topology = load(document.encode("utf-8", "surrogatepass"))
    except ValueError as error:
        assert str(error)
    else:
        json.dumps(as_dict(topology))


@settings(max_examples=250, deadline=None)
@given(
    document=st.sampled_from([CLOUD, DUMP, LSTOPO, LSTOPO_3]), number=st.integers(0, 10_000), value=st.text(max_size=12)
)
def test_damaged_attributes_are_read_or_refused(document, number, value):
    """The document stays well-formed, so that the importer reads the damaged attribute."""
    quotes = [index for index, character in enumerate(document) if character == '"']
    attribute = number % (len(quotes) // 2)
    value = value.replace("&", "").replace("<", "").replace('"', "")
    document = document[: quotes[2 * attribute] + 1] + value + document[quotes[2 * attribute + 1] :]
    try:
        topology = load(document.encode("utf-8", "surrogatepass"))
    except ValueError as error:
        assert str(error)
    else:
        json.dumps(as_dict(topology))


def recordings_folder():
    """The folder with recorded machines, or None: LANEWISE_TOPOLOGIES, or shared/topologies in or above the clone."""
    folders = [pathlib.Path(os.environ["LANEWISE_TOPOLOGIES"])] if os.environ.get("LANEWISE_TOPOLOGIES") else []
    folders += [parent / "shared" / "topologies" for parent in pathlib.Path(__file__).resolve().parents]
    return next((folder for folder in folders if folder.is_dir()), None)


RECORDINGS = recordings_folder()
needs_recordings = pytest.mark.skipif(
    RECORDINGS is None, reason="set LANEWISE_TOPOLOGIES to the folder of recorded machines"
)
RECORDED_TREES = sorted(RECORDINGS.glob("hwloc/*.tar.xz")) if RECORDINGS else [None]


def unpack(archive, folder):
    """Unpack a recorded tree. Returns its root."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "fully_trusted_filter"):
            tar.extractall(folder, filter="fully_trusted")
        else:
            tar.extractall(folder)
    return next(found.parent for found in sorted(folder.glob("**/sys")) if (found / "devices").is_dir())


@needs_recordings
def test_recorded_nccl_files_have_the_expected_devices_and_groups():
    found = {}
    for path in sorted(RECORDINGS.glob("nccl/*.xml")):
        topology = read_xml(str(path))
        json.dumps(as_dict(topology))
        found[path.name] = (
            len(topology.gpus),
            len(topology.nics),
            sorted((group.level, len(group.gpus), len(group.nics)) for group in topology.groups),
        )
    assert found == {
        "p4d-24xl-topo.xml": (8, 4, [("PIX", 2, 1)] * 4),
        "ndv4-topo.xml": (8, 8, [("PIX", 2, 2)] * 4),
        "ncv4-topo.xml": (4, 0, []),
        "g5.48xl-topo.xml": (0, 0, []),
    }


@needs_recordings
@pytest.mark.parametrize("archive", RECORDED_TREES, ids=lambda path: path and path.name)
def test_an_lstopo_file_and_its_recorded_tree_agree(archive, tmp_path):
    """A recorded tree and the file that lstopo wrote for it give the same identities, bridges and levels."""
    root = unpack(archive, tmp_path)
    name = archive.name[: -len(".tar.xz")]
    (document,) = (path for path in archive.parent.iterdir() if path.name.startswith(f"{name}.lstopo"))
    probed, imported = probe.probe(str(root), diagnose=diagnose), read_xml(str(document))
    common = [address for address in imported.functions if address in probed.functions]
    assert len(common) == len(imported.functions)
    devices = [address for address in common if imported.functions[address].kind != "bridge"]
    assert devices
    for address in common:
        found, expected = imported.functions[address], probed.functions[address]
        assert (found.kind, found.vendor_id, found.device_id) == (expected.kind, expected.vendor_id, expected.device_id)
        assert found.class_code in (None, expected.class_code)
        # a bridge that the recording left out cannot be in the file
        assert found.bridges == [bridge for bridge in expected.bridges if bridge in probed.functions]
        if expected.root_complex and found.root_complex:
            assert found.root_complex == expected.root_complex
        if found.link and expected.link and expected.link.gb_per_s:
            assert found.link.gb_per_s == expected.link.gb_per_s
    for first in devices:
        for second in devices:
            assert level(imported, first, second) == level(probed, first, second), (first, second)
    assert imported.affinity == probed.affinity
    assert imported.groups == probed.groups
    assert {(interface.name, interface.address, interface.mac) for interface in imported.interfaces} <= {
        (interface.name, interface.address, interface.mac) for interface in probed.interfaces
    }
