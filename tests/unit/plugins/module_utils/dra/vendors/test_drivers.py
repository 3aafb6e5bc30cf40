# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is known about drivers: attributes by version, filters, and drivers that a site describes."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import limits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.drivers import DRIVERS, knowledge
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.knowledge import (
    ALIGNMENTS,
    COMPARISONS,
    CONVERSIONS,
    KINDS,
    NUMA_NODE,
    NUMA_NODE_DRANET,
    PCI_BUS_ID,
    PCIE_ROOT,
    TYPES,
    parse_version,
    version_order,
)


def problem_fixes(name: str, options: t.Any) -> list[str]:
    with pytest.raises(Problems) as caught:
        knowledge(name, options)
    return [problem.fix for problem in caught.value.problems]


def problem_paths(name: str, options: t.Any) -> list[str]:
    with pytest.raises(Problems) as caught:
        knowledge(name, options)
    return [problem.path for problem in caught.value.problems]


def test_nvidias_calendar_versions_are_older_than_its_later_versions_with_smaller_numbers() -> None:
    released = ["0.1.0", "25.3.0-rc.5", "25.3.0", "25.8.1", "25.12.0", "0.4.0-rc.1", "0.4.0", "0.4.1", "0.5.0", "1.0.0"]
    version_series = DRIVERS["gpu.nvidia.com"].version_series
    assert sorted(reversed(released), key=lambda version: version_order(version, version_series)) == released
    assert version_order("main", version_series) > version_order("99.0.0", version_series)


@pytest.mark.parametrize(
    ("lower", "higher"),
    [("1.2.3", "1.2.4"), ("1.2.3", "1.10.0"), ("1.0.0-rc.1", "1.0.0"), ("1.0.0-rc.2", "1.0.0-rc.10"), ("1.0-a", "1.0")],
)
def test_versions_are_ordered_by_semantic_precedence(lower: str, higher: str) -> None:
    assert parse_version(lower) < parse_version(higher)


@pytest.mark.parametrize(
    ("name", "version", "level", "expected"),
    [
        ("gpu.nvidia.com", "25.3.0", "pcie_root", [PCIE_ROOT]),
        ("gpu.nvidia.com", "25.12.0", "numa_node", []),
        ("gpu.nvidia.com", "v0.4.1", "numa_node", []),
        ("gpu.nvidia.com", "0.5.0", "numa_node", [NUMA_NODE]),
        ("gpu.amd.com", "1.0.0", "numa_node", ["gpu.amd.com/numaNode"]),
        ("gpu.intel.com", "0.9.1", "pcie_root", []),
        ("gpu.intel.com", "0.10.0", "pcie_root", [PCIE_ROOT]),
        ("gaudi.intel.com", "0.7.0", "pcie_root", [PCIE_ROOT]),
        ("dra.cpu", "0.2.0", "numa_node", [NUMA_NODE_DRANET]),
        ("dra.cpu", "0.2.1", "numa_node", [NUMA_NODE, NUMA_NODE_DRANET]),
        ("dra.cpu", "0.2.0", "pcie_root", []),
        ("dra.net", "1.4.0", "numa_node", [NUMA_NODE_DRANET]),
        ("dra.net", "main", "numa_node", [NUMA_NODE, NUMA_NODE_DRANET]),
        ("sriovnetwork.k8snetworkplumbingwg.io", "main", "numa_node", [NUMA_NODE_DRANET]),
        ("lanewise.dev", None, "numa_node", [NUMA_NODE, NUMA_NODE_DRANET]),
    ],
)
def test_the_version_of_a_driver_decides_the_attributes_of_a_level(
    name: str, version: str | None, level: str, expected: list[str]
) -> None:
    assert knowledge(name, {"version": version} if version else {}).alignments(level) == expected


def test_an_attribute_with_a_list_of_values_aligns_only_with_lists() -> None:
    assert knowledge("dra.cpu", {"version": "0.2.0"}).alignments("pcie_root", lists=True) == [PCIE_ROOT]


