# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The settings file: all errors are reported together, each with its path. An invalid new file changes nothing."""

from __future__ import annotations

import os
import typing as t
from fractions import Fraction
from ipaddress import ip_network
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from lanewise_driver.base.settings import Settings, SettingsFile, load, read
from lanewise_driver.dra.config.rail_range import RailRange
from lanewise_driver.dra.kube.problems import Problems
from lanewise_driver.topology.publish_shares import ShareRule
from lanewise_driver.topology.selector import Selector

EVERY_SETTING = """
node_name: worker-1
kubeconfig: /etc/lanewise/kubeconfig
token_file: /etc/lanewise/token
renew_token: false
log_level: debug
metrics_address: "[::1]:9000"
include:
  - {address: "0000:8a:*", type: [pf, vf], min_speed_mbps: 100000}
  - rail: [0, 1]
    numa_node: 0
exclude:
  - {driver: igb, model: "*I210*", vendor_id: "8086", device_id: "1533", link_layer: ethernet, interface: eno*}
management: [eno1, "0000:01:*"]
default_routes: main
virtual_interfaces: [eth*]
shares: [{select: {type: pf}, factor: 1.5}]
reset: always
rdma_management: true
keep_ib_interfaces: true
pod_environment: [nccl, nccl_topology, ucx]
rails: {"0000:8a:00.0": 3, eth5: 4}
rail_addresses: [{rail: 3, range: 10.100.4.64/26, pool: 10.100.0.0/16}]
aliases: {"0000:8a:00.0": storage, eth5: backup}
locality: [{address: "0000:8b:00.0", numa_node: 1}]
"""


def write_settings(folder: Path, text: str) -> Path:
    path = folder / "driver.yml"
    path.write_text(text)
    return path


def error_paths(data: t.Any) -> list[str]:
    """The paths of the errors in settings, in the order in which they are reported."""
    with pytest.raises(Problems) as caught:
        read(data)
    return [problem.path for problem in caught.value.problems]


def test_a_file_with_every_setting_is_read(tmp_path: Path) -> None:
    found = load(write_settings(tmp_path, EVERY_SETTING))
    assert found == Settings(
        node_name="worker-1",
        kubeconfig="/etc/lanewise/kubeconfig",
        token_file="/etc/lanewise/token",
        renew_token=False,
        log_level="debug",
        metrics_address=("::1", 9000),
        include=(
            Selector(address=("0000:8a:*",), type=("pf", "vf"), min_speed_mbps=100000),
            Selector(rail=(0, 1), numa_node=(0,)),
        ),
        exclude=(
            Selector(
                driver=("igb",),
                model=("*I210*",),
                vendor_id=("8086",),
                device_id=("1533",),
                link_layer=("ethernet",),
                interface=("eno*",),
            ),
        ),
        management=("eno1", "0000:01:*"),
        default_routes="main",
        virtual_interfaces=("eth*",),
        shares=(ShareRule(Selector(type=("pf",)), factor=Fraction(3, 2)),),
        reset="always",
        rdma_management=True,
        keep_ib_interfaces=True,
        pod_environment=("nccl", "nccl_topology", "ucx"),
        rails=(("0000:8a:00.0", 3), ("eth5", 4)),
        rail_addresses=(RailRange(3, ip_network("10.100.4.64/26"), ip_network("10.100.0.0/16"), 16),),
        aliases=(("0000:8a:00.0", "storage"), ("eth5", "backup")),
        locality=({"address": "0000:8b:00.0", "numa_node": 1},),
    )
    assert found.node == "worker-1"
    assert found.interface_rails == {"eth5": 4}
    assert found.locality_overrides == [
        {"address": "0000:8b:00.0", "numa_node": 1},
        {"address": "0000:8a:00.0", "rail": 3},
    ]


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([{"rail": 0, "range": "10.0.0.0/26", "pool": "10.1.0.0/16"}], "10.0.0.0/26 is not in the pool 10.1.0.0/16"),
        ([{"rail": 0, "range": "10.0.0.0/16", "pool": "10.0.0.0/16"}], "has more than 4096 addresses"),
        ([{"rail": 0, "range": "10.0.0.0/26", "pool": "fd00::/64"}], "is not in the pool"),
        ([{"rail": 0, "pool": "10.0.0.0/16"}], "range: is missing"),
        ([{"rail": 2000, "range": "10.0.0.0/26", "pool": "10.0.0.0/16"}], "must be from 0 to 1023"),
        (
            [{"rail": rail, "range": "10.0.0.0/26", "pool": "10.0.0.0/16"} for rail in (0, 1)],
            "10.0.0.0/26 overlaps 10.0.0.0/26 of rail 0",
        ),
        (
            [{"rail": 0, "range": f"10.0.{number}.0/26", "pool": "10.0.0.0/16"} for number in (0, 1)],
            "rail 0 already has the ipv4 range 10.0.0.0/26",
        ),
    ],
)
def test_invalid_ranges_of_rail_addresses_are_refused(ranges: list[dict[str, t.Any]], message: str) -> None:
    with pytest.raises(Problems) as caught:
        read({"rail_addresses": ranges})
    assert message in str(caught.value)


