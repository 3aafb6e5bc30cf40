# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Bandwidth and latency are read from the output of iperf3, perftest and nccl-tests. Pods are paired to measure them.

The output of iperf3 3.12 was recorded on loopback, that of perftest 6.24 over soft-RoCE on a virtual machine. Addresses
were removed. The tables of nccl-tests follow the format in its source; no GPU printed them.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.measure import Unreadable, pairs, read
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import Pools
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.alignment.node_with_claims import (
    NodeWithClaims,
)
from hypothesis import given
from hypothesis import strategies as st


def recorded(name: str) -> str:
    return (Path(__file__).parent / "measured" / name).read_text(encoding="utf-8")


TCP = recorded("iperf3_tcp.json")
UDP = recorded("iperf3_udp.json")
BANDWIDTH = recorded("write_bw.txt")
BANDWIDTH_BY_SIZE = recorded("write_bw_sizes.txt")
LATENCY = recorded("write_lat.txt")
LATENCY_DURATION = recorded("write_lat_duration.txt")
NCCL = recorded("all_gather.txt")
CONNECTION_REFUSED = (
    '{"start": {"connected": [], "version": "iperf 3.12"}, "intervals": [], "end": {}, '
    '"error": "unable to connect to server: Connection refused"}'
)


def test_iperf3_output_is_read():
    found = read("iperf3", TCP)
    end = json.loads(TCP)["end"]
    assert found["gb_per_s"] == pytest.approx(end["sum_received"]["bits_per_second"] / 8e9, abs=1e-4)
    assert found["latency_us"] == end["streams"][0]["sender"]["mean_rtt"]
    assert found["details"]["retransmits"] == 1 and found["details"]["streams"] == 1
    udp = read("iperf3", UDP)
    assert udp["gb_per_s"] == pytest.approx(0.0118, abs=1e-4) and udp["details"]["lost_percent"] > 5
    with pytest.raises(Unreadable, match="Connection refused"):
        read("iperf3", CONNECTION_REFUSED)
    # Python 3.11 cannot parse JSON that is nested deeper than about 1,000 levels
    with pytest.raises(Unreadable):
        read("iperf3", '{"end": ' + "[" * 100_000)


def test_perftest_bandwidth_output_is_read():
    found = read("ib_write_bw", BANDWIDTH)
    assert (found["tool"], found["bytes"]) == ("ib_write_bw", 65536)
    assert found["gb_per_s"] == pytest.approx(0.19 / 8, abs=1e-4)
    best = read("ib_write_bw", BANDWIDTH_BY_SIZE)
    assert best["bytes"] == 262144 and best["gb_per_s"] == pytest.approx(15.63 * 2**20 / 1e9, abs=1e-4)
    # older versions write MB for the same number (perftest_parameters.c, print_report_bw)
    assert read("ib_write_bw", BANDWIDTH_BY_SIZE.replace("MiB/sec", "MB/sec")) == best


def test_perftest_latency_output_is_read():
    found = read("ib_write_lat", LATENCY)
    assert (found["latency_us"], found["gb_per_s"], found["bytes"]) == (10954.49, None, 8)
    assert found["details"]["t_max[usec]"] == 90207.42 and found["details"]["99% percentile[usec]"] == 53431.44
    assert read("ib_write_lat", LATENCY_DURATION)["latency_us"] == 11544.32


def test_nccl_tests_output_is_read():
    found = read("all_gather_perf", NCCL)
    assert (found["gb_per_s"], found["bytes"]) == (46.59, 8589934592)
    assert found["details"]["average_busbw_gb_per_s"] == 31.0217
    assert found["details"]["operation"] == "all_gather_perf"
    with pytest.raises(Unreadable, match="cannot be trusted"):
        read("all_gather_perf", NCCL.replace("46.59      0", "46.59     12"))
    with pytest.raises(Unreadable, match="3 values are out of bounds"):
        read("all_gather_perf", NCCL.replace("values : 0 OK", "values : 3 FAILED"))


def test_the_output_of_a_failed_run_gives_an_error():
    """The table of a run that crashes is incomplete. Only the exit status or the error message shows that."""
    partial = "".join(NCCL.splitlines(keepends=True)[:-4])
    assert read("all_gather_perf", partial, 0)["bytes"] < 8589934592
    with pytest.raises(Unreadable, match="exited with status 3: .* 46.49 "):
        read("all_gather_perf", partial, 3)
    crash = partial + (
        "node-1: Test NCCL failure common.cu:1057 'unhandled system error / '\n .. node-1 pid 7: Test failure\n"
    )
    with pytest.raises(Unreadable, match="^node-1: Test NCCL failure common.cu:1057"):
        read("all_gather_perf", crash)
    for tool, text in (("iperf3", TCP), ("ib_write_bw", BANDWIDTH), ("ib_write_lat", LATENCY)):
        assert read(tool, text) == read(tool, text, 0)
        with pytest.raises(Unreadable, match="exited with status 1"):
            read(tool, text, 1)
    # the error of the program itself takes precedence
    with pytest.raises(Unreadable, match="^unable to connect"):
        read("iperf3", CONNECTION_REFUSED, 1)
    with pytest.raises(Unreadable, match="did not finish in time"):
        read("iperf3", "", 124)