def test_nvidias_attribute_of_the_pci_address_has_another_name_from_25_12_on() -> None:
    old = knowledge("gpu.nvidia.com", {"version": "25.8.0"}).filter("gpu", "pci_address")
    new = knowledge("gpu.nvidia.com", {"version": "25.12.0"}).filter("gpu", "pci_address")
    assert old and new
    assert (old.name, new.name) == ("gpu.nvidia.com/pcieBusID", PCI_BUS_ID)


def test_a_filter_for_partitions_selects_the_type_mig() -> None:
    nvidia = knowledge("gpu.nvidia.com", {"version": "main"})
    assert [(term.name, term.value) for term in nvidia.terms("gpu", ["model"])] == [("gpu.nvidia.com/type", "gpu")]
    assert [(term.name, term.value) for term in nvidia.terms("gpu", ["partition"])] == [("gpu.nvidia.com/type", "mig")]


@pytest.mark.parametrize("name", sorted(DRIVERS))
def test_the_names_and_types_in_the_knowledge_of_a_driver_are_valid(name: str) -> None:
    known = knowledge(name, {"version": "main"})
    assert not limits.driver_name(name)
    assert set(known.kinds) <= set(KINDS) and known.source
    assert set(known.align) <= set(ALIGNMENTS)
    for kind, served in known.kinds.items():
        for filter_tests in served.filters.values():
            for filter_test in filter_tests:
                assert not limits.fully_qualified_name(filter_test.name)
                assert filter_test.type in TYPES and filter_test.compare in COMPARISONS
                assert filter_test.conversion in CONVERSIONS
                assert (filter_test.source == "capacity") == (filter_test.type == "quantity")
        for term in (*served.terms, *(term for terms in served.terms_by_filter.values() for term in terms)):
            assert not limits.fully_qualified_name(term.name)
        for key in served.capacities.values():
            assert not limits.qualified_name(key)
        for level in ALIGNMENTS:
            assert known.alignments(level) or known.hint(level), (kind, level)


def test_drivers_whose_devices_cannot_be_predicted_are_listed() -> None:
    without_offers = ["compute-domain.nvidia.com", "npu.furiosa.ai", "qat.intel.com", "tpu.google.com"]
    assert offers.unpredictable(DRIVERS) == without_offers
    assert offers.unpredictable(["gpu.nvidia.com", "acme.example.com"]) == ["acme.example.com"]


@pytest.mark.parametrize(
    ("name", "version", "warned"),
    [
        ("gpu.nvidia.com", "9.9.9", True),
        ("gpu.nvidia.com", "0.6.0-rc.1", True),
        ("gpu.nvidia.com", "0.5.3", False),
        ("gpu.nvidia.com", "25.8.1", False),
        ("gpu.nvidia.com", "main", False),
        ("dra.net", "1.5.0", True),
        ("dra.net", "v1.4.9", False),
        ("lanewise.dev", "9.9.9", True),
        ("gpu.nvidia.com", "25.10.0", True),
        ("gpu.nvidia.com", "0.4.7", False),
        ("gpu.intel.com", "0.10.2", False),
    ],
)
def test_versions_newer_than_the_newest_known_one_give_a_warning(name: str, version: str, warned: bool) -> None:
    warning = knowledge(name, {"version": version}).version_warning()
    assert bool(warning) is warned
    if warned:
        assert version in warning and f"dra_claims_drivers.{name}.version" in warning


@pytest.mark.parametrize(("name", "version"), [("dra.net", "99.0.0"), ("gpu.nvidia.com", "0.99.0")])
def test_a_newer_version_is_assumed_to_publish_the_same_as_the_newest_known_build(name: str, version: str) -> None:
    newer, newest_build = knowledge(name, {"version": version}), knowledge(name, {"version": "main"})
    assert f"{version} is assumed to publish the same as the newest known build. " in newer.version_warning()
    for kind, tables in newer.kinds.items():
        assert all(newer.filter(kind, entry) == newest_build.filter(kind, entry) for entry in tables.filters)
    assert all(newer.alignments(level, True) == newest_build.alignments(level, True) for level in ALIGNMENTS)
    newest_release = knowledge("dra.net", {"version": DRIVERS["dra.net"].newest})  # its newest build publishes more
    assert newest_release.alignments("numa_node") != knowledge("dra.net", {"version": "main"}).alignments("numa_node")


