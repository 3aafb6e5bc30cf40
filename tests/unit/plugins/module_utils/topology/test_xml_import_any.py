# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NCCL and lstopo files of any shape, damaged ones, and real ones where the test data is at hand."""

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

# A tree is the list of the trees below it, the empty list a leaf; addresses are dealt out in the order of the walk.
TREES = st.recursive(st.just([]), lambda below: st.lists(below, min_size=1, max_size=4), max_leaves=20)


def nccl_document(forest, expected):
    counter = iter(range(1, 1 << 16))

    def write(tree, above):
        number = next(counter)
        address = f"{number >> 8:04x}:{number & 0xFF:02x}:00.0"
        expected[address] = above
        if not tree:
            return f'<pci busid="{address.upper()}" class="0x030200"/>'
        inner = "".join(write(one, [*above, address]) for one in tree)
        return f'<pci busid="{address}" class="0x060400">{inner}</pci>'

    return f'<system version="1"><cpu numaid="0">{"".join(write(tree, []) for tree in forest)}</cpu></system>'


def lstopo_document(forest, expected):
    counter = iter(range(1, 1 << 16))

    def write(tree, above):
        number = next(counter)
        address = f"0000:{number:02x}:00.0"
        expected[address] = above
        place = f'pci_busid="{address}"'
        if not tree:
            return f'<object type="PCIDev" {place} pci_type="0302 [10de:2330] [10de:16c1] a1"/>'
        inner = "".join(write(one, [*above, address]) for one in tree)
        place += ' pci_type="0604 [1000:c030] [1000:c030] b0"'
        return f'<object type="Bridge" bridge_type="1-1" {place}>{inner}</object>'

    hosts = "".join(
        f'<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[{index:02x}-ff]">{write(tree, [])}</object>'
        for index, tree in enumerate(forest)
    )
    return f'<topology version="2.0"><object type="Machine" cpuset="0x3">{hosts}</object></topology>'


@settings(max_examples=60, deadline=None)
@given(forest=st.lists(TREES, min_size=1, max_size=4), writer=st.sampled_from([nccl_document, lstopo_document]))
def test_any_tree_keeps_its_bridges(forest, writer):
    expected = {}
    topology = load(writer(forest, expected))
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
    for place, length, text in edits:
        start = int(place * len(document))
        document = document[:start] + text + document[start + length :]
    try:
        topology = load(document.encode("utf-8", "surrogatepass"))
    except ValueError as error:
        assert str(error)
    else:
        json.dumps(as_dict(topology))


@settings(max_examples=250, deadline=None)
@given(
    document=st.sampled_from([CLOUD, DUMP, LSTOPO, LSTOPO_3]), place=st.integers(0, 10_000), value=st.text(max_size=12)
)
def test_damaged_attributes_are_read_or_refused(document, place, value):
    """Keeps the document well-formed, so that every attribute meets every value."""
    quoted = [index for index, character in enumerate(document) if character == '"']
    pair = place % (len(quoted) // 2)
    value = value.replace("&", "").replace("<", "").replace('"', "")
    document = document[: quoted[2 * pair] + 1] + value + document[quoted[2 * pair + 1] :]
    try:
        topology = load(document.encode("utf-8", "surrogatepass"))
    except ValueError as error:
        assert str(error)
    else:
        json.dumps(as_dict(topology))


def real_files():
    """The folder with recorded machines, or None: named by the environment, or shared/topologies beside the clone."""
    places = [pathlib.Path(os.environ["LANEWISE_TOPOLOGIES"])] if os.environ.get("LANEWISE_TOPOLOGIES") else []
    places += [parent / "shared" / "topologies" for parent in pathlib.Path(__file__).resolve().parents]
    return next((place for place in places if place.is_dir()), None)


REAL = real_files()
needs_real_files = pytest.mark.skipif(REAL is None, reason="set LANEWISE_TOPOLOGIES to the folder of recorded machines")
TREES_ON_FILE = sorted(REAL.glob("hwloc/*.tar.xz")) if REAL else [None]


def unpacked(archive, folder):
    """The root of a recorded tree."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "fully_trusted_filter"):
            tar.extractall(folder, filter="fully_trusted")
        else:
            tar.extractall(folder)
    return next(found.parent for found in sorted(folder.glob("**/sys")) if (found / "devices").is_dir())


@needs_real_files
def test_real_nccl_files_have_the_expected_devices_and_groups():
    shapes = {}
    for path in sorted(REAL.glob("nccl/*.xml")):
        topology = read_xml(str(path))
        json.dumps(as_dict(topology))
        shapes[path.name] = (
            len(topology.gpus),
            len(topology.nics),
            sorted((group.level, len(group.gpus), len(group.nics)) for group in topology.groups),
        )
    assert shapes == {
        "p4d-24xl-topo.xml": (8, 4, [("PIX", 2, 1)] * 4),
        "ndv4-topo.xml": (8, 8, [("PIX", 2, 2)] * 4),
        "ncv4-topo.xml": (4, 0, []),
        "g5.48xl-topo.xml": (0, 0, []),
    }


@needs_real_files
@pytest.mark.parametrize("archive", TREES_ON_FILE, ids=lambda path: path and path.name)
def test_lstopo_and_sysfs_agree(archive, tmp_path):
    """The file that lstopo wrote of a recorded tree and the tree itself: same levels, same tree, same identity."""
    root = unpacked(archive, tmp_path)
    name = archive.name[: -len(".tar.xz")]
    (document,) = (path for path in archive.parent.iterdir() if path.name.startswith(f"{name}.lstopo"))
    read, imported = probe.probe(str(root), diagnose=diagnose), read_xml(str(document))
    common = [address for address in imported.functions if address in read.functions]
    assert len(common) == len(imported.functions)
    devices = [address for address in common if imported.functions[address].kind != "bridge"]
    assert devices
    for one in common:
        ours, theirs = imported.functions[one], read.functions[one]
        assert (ours.kind, ours.vendor_id, ours.device_id) == (theirs.kind, theirs.vendor_id, theirs.device_id)
        assert ours.class_code in (None, theirs.class_code)
        # a bridge that the recording left out cannot be in the file
        assert ours.bridges == [bridge for bridge in theirs.bridges if bridge in read.functions]
        if theirs.root_complex and ours.root_complex:
            assert ours.root_complex == theirs.root_complex
        if ours.link and theirs.link and theirs.link.gb_per_s:
            assert ours.link.gb_per_s == theirs.link.gb_per_s
    for one in devices:
        for other in devices:
            assert level(imported, one, other) == level(read, one, other), (one, other)
    assert imported.affinity == read.affinity
    assert imported.groups == read.groups
    assert {(one.name, one.address, one.mac) for one in imported.interfaces} <= {
        (one.name, one.address, one.mac) for one in read.interfaces
    }