def test_nccl_tests_output_under_mpirun_is_read():
    """`mpirun --tag-output` marks each line, and log lines of the ranks appear between them."""
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in NCCL.splitlines())
    log_line = "[1,1]<stdout>:node-1:21:21 [0] NCCL INFO comm 0x7f9c0c000f60 rank 1 nranks 2 - Destroy COMPLETE\n"
    lines = tagged.splitlines(keepends=True)
    found = read("all_gather_perf", "".join([*lines[:-4], log_line, *lines[-4:]]))
    assert found == read("all_gather_perf", NCCL)


@pytest.mark.parametrize(
    "columns, row",
    [
        # an old version: the reduction, the rounding error in place of wrong values, and no root
        (
            "redop     time   algbw   busbw  error     time   algbw   busbw  error",
            "sum 95.0 1 41.5 1e-06 96.0 1 2 1e-06",
        ),
        ("time   algbw   busbw  error     time   algbw   busbw  error", "95.0 1 41.5 0e+00 96.0 1 2 0e+00"),
        # every option: CPU time, differing bits, times per iteration and a timestamp
        (
            "redop root cputime algbw busbw #wrong #bitdiff i_min i_max i_p99 i_cv% "
            "cputime algbw busbw #wrong #bitdiff i_min i_max i_p99 i_cv% timestamp",
            "none -1 95.0 1 41.5 0 0 7 8 9 0.1 96.0 1 2 N/A N/A 7 8 9 0.1 2026-11-22 01:02:03",
        ),
    ],
    ids=["rounding error", "no reduction", "every column"],
)
def test_nccl_tests_columns_are_found_by_their_names(columns, row):
    """The columns depend on the version of nccl-tests and on its options."""
    head = f"#       size         count      type   {columns}\n#        (B)    (elements)\n"
    found = read("all_gather_perf", f"{head}  1048576        262144     float {row}\n")
    assert (found["gb_per_s"], found["bytes"], found["details"]["time_us"]) == (41.5, 1048576, 95.0)


PERFTEST_COLUMNS = "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec]"
NCCL_COLUMNS = "# size count type time algbw busbw #wrong"


@pytest.mark.parametrize(
    "tool, text",
    [
        ("iperf3", '{"end": [1]}'),
        ("iperf3", '{"end": {"sum": {"bits_per_second": 1}, "streams": [5]}}'),
        ("iperf3", '{"end": {"sum": {"bits_per_second": 1}, "sum_sent": [5]}}'),
        ("iperf3", f'{{"end": {{"sum": {{"bits_per_second": {"1" * 400}}}}}}}'),
        ("iperf3", '{"end": {"sum": {"bits_per_second": 1}, "streams": [{"sender": {"mean_rtt": "x"}}]}}'),
        ("iperf3", '{"error": "' + "x" * 10_000 + '"}'),
        ("ib_write_bw", f"{PERFTEST_COLUMNS}\ninf 1 1 1"),
        ("ib_write_bw", "#bytes BW average[Gb/sec]\n1 1"),
        ("ib_write_bw", f"#bytes BW average[{'x' * 10_000}]\n1 1"),
        ("all_gather_perf", f"{NCCL_COLUMNS}\n\u00b2 1 float 1 1 1 0"),
        ("all_gather_perf", f"{NCCL_COLUMNS}\n2 1 float 1 1 1 0\n# Avg bus bandwidth : 1.2.3"),
    ],
)
def test_output_that_the_program_does_not_print_gives_a_short_error(tool, text):
    with pytest.raises(Unreadable) as error:
        read(tool, text)
    assert len(str(error.value)) < 400


def test_details_of_another_type_are_left_out():
    text = '{"end": {"sum": {"bits_per_second": 8e9, "seconds": ["x"], "lost_percent": 1.5}}}'
    assert read("iperf3", text)["details"] == {"streams": 0, "lost_percent": 1.5}


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "true", "1" * 4000])
def test_details_that_are_no_numbers_are_left_out(seconds):
    text = f'{{"end": {{"sum": {{"bits_per_second": 8e9, "seconds": {seconds}, "lost_percent": 1.5}}}}}}'
    assert read("iperf3", text)["details"] == {"streams": 0, "lost_percent": 1.5}