def test_the_newest_known_version_of_lanewise_dev_is_that_of_the_collection() -> None:
    galaxy = Path(__file__).resolve().parents[6] / "galaxy.yml"
    assert f"version: {DRIVERS['lanewise.dev'].newest}\n" in galaxy.read_text()


def test_intels_gpus_exclude_vfs_and_have_the_standard_pci_address_from_0_10_on() -> None:
    intel = knowledge("gpu.intel.com", {"version": "0.11.0"})
    assert [(term.name, term.value, term.compare) for term in intel.terms("gpu")] == [
        ("gpu.intel.com/type", "vf", "not_equals")
    ]
    for version, name in (("0.9.0", "gpu.intel.com/pciAddress"), ("0.10.0", PCI_BUS_ID)):
        address = knowledge("gpu.intel.com", {"version": version}).filter("gpu", "pci_address")
        assert address and address.name == name


@pytest.mark.parametrize(
    ("version", "has_uuid"), [("0.5.0", True), ("0.6.0", False), ("0.6.1", False), ("0.7.0", True)]
)
def test_gaudi_0_6_has_no_uuid(version: str, has_uuid: bool) -> None:
    assert bool(knowledge("gaudi.intel.com", {"version": version}).filter("gpu", "uuid")) is has_uuid


@pytest.mark.parametrize(
    ("name", "version", "hint"),
    [
        ("gaudi.intel.com", "0.6.1", "uuid"),
        ("gaudi.intel.com", "0.6.1", "numa_node"),
        ("gpu.intel.com", "0.9.1", "numa_node"),
    ],
)
def test_a_hint_recommends_the_pcie_root_only_with_the_first_version_that_publishes_it(
    name: str, version: str, hint: str
) -> None:
    known = knowledge(name, {"version": version})
    text = known.hint(hint)
    since = DRIVERS[name].align["pcie_root"][0].since
    assert not known.alignments("pcie_root")
    assert text and ("pcie_root" not in text or f"from {since} on, align on pcie_root" in text)


def test_the_fix_for_an_invalid_version_fits_the_value() -> None:
    as_string = 'write all numbers in quotes: "X.Y.Z"'
    assert problem_fixes("gpu.nvidia.com", {"version": 25.3}) == [as_string]
    form = 'write "X.Y" or "X.Y.Z", or main for the newest build'
    for text in ("newest", "25", "0.5.x", "0.5.0\n"):
        assert problem_fixes("gpu.nvidia.com", {"version": text}) == [form]
    assert knowledge("gpu.nvidia.com", {"version": "25.3"}).version == "25.3"


def test_a_driver_name_must_match_as_a_whole() -> None:
    described = {"knowledge": {"vendors": ["10de"]}}
    assert not knowledge("acme.example.com", described).kinds
    assert problem_paths("acme.example.com\n", described) == ["dra_claims_drivers.acme.example.com\n"]


def test_an_attribute_name_and_a_vendor_must_match_as_a_whole() -> None:
    description = {"align": {"pcie_root": ["root\n"]}, "vendors": ["10de\n"]}
    paths = ["knowledge.align.pcie_root[0]", "knowledge.vendors[0]"]
    found = problem_paths("acme.example.com", {"knowledge": description})
    assert found == [f"dra_claims_drivers.acme.example.com.{path}" for path in paths]


def test_the_error_for_a_misspelled_driver_suggests_the_right_name() -> None:
    with pytest.raises(Problems) as caught:
        knowledge("gpu.nvidia.co", {"version": "0.5.0"})
    assert "did you mean 'gpu.nvidia.com'?" in caught.value.problems[0].fix


