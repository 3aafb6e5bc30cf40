# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The program lanewise-driver: the driver itself, and commands for administrators of the node.

lanewise-driver run         serve kubelet until SIGTERM
lanewise-driver status      show whether the driver is ready, and the claims on this node
lanewise-driver inventory   show which devices are published, and why others are withheld
lanewise-driver doctor      check everything that pods need to get their devices
lanewise-driver check       check the settings
lanewise-driver withdraw    delete this node's ResourceSlices, when the driver is removed
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import http.client
import json
import os
import subprocess
import sys
import typing as t
import urllib.error
import urllib.request
from pathlib import Path

from .base.errors import DriverError
from .base.paths import Paths
from .base.settings import Settings, load
from .claims.records import ATTACHED, PREPARED, Record, Store, boot_id
from .dra.kube.problems import Problems
from .kernel import netns

if t.TYPE_CHECKING:
    from .api.cluster import Cluster
    from .claims.unclean import UncleanDevices
    from .publish.inventory import Inventory

_DRIVER_PYTHON = Paths().hook_python
_READYZ_TIMEOUT_SECONDS = 5
#: Why the commands cannot check whether the driver is ready.
_NOT_CHECKED = "metrics_address is empty in the settings"
#: Seconds within which a container should have started with its prepared devices.
START_TIMEOUT_SECONDS = 120


def main(arguments: t.Sequence[str] | None = None) -> int:
    """Run a command. Exit status: 0 success, 1 a problem or an error (with a message), 2 invalid arguments."""
    parser = argparse.ArgumentParser(
        prog="lanewise-driver", description=f"Kubernetes DRA driver for NICs and RDMA devices ({__package__})"
    )
    defaults = Paths()
    parser.add_argument("--settings", type=Path, default=defaults.settings, help="default: %(default)s")
    parser.add_argument("--plugin-dir", type=Path, default=defaults.plugin_dir, help="default: %(default)s")
    parser.add_argument("--registry-dir", type=Path, default=defaults.registry_dir, help="default: %(default)s")
    parser.add_argument("--run-dir", type=Path, default=defaults.run_dir, help="default: %(default)s")
    parser.add_argument("--cdi-dir", type=Path, default=defaults.cdi_dir, help="default: %(default)s")
    parser.add_argument("--root", default="/", help="the root of the file system to probe, default: %(default)s")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="serve kubelet")
    run.add_argument("--instance", help="the UID of the driver's pod, if two instances may run at once")
    run.add_argument("--node-name", help="name of the Node, for a driver in a pod; default: node_name of the settings")
    python = _DRIVER_PYTHON if _DRIVER_PYTHON.exists() else Path(sys.executable)
    run.add_argument(
        "--hook-python",
        type=Path,
        default=python,
        help="the Python interpreter that runs the hook, default: %(default)s",
    )
    for name, handler in (
        ("status", _status),
        ("inventory", _inventory),
        ("doctor", _doctor),
        ("check", _check),
        ("withdraw", _withdraw),
    ):
        summary = (handler.__doc__ or "").splitlines()[0].rstrip(".")
        command = commands.add_parser(name, help=summary[:1].lower() + summary[1:])
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(handler=handler)
    options = parser.parse_args(arguments)
    overrides = {field.name: getattr(options, field.name, None) for field in dataclasses.fields(Paths)}
    paths = Paths(**{name: value for name, value in overrides.items() if value is not None})
    try:
        if options.command == "run":
            from .daemon import Daemon

            Daemon(paths, options.root, options.instance, options.node_name).run()
            return 0
        return int(options.handler(paths, load(paths.settings), options))
    except DriverError as error:
        print(f"lanewise-driver: {error.message}", file=sys.stderr)
    except Problems as problems:
        print(f"lanewise-driver: {paths.settings}:\n{problems}", file=sys.stderr)
    except OSError as error:
        print(f"lanewise-driver: {error}", file=sys.stderr)
    return 1


def _print_json(value: t.Any) -> None:
    print(json.dumps(value, indent=1, sort_keys=True))


def _not_ready_reasons(settings: Settings) -> list[str]:
    """Why the running driver is not ready, according to its readiness endpoint; empty without that endpoint."""
    if not settings.metrics_address:
        return []
    host, port = settings.metrics_address
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/readyz"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        try:
            with opener.open(url, timeout=_READYZ_TIMEOUT_SECONDS):
                return []
        except urllib.error.HTTPError as error:
            reasons = error.read().decode(errors="replace").splitlines()
            return reasons or [f"{url} returned status {error.code} without a reason"]
    except (OSError, http.client.HTTPException) as error:  # the driver may stop while it responds
        return [f"the driver does not answer at {url}: {getattr(error, 'reason', error)}"]


def _records(paths: Paths) -> tuple[list[Record], list[str]]:
    """The readable records of claims, and an error for each unreadable one. Raises DriverError."""
    folder = paths.state_dir
    try:
        with contextlib.suppress(FileNotFoundError):
            os.listdir(folder)
    except PermissionError as error:
        raise DriverError(f"no permission to read {folder}: run this as root") from error
    records, unreadable = Store(folder).all()
    return records, [error.message for error in unreadable]