def test_a_long_text_of_a_pod_is_cut():
    text = f"{NCCL_COLUMNS}\n2 1 float 1 1 1 0\n# Collective test starting: {'x' * 10_000}\n"
    assert len(json.dumps(read("all_gather_perf", text))) < 1000


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("all_gather_perf", f"{NCCL_COLUMNS}\n2 1 float 1 1 1 0\n{'a' * 1_000_000}\n"),
        ("ib_write_bw", f"#bytes {'BW peak[' * 120_000}\n"),
        ("ib_write_bw", f"#bytes {'1' * 1_000_000}\n"),
        ("iperf3", "[" * 5_000_000),
    ],
)
def test_long_output_of_a_pod_is_read_or_refused_at_once(tool, text):
    """Expressions that are tried at each character would take hours."""
    began = time.process_time()
    with contextlib.suppress(Unreadable):
        read(tool, text)
    assert time.process_time() - began < 20


@pytest.mark.parametrize("size", ["1e300", "inf", "nan", "-1"])
def test_numbers_that_are_no_measurement_are_refused(size):
    with pytest.raises(Unreadable):
        read("ib_write_bw", f"#bytes #iterations BW average[Gb/sec]\n{size} 5 10\n")
    with pytest.raises(Unreadable):
        read("ib_write_bw", f"#bytes #iterations BW average[Gb/sec]\n65536 5 {size}\n")


@pytest.mark.parametrize("tool", ["iperf3", "ib_write_bw", "ib_write_lat", "all_gather_perf"])
@given(
    st.one_of(
        st.text(),
        st.sampled_from([TCP, BANDWIDTH, LATENCY, NCCL]).flatmap(
            lambda output: st.integers(0, len(output)).map(lambda n: output[:n])
        ),
    )
)
def test_truncated_output_gives_an_error_or_a_complete_measurement(tool, text):
    try:
        found = read(tool, text)
    except Unreadable as error:
        assert str(error)
    else:
        assert (found["gb_per_s"] is not None) or (found["latency_us"] is not None)


def add_claim_with_address(node, name, nic, number, **more):
    """Add a claim for a NIC, with the NIC's address in the claim's status. The pod also has an address."""
    claim = node.add_claim({**more, "nic": nic}, name=name)
    node.pods[-1]["status"]["podIP"] = f"10.0.0.{number}"
    ips = {"interfaceName": "net1", "ips": [f"192.0.2.{number}/24"]}
    claim["status"]["devices"] = [{**node.devices()[nic], "networkData": ips}]
    return claim


def test_pods_measure_with_a_pod_on_another_node_if_there_is_one():
    nodes = [NodeWithClaims("hgx-h100", "node-1"), NodeWithClaims("hgx-h100", "node-2")]
    claims, pods, reports = [], [], []
    for index, node in enumerate(nodes):
        gpu, nic = node.pair("PIX")
        claims.append(add_claim_with_address(node, f"claim-{index}", nic, index, gpu=gpu))
        pods += node.pods
        reports += node.check()["claims"]
    pools = Pools(nodes[0].slices + nodes[1].slices)
    found = pairs(reports, claims, pods, pools, 5)
    assert [(entry["client"]["pod"], entry["server"]["pod"]) for entry in found] == [
        ("claim-0", "claim-1"),
        ("claim-1", "claim-0"),
    ]
    assert list(found[0]["commands"]) == ["ib_write_bw", "iperf3"]
    assert found[0]["commands"]["ib_write_bw"]["client"].endswith(" 10.0.0.1")
    assert "-c 192.0.2.1 -B 192.0.2.0 " in found[0]["commands"]["iperf3"]["client"]
    for claim in claims:
        claim["status"]["devices"] = []
    assert list(pairs(reports, claims, pods, pools, 5)[0]["commands"]) == ["ib_write_bw"]
    [unpaired] = pairs(reports[:1], claims, pods, pools, 5)
    assert (unpaired["client"]["pod"], unpaired["server"], unpaired["commands"]) == ("claim-0", None, {})
    same_node = [{**report, "node": "node-1"} for report in reports]
    assert len(pairs(same_node, claims, pods, pools, 5)) == 2, "on the same node if there is no other"
    pods[0]["metadata"]["uid"] = "another"
    assert [entry["client"]["pod"] for entry in pairs(reports, claims, pods, pools, 5)] == ["claim-1"]
    assert pairs(reports[:1], claims, pods, pools, 5) == []