def test_errors_in_options_have_their_path() -> None:
    assert problem_paths("gpu.nvidia.com", {}) == ["dra_claims_drivers.gpu.nvidia.com"]
    assert problem_paths("gpu.nvidia.com", {"version": "0.1.0"}) == ["dra_claims_drivers.gpu.nvidia.com.version"]
    assert problem_paths("dra.net", {"version": "newest"}) == ["dra_claims_drivers.dra.net.version"]
    assert problem_paths("acme.example.com", {}) == ["dra_claims_drivers.acme.example.com"]
    assert problem_paths("lanewise.dev", {"verion": "1"}) == ["dra_claims_drivers.lanewise.dev.verion"]
    invalid_knowledge = {
        "kinds": {"gpu": {"terms": [{"name": "a b", "value": 1}], "filters": {"model": {"name": "m", "type": "x"}}}}
    }
    assert problem_paths("acme.example.com", {"knowledge": invalid_knowledge}) == [
        "dra_claims_drivers.acme.example.com.knowledge.kinds.gpu.filters.model.type",
        "dra_claims_drivers.acme.example.com.knowledge.kinds.gpu.terms[0].name",
    ]
    assert problem_paths("acme.example.com", {"knowledge": {"vendors": ["10DEX"], "align": {"rack": []}}}) == [
        "dra_claims_drivers.acme.example.com.knowledge.align.rack",
        "dra_claims_drivers.acme.example.com.knowledge.vendors[0]",
    ]


@pytest.mark.parametrize("engine", [["mps"], {"name": "mps"}, 1])
def test_an_engine_that_is_not_a_string_is_refused(engine: object) -> None:
    options = {"version": "0.5.0", "engine": engine}
    assert problem_paths("gpu.nvidia.com", options) == ["dra_claims_drivers.gpu.nvidia.com.engine"]


def test_options_that_are_not_a_mapping_are_refused() -> None:
    with pytest.raises(Problems) as caught:
        knowledge("gpu.nvidia.com", t.cast(t.Any, "0.5.0"))
    text = "dra_claims_drivers.gpu.nvidia.com: must be a mapping, not the string '0.5.0' (write {version: ...})"
    assert str(caught.value) == text


def test_unknown_options_may_have_names_of_any_type() -> None:
    paths = [f"dra_claims_drivers.lanewise.dev.{name}" for name in ("1", "verion")]
    assert problem_paths("lanewise.dev", {"verion": "1", 1: "verion"}) == paths


def test_a_site_can_describe_an_unknown_driver() -> None:
    known = knowledge(
        "tpu.example.com",
        {
            "knowledge": {
                "kinds": {
                    "gpu": {
                        "terms": [{"name": "type", "value": "chip"}],
                        "filters": {"model": {"name": "generation", "compare": "contains"}, "uuid": "serial"},
                        "capacities": {"memory": "hbm"},
                    }
                },
                "align": {"pcie_root": [PCIE_ROOT]},
                "vendors": ["1AE0"],
            }
        },
    )
    model = known.filter("gpu", "model")
    assert model and (model.name, model.compare) == ("tpu.example.com/generation", "contains")
    assert known.kinds["gpu"].capacities == {"memory": "hbm"}
    assert known.alignments("pcie_root") == [PCIE_ROOT] and known.vendors == ("1ae0",)
    assert known.filter("gpu", "rail") is None and known.filter("nic", "model") is None


def test_a_site_can_add_to_the_knowledge_of_a_driver() -> None:
    known = knowledge(
        "gpu.intel.com", {"version": "0.11.0", "knowledge": {"align": {"numa_node": ["numaNode", NUMA_NODE]}}}
    )
    assert known.alignments("numa_node") == ["gpu.intel.com/numaNode", NUMA_NODE]
    assert known.alignments("pcie_root") == [PCIE_ROOT]


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"version": 1.1}, "version"),  # YAML reads 1.10 as 1.1
        ({"version": "0.2.0", "group_by": "sockets"}, "group_by"),
        ({"version": "0.2.0", "reserved_cpus": 1}, "reserved_cpus"),
        ({"version": "0.2.0", "reserved_cpus": "first"}, "reserved_cpus"),
    ],
)
def test_an_option_with_an_invalid_value_is_refused(options: dict[str, t.Any], option: str) -> None:
    with pytest.raises(Problems) as caught:
        knowledge("dra.cpu", options)
    assert [problem.path for problem in caught.value.problems] == [f"dra_claims_drivers.dra.cpu.{option}"]