def _status(paths: Paths, settings: Settings, options: argparse.Namespace) -> int:
    """Show whether the driver is ready, and the claims on this node."""
    reasons = _not_ready_reasons(settings)
    records, broken = _records(paths)
    if options.json:
        claims = [dataclasses.asdict(record) for record in records]
        ready = not reasons if settings.metrics_address else None  # not checked
        _print_json({"ready": ready, "reasons": [*reasons, *broken], "claims": claims})
        return int(bool(reasons or broken))
    checked = "ready" if settings.metrics_address else f"readiness is not checked: {_NOT_CHECKED}"
    print("not ready:" if reasons else checked)
    for reason in [*reasons, *broken]:
        print(f"  {reason}")
    print(f"{len(records)} claim{'s' if len(records) != 1 else ''}")
    for record in records:
        print(f"  {record.namespace}/{record.name}  {record.phase}  pod {_pod_name(record)}  {record.uid}")
        for device in record.devices:
            print(f"    {device.device}  {device.main_request}  {device.interface or ''}".rstrip())
    return int(bool(reasons or broken))


def _pod_name(record: Record) -> str:
    return record.pod.name if record.pod else "any"


def _make_inventory(paths: Paths, settings: Settings, root: str) -> Inventory:
    from .claims import share_state
    from .publish.inventory import Inventory

    records, _broken = _records(paths)
    held = [device.known for record in records for device in record.held if device.share is None]
    unclean = {name: device.word for name, device in _unclean(paths).by_nic().items()}
    return Inventory(lambda: settings, lambda: held, root, lambda: unclean, lambda: share_state.held(records))


def _unclean(paths: Paths) -> UncleanDevices:
    """The devices whose original state could not be restored after a pod used them."""
    from .claims.unclean import UncleanDevices

    return UncleanDevices(paths.unclean_dir, boot_id())


def _inventory(paths: Paths, settings: Settings, options: argparse.Namespace) -> int:
    """Show the published devices, the shares of them that claims hold, and the withheld devices with the reason."""
    from .claims import share_report

    inventory = _make_inventory(paths, settings, options.root)
    publication = inventory.refresh()
    shares = share_report.shares(_records(paths)[0], boot_id(), inventory)
    if options.json:
        _print_json(
            {
                "devices": publication.devices,
                "sharedCounters": publication.counter_sets,
                "shares": shares,
                "withheld": publication.withheld,
            }
        )
        return 0
    print(f"{len(publication.devices)} published")
    for device in publication.devices:
        values = {name: next(iter(typed.values())) for name, typed in device["attributes"].items()}
        shown = ("ifName", "rdmaDevice", "model", "linkLayer", "linkSpeedMbps", "rail", "nearestGPU")
        attributes = [f"{name}={values[name]}" for name in shown if name in values]
        taints = [f"taint={taint['key']}" for taint in device.get("taints", ())]
        print("  " + "  ".join([device["name"], *attributes, *taints]))
    for line in share_report.lines(shares):
        print(line)
    print(f"{len(publication.withheld)} withheld")
    for name, reason in publication.withheld.items():
        print(f"  {name}: {reason}")
    return 0


def _doctor(paths: Paths, settings: Settings, options: argparse.Namespace) -> int:
    """Check everything that pods need to get their devices; exit status 1 if something is wrong."""
    findings: list[dict[str, t.Any]] = []
    try:
        for name, problems in _checks(paths, settings, options.root):
            findings.append({"check": name, "wrong": problems})
    except (DriverError, OSError) as error:
        findings.append({"check": "the other checks can be made", "wrong": [str(error)]})
    wrong = [entry for entry in findings if entry["wrong"]]
    if options.json:
        _print_json(findings)
    else:
        for entry in findings:
            print(f"{'wrong' if entry['wrong'] else 'ok   '}  {entry['check']}")
            for line in entry["wrong"]:
                print(f"         {line}")
    return int(bool(wrong))


def _check(paths: Paths, settings: Settings, options: argparse.Namespace) -> int:
    """Check the settings; exit status 1 if they are invalid."""
    if options.json:
        _print_json({"settings": str(paths.settings), "node": settings.node})
    else:
        print(f"{paths.settings} is valid")
    return 0


def _withdraw(paths: Paths, settings: Settings, options: argparse.Namespace) -> int:
    """Delete this node's ResourceSlices. A running driver publishes them again.

    Raises DriverError if the node has ResourceSlices afterwards."""
    from .api import cluster
    from .daemon import access
    from .dra.config.interface_config import DRIVER

    api = cluster.Cluster(lambda: access(settings), DRIVER, settings.node)
    slices, _version = api.slices()
    for entry in slices:
        api.delete_slice(entry)
    remaining = [entry["metadata"]["name"] for entry in api.slices()[0]]
    if remaining:
        state = f"{len(remaining)} ResourceSlices of {settings.node} exist after the deletion: {', '.join(remaining)}"
        raise DriverError(f"{state}. If the driver still runs, it publishes them again: stop it and repeat the command")
    if options.json:
        _print_json({"deleted": [entry["metadata"]["name"] for entry in slices]})
    else:
        print(f"{len(slices)} deleted")
    return 0