def test_a_missing_or_empty_file_means_defaults(tmp_path: Path) -> None:
    assert (
        load(tmp_path / "none")
        == load(write_settings(tmp_path, ""))
        == load(write_settings(tmp_path, "# nothing\n"))
        == Settings()
    )
    assert Settings().node == os.uname().nodename.lower()
    assert read({"metrics_address": ""}).metrics_address is None


def test_all_errors_are_reported_together() -> None:
    assert error_paths(
        {
            "node_name": "Worker",
            "kubeconfig": "relative",
            "renew_token": "yes",
            "log_level": "loud",
            "metrics_address": "localhost:1",
            "include": [{}, {"adress": "x"}, {"rail": -1, "min_speed_mbps": "fast"}, "all"],
            "exclude": {"type": "pf"},
            "management": [1],
            "default_routes": "some",
            "rails": {"eth0": 1, "0000:8a:00.0": -1},
            "aliases": {"a name too long for one": "x", "eth0": "x" * 65, "eth1": "same", "eth2": "same"},
            "locality": [{"address": "8a:00.0", "rail": 1}, 7],
            "includes": [],
        }
    ) == [
        "includes",
        "node_name",
        "kubeconfig",
        "renew_token",
        "log_level",
        "metrics_address",
        "include[0]",
        "include[1].adress",
        "include[1]",
        "include[2].rail",
        "include[2].min_speed_mbps",
        "include[3]",
        "exclude",
        "management[0]",
        "default_routes",
        "rails['0000:8a:00.0']",
        "aliases['a name too long for one']",
        "aliases.eth0",
        "aliases.eth2",
        "locality[0].address",
        "locality[1]",
        "rails.eth0",
    ]


@pytest.mark.parametrize(
    "text", ["a: [", "- x", "3", "a: !!python/object:os.system x", "\t", "node_name: 5", "? [a]\n: b"]
)
def test_a_file_that_does_not_contain_settings_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Problems):
        load(write_settings(tmp_path, text))


def test_a_mapping_may_take_keys_from_another_one(tmp_path: Path) -> None:
    text = "shares:\n- &first {select: {slot: a}, min: 2G}\n- {<<: *first, select: {slot: b}}\n"
    assert [rule.minimum for rule in load(write_settings(tmp_path, text)).shares] == [2 * 10**9] * 2


def test_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problems, match="is a duplicate key, again in line 3"):
        load(write_settings(tmp_path, "management: [a]\nlog_level: info\nmanagement: [b]\n"))
    with pytest.raises(Problems, match="is a duplicate key"):
        load(write_settings(tmp_path, "aliases: {a: x, a: y}\n"))


def test_binary_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "driver.yml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Problems):
        load(path)


def test_a_valid_change_is_loaded_and_an_invalid_one_is_not(tmp_path: Path) -> None:
    path = write_settings(tmp_path, "log_level: info\n")
    file = SettingsFile(path)
    assert not file.changed()
    path.write_text("log_level: loud\n")
    assert file.changed() and not file.reload() and file.current.log_level == "info"
    assert "loud" in file.problem and not file.changed()
    new = tmp_path / "new"
    new.write_text("log_level: debug\n")
    new.replace(path)
    assert file.changed() and file.reload() and file.current.log_level == "debug" and not file.problem
    path.unlink()
    assert file.changed() and file.reload() and file.current == Settings()
    path.write_text("log_level: info # the default\n")
    assert file.changed() and not file.reload() and not file.problem
    with pytest.raises(Problems):
        SettingsFile(write_settings(tmp_path, "x: 1"))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from([*Settings.__dataclass_fields__, "other"])


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        _KEYS, _VALUES | st.lists(st.dictionaries(st.sampled_from([*Selector.__dataclass_fields__]), _VALUES))
    )
)
def test_any_data_gives_settings_or_problems(data: dict[str, t.Any]) -> None:
    try:
        found = read(data)
    except Problems as problems:
        assert all(problem.path for problem in problems.problems)
    else:
        # these raise an exception if a value has a wrong type
        hash(found.include)
        yaml.safe_dump(found.locality_overrides)