@pytest.mark.parametrize("name", ["mlx5_0; touch /tmp/x", "$(id)", "", "a" * 65, 7])
def test_a_published_name_that_is_no_rdma_device_is_not_part_of_a_command(name):
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    node.add_claim({"gpu": gpu, "nic": nic})
    device = next(
        device
        for entry in node.slices
        for device in entry["spec"]["devices"]
        if "rdmaDevice" in device.get("attributes", {}) and device["name"] == node.devices()[nic]["device"]
    )
    device["attributes"]["rdmaDevice"] = {"string": name}
    [found] = pairs(node.check()["claims"], node.claims, node.pods, Pools(node.slices), 5)
    assert found["client"]["rdma"] is None


def test_a_pod_does_not_measure_with_itself():
    """Traffic between two claims of one pod would go over loopback."""
    node = NodeWithClaims("hgx-h100")
    nics = [nic for nic in node.machine.nics if nic in node.devices()]
    claims = [add_claim_with_address(node, f"claim-{number}", nics[number], number) for number in (0, 1)]
    claims[1]["status"]["reservedFor"] = claims[0]["status"]["reservedFor"]
    reports, pools = node.check()["claims"], Pools(node.slices)
    assert [entry["server"] for entry in pairs(reports, claims, node.pods, pools, 5)] == [None, None]
    claims.append(add_claim_with_address(node, "claim-2", nics[2], 2))
    found = pairs(node.check()["claims"], claims, node.pods, pools, 5)
    assert [(entry["claim"], entry["server"]["claim"]) for entry in found] == [
        ("ml/claim-0", "ml/claim-2"),
        ("ml/claim-1", "ml/claim-2"),
        ("ml/claim-2", "ml/claim-0"),
    ]


def test_admin_access_does_not_count_for_measurements():
    node = NodeWithClaims("hgx-h100")
    nics = [nic for nic in node.machine.nics if nic in node.devices()]
    claims = [add_claim_with_address(node, f"claim-{number}", nics[number], number) for number in (0, 1)]
    claims[1]["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    [unpaired] = pairs(node.check()["claims"], claims, node.pods, Pools(node.slices), 5)
    assert (unpaired["claim"], unpaired["server"]) == ("ml/claim-0", None)


def test_commands_run_in_the_container_that_has_the_nic():
    """The first container of a pod may have no devices, and each request may belong to another container."""
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    other_nic = next(address for address in node.machine.nics if address != nic and address in node.devices())
    claims = [add_claim_with_address(node, "one", nic, 1, gpu=gpu), add_claim_with_address(node, "two", other_nic, 2)]
    reports, pools = node.check()["claims"], Pools(node.slices)

    def containers():
        return [entry["client"]["container"] for entry in pairs(reports, claims, node.pods, pools, 5)]

    assert containers() == [None, None]
    proxy = {"name": "proxy"}
    node.pods[0]["spec"].update(
        resourceClaims=[
            {"name": "other", "resourceClaimName": "three"},
            {"name": "devices", "resourceClaimName": "one"},
        ],
        containers=[
            proxy,
            {"name": "watch", "resources": {"claims": [{"name": "other"}]}},
            {"name": "gpu", "resources": {"claims": [{"name": "devices", "request": "gpu"}]}},
            {"name": "nic", "resources": {"claims": [{"name": "devices", "request": "nic"}]}},
        ],
    )
    node.pods[1]["spec"].update(
        resourceClaims=[{"name": "devices", "resourceClaimTemplateName": "template"}],
        containers=[proxy, {"name": "main", "resources": {"claims": [{"name": "devices"}]}}],
    )
    node.pods[1]["status"]["resourceClaimStatuses"] = [{"name": "devices", "resourceClaimName": "two"}]
    assert containers() == ["nic", "main"]


def test_commands_run_in_the_container_whose_extended_resource_is_the_nic():
    node = NodeWithClaims("hgx-h100")
    _gpu, nic = node.pair("PIX")
    claims = [add_claim_with_address(node, "one", nic, 1)]
    node.pods[0]["spec"]["containers"] = [{"name": "proxy"}, {"name": "main"}]
    mapping = {"containerName": "main", "resourceName": "example.com/nic", "requestName": "nic"}
    status = {"resourceClaimName": "one", "requestMappings": [{**mapping, "requestName": "other"}, mapping]}
    for claim, container in (("one", "main"), ("two", None)):
        node.pods[0]["status"]["extendedResourceClaimStatus"] = {**status, "resourceClaimName": claim}
        [measurable] = pairs(node.check()["claims"], claims, node.pods, Pools(node.slices), 5)
        assert measurable["client"]["container"] == container