def _checks(paths: Paths, settings: Settings, root: str) -> t.Iterator[tuple[str, list[str]]]:
    """What each check of `doctor` verifies, and the problems that it found."""
    from .api import cluster
    from .daemon import access
    from .dra.config.interface_config import DRIVER

    yield "the command runs as root", [] if os.geteuid() == 0 else ["moving interfaces needs root: use sudo"]
    records, broken = _records(paths)  # raises an error without root, before the checks that would misreport that
    folder = paths.registry_dir
    problems = [] if folder.is_dir() else [f"{folder} does not exist: check that kubelet runs on this machine"]
    yield f"kubelet looks for drivers in {folder}", problems
    unchecked = "" if settings.metrics_address else f" (not checked: {_NOT_CHECKED})"
    yield f"the driver is ready{unchecked}", _not_ready_reasons(settings)
    yield "the node's configuration was restored at boot", _failed_units()
    missing = [str(path) for path in (paths.hook_program, paths.hook_script) if not path.exists()]
    yield "the container hook is installed", [f"{path} does not exist: start the driver" for path in missing]
    try:
        api = cluster.Cluster(lambda: access(settings), DRIVER, settings.node)
        api.node_object()
    except DriverError as error:
        yield f"the API server knows the node {settings.node}", [error.message]
    else:
        yield f"the API server knows the node {settings.node}", []
        yield _published(api)
    publication = _make_inventory(paths, settings, root).refresh()
    yield (
        f"the node has {len(publication.devices)} devices to publish",
        [] if publication.devices else ["see 'lanewise-driver inventory' for what is withheld and why"],
    )
    yield "the records of claims can be read", broken
    yield "containers have started with their prepared devices", _not_started(paths, records)
    lost = [
        f"claim {record.namespace}/{record.name}: the network namespace of pod {_pod_name(record)} no longer exists"
        for record in records
        if record.phase == ATTACHED and not netns.alive(paths.pin(record.uid))
    ]
    yield "pods have their network namespaces", lost
    unclean = sorted(_unclean(paths).all().items())
    yield "devices are in their original state", [f"{name}: {device.text}" for name, device in unclean]
    if settings.rail_addresses:
        yield from _rail_checks(paths, settings, records)


def _published(api: Cluster) -> tuple[str, list[str]]:
    """As `_checks`, for the ResourceSlices of the node."""
    try:
        slices, _version = api.slices()
    except DriverError as error:
        return "the node's ResourceSlices can be read", [error.message]
    count = sum(len(entry["spec"].get("devices", ())) for entry in slices)
    return f"{count} devices are published", [] if slices else ["there is no ResourceSlice of this node"]


def _rail_checks(paths: Paths, settings: Settings, records: t.Sequence[Record]) -> t.Iterator[tuple[str, list[str]]]:
    """As `_checks`, for the addresses of rails."""
    from .claims import rail_check

    for rail_range, used in rail_check.in_use(records, settings.rail_addresses):
        title = f"{used} of {rail_range.usable} addresses of {rail_range.range} on rail {rail_range.rail} are in use"
        wrong = ["no address is left, so new claims wait; see per_node in docs/addresses.md"]
        yield title, wrong if used >= rail_range.usable else []
    yield "pods send to each rail through its interface", rail_check.misrouted(records, paths.pin)


def _not_started(paths: Paths, records: t.Sequence[Record]) -> list[str]:
    """A message for each claim of which no container has started within START_TIMEOUT_SECONDS. Its devices may
    already be in the pod."""
    from .claims.claim_files import awaits_container

    return [
        f"claim {record.namespace}/{record.name}: {record.phase} since {record.since}, but no container of pod "
        f"{_pod_name(record)} has started with its devices. See the pod's events; 'unresolvable CDI devices' means "
        f"that the container runtime does not read {paths.cdi_dir}"
        for record in records
        if record.held and _age(record.since) > START_TIMEOUT_SECONDS
        if record.phase == PREPARED or (record.phase == ATTACHED and awaits_container(paths, record.uid))
    ]


def _failed_units() -> list[str]:
    """A message for each failed unit of the role `fabric`; empty without systemd, as in a container."""
    messages = []
    for unit in ("lanewise-fabric.service", "lanewise-fabric-network.service"):
        try:
            failed = (
                subprocess.run(["systemctl", "is-failed", "--quiet", unit], timeout=10, check=False).returncode == 0
            )
        except (OSError, subprocess.TimeoutExpired):
            failed = False
        if failed:
            messages.append(f"{unit} has failed: see 'journalctl --boot --unit {unit}'")
    return messages


def _age(since: str) -> float:
    """Seconds since a time in the API's format; 0 if there is none."""
    if not since:
        return 0
    start = datetime.datetime.strptime(since, "%Y-%m-%dT%H:%M:%S%z")
    return (datetime.datetime.now(datetime.timezone.utc) - start).total_seconds()


if __name__ == "__main__":
    sys.exit(main())
