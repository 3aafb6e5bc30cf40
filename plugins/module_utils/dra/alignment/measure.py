# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Chooses pairs of pods to measure with, and parses the output of benchmark programs.

A measurement consists of `tool`, `gb_per_s` (10^9 bytes per second), `latency_us`, `bytes` of a message where these are
known, and `details`. The formats of iperf3 3.12 and perftest 6.24 are taken from their output. The format of nccl-tests
is taken from its source (src/util.cu) and published tables, and was not tested on a GPU.
"""

from __future__ import annotations

import json
import re
import typing as t

from ...topology.affinity import RANK
from ..kube.objects import Object, ObjectView
from ..scheduler.published import Pools, value_of
from ..scheduler.search_devices import attribute
from .devices import NIC

_PORT = 18515
#: The maximum length of an error message, of a text of a pod and of a program's output, and the limit of its numbers.
_MAX_MESSAGE, _MAX_TEXT, _MAX_OUTPUT, _MAX_NUMBER = 300, 64, 2**20, 1e15
_TIMEOUT_STATUSES = (124, 143)  # exit statuses of GNU's and BusyBox's timeout after it stopped a program
_RDMA_DEVICE = "rdmaDevice"  # the name in lanewise.dev and dra.net
_RDMA_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")  # a driver can publish any text, and this one is part of a command

_COLUMN = re.compile(r"(?:BW (?:peak|average)|tps average|[0-9.]{1,16}% percentile)(?:\[[^\]]{0,16}\])?|\S+")
_UNITS = {"Gb/sec": 1 / 8, "MB/sec": 2**20 / 1e9, "MiB/sec": 2**20 / 1e9}  # perftest's MB are MiB
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*([0-9.]+)")
_OPERATION = re.compile(r"Collective test starting:\s*(\S+)|\b(\w{1,64}_perf)\b")
_OUT_OF_BOUNDS = re.compile(r"Out of bounds values\s*:\s*([1-9]\d*)")
_FAILURE = re.compile(r"^.*\bTest (?:NCCL |CUDA )?failure\b.*$", re.MULTILINE)
_MPI_TAG = re.compile(r"^\[\d+,\d+\]<std\w+>:", re.MULTILINE)  # mpirun --tag-output


class Unreadable(ValueError):
    """The output contains no measurement. The message is the program's error, or the end of its output."""


def pairs(
    reports: t.Sequence[Object],
    claims: t.Iterable[ObjectView],
    pods: t.Iterable[ObjectView],
    pools: Pools,
    seconds: int,
) -> list[Object]:
    """For each claim with a running pod and a NIC: another pod to measure with, and the commands.

    The other pod is on another node if possible, because traffic between two NICs of one node may not leave the card.
    It is always a different pod, and None if there is no other one.

    `reports` are the result of `alignment.Check.run`, `claims` and `pods` the objects. Each end is described with the
    container that has the NIC, or None if the pod does not show it. `commands` contains a `server` and a `client` for
    each program that can be used, the best first: `ib_write_bw` if the NICs of both ends have an RDMA device, and
    `iperf3` if both drivers publish the NICs' addresses, so that it measures these NICs and no other network.
    """
    networks = {}
    for claim in claims:
        for entry in (claim.get("status") or {}).get("devices") or ():
            ips = (entry.get("networkData") or {}).get("ips") or ()
            key = (claim["metadata"].get("uid"), entry["driver"], entry["pool"], entry["device"])
            networks[key] = ips[0].partition("/")[0] if ips else None
    pods_by_uid = {pod["metadata"].get("uid"): pod for pod in pods}
    ends = [end for report in reports for end in _ends(report, networks, pods_by_uid, pools)]
    measurable = []
    for index, client in enumerate(ends):
        # traffic between claims of one pod does not leave it
        others = [end for end in ends[index + 1 :] + ends[:index] if _pod(end) != _pod(client)]
        on_other_nodes = [end for end in others if end["node"] != client["node"]]
        server = next(iter(on_other_nodes or others), None)
        commands = _commands(server, client, seconds) if server else {}
        measurable.append({"claim": client["claim"], "client": client, "server": server, "commands": commands})
    return measurable


def _pod(end: Object) -> tuple[str, str]:
    return end["namespace"], end["pod"]


def _ends(
    report: Object, networks: t.Mapping[t.Any, str | None], pods: t.Mapping[t.Any, t.Any], pools: Pools
) -> t.Iterator[Object]:
    """The NIC with which a claim's first running pod measures: the nearest to its first GPU, or its first NIC."""
    pod = next((entry for entry in report["pods"] if entry["phase"] == "Running" and entry["uid"] in pods), None)
    # devices with admin access are only monitored and carry no traffic of the pod
    current = [device for device in report["devices"] if device["state"] == "current" and not device["admin"]]
    nics = [device for device in current if device["kind"] == NIC]
    if pod is None or not nics:
        return
    nearest = min(report["pairs"], key=lambda pair: (pair["gpu"], RANK[pair["level"]]), default=None)
    nic = next((device for device in nics if nearest and device["address"] == nearest["nic_address"]), nics[0])
    pool = pools.pool(nic["driver"], nic["pool"])
    published = pool.devices.get(nic["device"]) if pool else None
    rdma = value_of(attribute(published.offer, f"{nic['driver']}/{_RDMA_DEVICE}")) if published else None
    namespace, _slash, name = report["claim"].partition("/")
    yield {
        "claim": report["claim"],
        "namespace": namespace,
        "pod": pod["name"],
        "container": _container(pods[pod["uid"]], name, nic["request"].partition("/")[0]),
        "node": report["node"],
        "nic": f"{nic['driver']}/{nic['device']}",
        "rdma": rdma if isinstance(rdma, str) and _RDMA_NAME.fullmatch(rdma) else None,
        "address": networks.get((report["uid"], nic["driver"], nic["pool"], nic["device"])),
        "pod_ip": (pods[pod["uid"]].get("status") or {}).get("podIP"),
    }


def _container(pod: ObjectView, claim: str, request: str) -> str | None:
    """The first container that has the devices of a request; None if the pod lists none."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    pod_claims = [*(spec.get("resourceClaims") or ()), *(status.get("resourceClaimStatuses") or ())]
    names = {pod_claim["name"] for pod_claim in pod_claims if pod_claim.get("resourceClaimName") == claim}
    for container in spec.get("containers") or ():
        for used_claim in (container.get("resources") or {}).get("claims") or ():
            if used_claim["name"] in names and used_claim.get("request") in (None, request):
                return str(container["name"])
    extended = status.get("extendedResourceClaimStatus") or {}
    for mapping in extended.get("requestMappings") or () if extended.get("resourceClaimName") == claim else ():
        if mapping.get("requestName") == request:
            return str(mapping["containerName"])
    return None


def _commands(server: Object, client: Object, seconds: int) -> Object:
    """The commands by program, the best program first."""
    commands: Object = {}
    if server["rdma"] and client["rdma"] and server["pod_ip"]:
        base = f"-F --report_gbits -q 4 -s 1048576 -D {int(seconds)} -p {_PORT}"
        commands["ib_write_bw"] = {
            "server": f"ib_write_bw -d {server['rdma']} {base}",
            "client": f"ib_write_bw -d {client['rdma']} {base} {server['pod_ip']}",
        }
    if server["address"] and client["address"]:
        commands["iperf3"] = {
            "server": f"iperf3 -s -1 -B {server['address']} -p {_PORT}",
            "client": f"iperf3 -c {server['address']} -B {client['address']} -p {_PORT} -t {int(seconds)} -P 4 --json",
        }
    return commands


def read(tool: str, text: str, status: int = 0) -> Object:
    """A program's output as a measurement. `status` is its exit status; output of a failed run does not count.

    A pod can print anything, so output in another form is Unreadable, too. Raises Unreadable, and KeyError for an
    unknown program.
    """
    readers = {"iperf3": iperf3, "ib_write_bw": perftest, "ib_write_lat": perftest, "all_gather_perf": nccl_tests}
    if status in _TIMEOUT_STATUSES:
        raise Unreadable("it did not finish in time and was stopped")
    reader = readers[tool]
    if len(text) > _MAX_OUTPUT:
        raise Unreadable(f"it printed more than {_MAX_OUTPUT >> 20} MiB")
    try:
        measurement = reader(text)
    except Unreadable as error:
        raise Unreadable(str(error)[:_MAX_MESSAGE]) from None
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise Unreadable(f"its output is not in the format of {tool}: {error}"[:_MAX_MESSAGE]) from None
    if status:
        raise Unreadable(f"it exited with status {status}: {_no_measurement(text)}"[:_MAX_MESSAGE])
    return measurement


def _no_measurement(text: str) -> Unreadable:
    """The error for output without a measurement, with the last line of the output."""
    lines = [line.strip() for line in text.splitlines() if line.strip().strip("#")]
    return Unreadable(lines[-1] if lines else "it printed nothing")


def _measurement(tool: str, rate: float | None, latency: float | None, size: int | None, **details: object) -> Object:
    """A measurement. `details` that are neither finite numbers nor texts are left out, and long texts are cut."""
    for value in (rate, latency, size):
        if value is not None and not 0 <= value < _MAX_NUMBER:
            raise Unreadable(f"{tool} reports {value}, which is not a measurement")
    measurement: Object = {"tool": tool, "gb_per_s": None if rate is None else round(rate, 4), "latency_us": latency}
    return {**measurement, "bytes": size, "details": dict(_bounded(details))}


def _bounded(details: t.Mapping[str, object]) -> t.Iterator[tuple[str, object]]:
    for name, value in details.items():
        if isinstance(value, str):
            yield name, value[:_MAX_TEXT]
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER:
            yield name, value


def iperf3(text: str) -> Object:
    """Parse the output of `iperf3 --json`: the rate at which the other end received.

    `latency_us` is TCP's mean round-trip time.
    """
    try:
        output = json.loads(text)
    except (ValueError, RecursionError):
        raise _no_measurement(text) from None
    if not isinstance(output, dict):
        raise _no_measurement(text)
    if output.get("error"):
        raise Unreadable(str(output["error"]))
    end = output.get("end") or {}
    total = end.get("sum_received") or end.get("sum")
    if not isinstance(total, dict) or not isinstance(total.get("bits_per_second"), (int, float)):
        raise Unreadable("iperf3 reports no sum")
    trips = [stream["sender"].get("mean_rtt") for stream in end.get("streams") or () if stream.get("sender")]
    trips = [trip for trip in trips if trip]
    details = {
        "seconds": total.get("seconds"),
        "streams": len(end.get("streams") or ()),
        "retransmits": (end.get("sum_sent") or {}).get("retransmits"),
        "lost_percent": total.get("lost_percent"),
    }
    return _measurement("iperf3", total["bits_per_second"] / 8e9, max(trips) if trips else None, None, **details)


def perftest(text: str) -> Object:
    """Parse the table of a perftest program such as `ib_write_bw` or `ib_write_lat`.

    The result is the row with the best average rate or, for latencies, with the smallest message.
    """
    columns: list[str] = []
    rows: list[dict[str, float]] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#bytes"):
            columns = _COLUMN.findall(line.strip())
            continue
        try:
            values = [float(word) for word in line.split()]
        except ValueError:
            continue
        if columns and len(values) == len(columns):
            rows.append(dict(zip(columns, values)))
    rates = {name: name[name.index("[") + 1 : -1] for name in columns if name.startswith("BW average[")}
    if rows and rates:
        name, unit = next(iter(rates.items()))
        if unit not in _UNITS:
            raise Unreadable(f"the unit {unit} is not known")
        best = max(rows, key=lambda row: row[name])
        rate = best[name] * _UNITS[unit]
        return _measurement("ib_write_bw", rate, None, int(best["#bytes"]), iterations=int(best["#iterations"]))
    typical = next((name for name in columns if name in ("t_typical[usec]", "t_avg[usec]")), None)
    if rows and typical:
        smallest = min(rows, key=lambda row: row["#bytes"])
        tail = {key: smallest[key] for key in smallest if key.startswith(("t_min", "t_max", "t_stdev", "99"))}
        return _measurement("ib_write_lat", None, smallest[typical], int(smallest["#bytes"]), **tail)
    raise _no_measurement(text)


def nccl_tests(text: str) -> Object:
    """Parse the table of an nccl-tests program. The result is the out-of-place bus bandwidth of the largest message.

    The header names the columns: size, count, type, usually redop and root, then time (us), algbw, busbw (GB/s) and the
    number of wrong results, first out of place, then in place; program options add columns between these. Tables with
    wrong results and runs that fail at a later size are rejected. mpirun may have prefixed each line with its rank.
    """
    text = _MPI_TAG.sub("", text)
    failure = _FAILURE.search(text)
    if failure:
        raise Unreadable(failure.group().strip())
    columns: list[str] = []
    rows = []
    for line in text.splitlines():
        cells = line.split()
        if cells[:4] == ["#", "size", "count", "type"]:
            columns = cells[next((index for index, word in enumerate(cells) if word in ("time", "cputime")), 0) :]
            continue
        if "timestamp" in columns[-1:]:
            cells = cells[:-2] + [" ".join(cells[-2:])]  # a timestamp consists of date and time
        if len(cells) < 3 + len(columns) or not columns or not cells[0].isdigit() or not cells[1].isdigit():
            continue
        values = list(zip(columns, cells[-len(columns) :]))
        first = dict(reversed(values))  # out of place comes before in place
        try:
            time, algorithm, bus = (float(first.get(name, "")) for name in (columns[0], "algbw", "busbw"))
        except ValueError:
            continue
        # older versions have a column "error" instead, which rounding of sums also fills
        wrong = [value for name, value in values if name == "#wrong" and value not in ("N/A", "0", "0e+00")]
        rows.append((int(cells[0]), time, algorithm, bus, wrong))
    if not rows:
        raise _no_measurement(text)
    wrong_rows = [row for row in rows if row[4]]
    outside = _OUT_OF_BOUNDS.search(text)
    problems = [f"{len(wrong_rows)} size(s) have wrong results"] if wrong_rows else []
    problems += [f"{outside.group(1)} values are out of bounds"] if outside else []
    if problems:
        raise Unreadable(f"{', '.join(problems)}: the results of this run cannot be trusted")
    size, time, algorithm, bus, _wrong = max(rows)
    average = _AVERAGE.search(text)
    name = _OPERATION.search(text)
    details: Object = {"time_us": time, "algbw_gb_per_s": algorithm}
    if average:
        details["average_busbw_gb_per_s"] = float(average.group(1))
    if name:
        details["operation"] = name.group(1) or name.group(2)
    return _measurement("all_gather_perf", bus, None, size, **details)
