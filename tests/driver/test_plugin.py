# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plugin, called by gRPC over its Unix sockets, as kubelet does."""

from __future__ import annotations

import gc
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver.folders import under
from ansible_collections.lanewise.dra.tests.driver.kubelet import UID, FileService, Kubelet
from ansible_collections.lanewise.dra.tests.driver.test_protocol import api_folders, compile_protos
from hypothesis import given, settings
from hypothesis import strategies as st
from lanewise_driver.base import lock
from lanewise_driver.base.errors import Busy, DriverError
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.base.paths import MAX_SOCKET_PATH_BYTES, Paths
from lanewise_driver.kubelet import plugin as plugin_module
from lanewise_driver.kubelet import protocol
from lanewise_driver.kubelet.plugin import Plugin

INSTANCE_UID = "0b0f4c0e-1111-4000-8000-00000000000{}"


@pytest.fixture
def root() -> t.Iterator[Path]:
    """A folder with a short name: those of pytest are too long for sockets."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="d") as folder:
        yield Path(folder)


@pytest.fixture
def paths(root: Path) -> Paths:
    return under(root)


@pytest.fixture
def service(tmp_path: Path) -> FileService:
    (tmp_path / "service").mkdir()
    return FileService(tmp_path / "service")


@pytest.fixture
def plugin(paths: Paths, service: FileService) -> t.Iterator[Plugin]:
    started = Plugin(paths, service, Metrics())
    started.start()
    yield started
    started.stop(1)


@pytest.fixture(params=["upstream", "own"])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> t.Any:
    """Message classes from the protocol files of Kubernetes, and those of the driver."""
    if request.param == "own":
        return protocol.pool
    if not api_folders():
        pytest.skip("no k8s.io/kubelet in Go's module cache")
    return compile_protos(api_folders()[-1], tmp_path / "protos")


def claims(*names: str) -> list[dict[str, str]]:
    """Claims as kubelet names them. For some names, FileService raises an error."""
    return [{"namespace": "training", "name": name, "uid": UID.format(i)} for i, name in enumerate(names)]


def test_the_registration_by_kubelet_and_its_refusal_are_reported(plugin: Plugin, pool: t.Any) -> None:
    with Kubelet(plugin.registration_socket, pool) as kubelet:
        info = kubelet.call(protocol.REGISTRATION, "GetInfo")
        assert (info.type, info.name) == ("DRAPlugin", "lanewise.dev")
        assert info.endpoint == str(plugin.service_socket)
        assert list(info.supported_versions)[:2] == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        assert plugin.registration_problem == "kubelet has not contacted it yet"
        kubelet.call(protocol.REGISTRATION, "NotifyRegistrationStatus", plugin_registered=False, error="no")
        assert plugin.registration_problem == "kubelet refused to register it: no"
        kubelet.call(protocol.REGISTRATION, "NotifyRegistrationStatus", plugin_registered=True)
        assert plugin.registration_problem == ""
        assert b"lanewise_registered 1.0" in plugin.metrics.text()


@pytest.mark.parametrize("version", protocol.DRA)
def test_prepare_and_unprepare_answer_for_each_claim(
    plugin: Plugin, service: FileService, pool: t.Any, version: str
) -> None:
    api = protocol.DRA[version]
    requested = claims("good", "refused", "silent", "crashed", "wrong", "other")
    with Kubelet(plugin.service_socket, pool) as kubelet:
        for _unused in range(2):
            answer = kubelet.call(api, "NodePrepareResources", claims=requested)
            assert set(answer.claims) == {claim["uid"] for claim in requested}
            good, refused, silent, crashed, wrong, other = (answer.claims[claim["uid"]] for claim in requested)
            for entry in (good, other):
                (device,) = entry.devices
                assert list(device.request_names) == ["nic", "other"]
                assert (device.pool_name, device.device_name, entry.error) == ("node", "nic0", "")
                assert device.cdi_device_ids[0].startswith("k8s.lanewise.dev/claim=")
                assert getattr(device, "share_id", "share") == "share"
            assert refused.error == "config: mtu 70000 is above 9000"
            assert silent.error == "Refused"
            assert crashed.error == "the driver failed: KeyError: 'no such thing \\ud800'"
            assert wrong.error.startswith("the driver failed: TypeError") and not wrong.devices
        assert {path.name for path in service.folder.iterdir()} == {requested[0]["uid"], requested[5]["uid"]}
        for _unused in range(2):
            answer = kubelet.call(api, "NodeUnprepareResources", claims=requested)
            errors = {uid: entry.error for uid, entry in answer.claims.items() if entry.error}
            assert errors == {requested[1]["uid"]: "the interface does not come back"}
            assert len(answer.claims) == len(requested)
        assert not list(service.folder.iterdir())
    text = plugin.metrics.text().decode()
    assert 'lanewise_operation_seconds_count{operation="prepare",outcome="ok"} 4.0' in text
    assert 'lanewise_operation_seconds_count{operation="prepare",outcome="refused"} 4.0' in text


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    ["", ".", "..", "../../etc/passwd", "a/b", "A", "good", "refused", "\0", "x" * 300, UID.format(7)]
)


def test_any_request_is_answered(plugin: Plugin, service: FileService) -> None:
    """Every claim gets an answer, and no file is created outside the folder of the service."""
    with Kubelet(plugin.service_socket, protocol.pool) as kubelet:

        @settings(max_examples=400, deadline=None)
        @given(
            st.sampled_from(sorted(protocol.DRA.values())),
            st.sampled_from(["NodePrepareResources", "NodeUnprepareResources"]),
            st.lists(st.fixed_dictionaries({"namespace": TEXTS, "name": TEXTS, "uid": TEXTS}), max_size=5),
        )
        def call(service_name: str, method: str, requested: list[dict[str, str]]) -> None:
            answer = kubelet.call(service_name, method, claims=requested)
            assert set(answer.claims) == {claim["uid"] for claim in requested}
            for uid, entry in answer.claims.items():
                if "/" in uid or uid in ("", ".", "..", "\0"):
                    assert bool(entry.error) == (method == "NodePrepareResources")

        call()
        for path in service.folder.iterdir():
            assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", path.name), path.name


def test_any_bytes_are_answered_and_the_plugin_still_serves(plugin: Plugin) -> None:
    with Kubelet(plugin.service_socket, protocol.pool) as kubelet:
        services = [*protocol.DRA.values(), *protocol.HEALTH.values(), "no.such.Service"]

        @settings(max_examples=200, deadline=None)
        @given(st.sampled_from(services), st.sampled_from(["NodePrepareResources", "No"]), st.binary(max_size=60))
        def call(service_name: str, method: str, content: bytes) -> None:
            try:
                kubelet.channel.unary_unary(f"/{service_name}/{method}")(content, timeout=30)
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED)

        call()
        answer = kubelet.call(protocol.DRA["v1"], "NodePrepareResources", claims=claims("good"))
        assert not answer.claims[UID.format(0)].error


@pytest.mark.parametrize("version", protocol.HEALTH)
def test_health_is_streamed_when_it_changes(plugin: Plugin, service: FileService, pool: t.Any, version: str) -> None:
    with Kubelet(plugin.service_socket, pool) as kubelet:
        stream = kubelet.call(protocol.HEALTH[version], "NodeWatchResources")
        (first,) = next(stream).devices
        assert (first.device.pool_name, first.device.device_name, first.health) == ("node", "nic0", 1)
        assert (first.last_updated_time, first.health_check_timeout_seconds) == (1_700_000_000, 30)
        service.devices = {"nic0": "unhealthy", "nic1": "unknown"}
        start = time.monotonic()
        plugin.health_changed()
        assert [device.health for device in next(stream).devices] == [2, 0]
        assert time.monotonic() - start < 5
        # if the health cannot be determined, nothing is sent, and the stream continues
        service.devices = {"nic0": "no such health"}
        plugin.health_changed()
        time.sleep(0.2)
        service.devices = {"nic0": "healthy"}
        plugin.health_changed()
        assert [device.health for device in next(stream).devices] == [1]
        stream.cancel()


def test_health_is_also_sent_regularly_without_a_change(
    paths: Paths, service: FileService, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plugin_module.HEALTH_INTERVAL_SECONDS * 2 < plugin_module.HEALTH_TIMEOUT_SECONDS
    monkeypatch.setattr(plugin_module, "HEALTH_INTERVAL_SECONDS", 0.1)
    plugin = Plugin(paths, service, Metrics())
    plugin.start()
    with Kubelet(plugin.service_socket, protocol.pool) as kubelet:
        stream = kubelet.call(protocol.HEALTH["v1"], "NodeWatchResources")
        assert all(next(stream).devices for _unused in range(5))
    plugin.stop(1)


def test_health_streams_never_use_up_the_threads(plugin: Plugin) -> None:
    for _round in range(4):
        clients = [Kubelet(plugin.service_socket, protocol.pool) for _unused in range(plugin_module.MAX_STREAMS + 3)]
        streams = [client.call(protocol.HEALTH["v1"], "NodeWatchResources") for client in clients]
        ended = 0
        for stream in streams:
            try:
                next(stream)
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                ended += 1
        assert ended == 3
        answer = clients[0].call(protocol.DRA["v1"], "NodePrepareResources", claims=claims("good"))
        assert not answer.claims[UID.format(0)].error
        # the threads of closed connections are freed
        for client in clients:
            client.close()
        until(lambda: plugin._streams._value == plugin_module.MAX_STREAMS)


def test_sockets_are_for_root_only_and_are_removed_at_the_end(paths: Paths, service: FileService) -> None:
    plugin = Plugin(paths, service, Metrics())
    plugin.start()
    for path in (plugin.service_socket, plugin.registration_socket):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (paths.plugin_dir, paths.state_dir, paths.run_dir, paths.netns_dir):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    plugin.stop(1)
    plugin.stop(1)
    assert not plugin.service_socket.exists() and not plugin.registration_socket.exists()


def test_running_calls_end_before_the_plugin_stops(paths: Paths, service: FileService) -> None:
    plugin = Plugin(paths, service, Metrics())
    plugin.start()
    service.delay = 1
    with Kubelet(plugin.service_socket, protocol.pool) as kubelet, ThreadPoolExecutor() as threads:
        stream = kubelet.call(protocol.HEALTH["v1"], "NodeWatchResources")
        next(stream)
        call = threads.submit(kubelet.call, protocol.DRA["v1"], "NodePrepareResources", claims=claims("exclusive"))
        until((service.folder / "running").exists)
        start = time.monotonic()
        plugin.stop(20)
        assert time.monotonic() - start < 10
        assert not call.result().claims[UID.format(0)].error
        # the stream ends, so that it does not delay the stop
        assert list(stream) == []


def test_a_restarted_driver_replaces_stale_sockets(root: Path, paths: Paths, service: FileService) -> None:
    """After kill -9 the sockets still exist."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from ansible_collections.lanewise.dra.tests.driver.folders import under\n"
        "from lanewise_driver.kubelet.plugin import Plugin; from lanewise_driver.base.metrics import Metrics\n"
        "Plugin(under(Path(sys.argv[1])), None, Metrics()).start(); print('up', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout and child.stdout.readline() == b"up\n"
    plugin = Plugin(paths, service, Metrics())
    # while a process runs, another one does not replace its sockets
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugin_module, "OLD_PROCESS_SECONDS", 0.3)
        with pytest.raises(DriverError, match="another process of lanewise.dev"):
            plugin.start()
    child.kill()
    child.communicate()
    assert plugin.service_socket.exists()
    plugin.start()
    with Kubelet(plugin.registration_socket, protocol.pool) as kubelet:
        assert kubelet.call(protocol.REGISTRATION, "GetInfo").name == "lanewise.dev"
    plugin.stop(1)


@pytest.mark.parametrize("deleted", ["service_socket", "registration_socket", "both", "folder"])
def test_deleted_sockets_are_created_again(
    paths: Paths, service: FileService, monkeypatch: pytest.MonkeyPatch, deleted: str
) -> None:
    monkeypatch.setattr(plugin_module, "WATCH_INTERVAL_SECONDS", 0.05)
    plugin = Plugin(paths, service, Metrics())
    plugin.start()
    sockets = [plugin.service_socket, plugin.registration_socket]
    before = [path.stat().st_ino for path in sockets]
    for path in sockets:
        if deleted in ("both", "folder") or path == getattr(plugin, deleted):
            path.unlink()
    if deleted == "folder":
        paths.registry_dir.rmdir()

    def exist_again() -> bool:
        return all(path.exists() for path in sockets) and before != [path.stat().st_ino for path in sockets]

    until(exist_again)
    reason = "its sockets were removed, and kubelet has not contacted it since it started to listen again"
    assert plugin.registration_problem == reason
    gc.collect()
    with Kubelet(plugin.registration_socket, protocol.pool) as kubelet:
        endpoint = kubelet.call(protocol.REGISTRATION, "GetInfo").endpoint
    with Kubelet(Path(endpoint), protocol.pool) as kubelet:
        answer = kubelet.call(protocol.DRA["v1"], "NodePrepareResources", claims=claims("good"))
        assert not answer.claims[UID.format(0)].error
    plugin.stop(1)
    assert not any(path.exists() for path in sockets)


def test_a_driver_that_cannot_listen_for_kubelet_says_why_and_tries_again(
    paths: Paths, service: FileService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_module, "WATCH_INTERVAL_SECONDS", 0.05)
    plugin = Plugin(paths, service, Metrics())
    plugin.start()
    plugin.registration_socket.unlink()
    paths.registry_dir.rmdir()
    paths.registry_dir.touch()  # a file in place of the folder
    until(lambda: plugin.registration_problem.startswith("it cannot listen for kubelet: "))
    assert str(paths.registry_dir) in plugin.registration_problem
    paths.registry_dir.unlink()
    until(plugin.registration_socket.exists)
    until(lambda: plugin.registration_problem.startswith("its sockets were removed, and kubelet has not contacted it"))
    plugin.stop(1)


def test_two_instances_serve_during_a_rolling_update(paths: Paths, service: FileService) -> None:
    """Two pods of the driver both serve, but not two calls at a time, and one can end without the other."""
    old, new = (Plugin(paths, service, Metrics(), INSTANCE_UID.format(i)) for i in (1, 2))
    old.start()
    new.start()
    assert len({old.service_socket, new.service_socket, old.registration_socket, new.registration_socket}) == 4
    default = Paths().registration_socket(INSTANCE_UID.format(1))
    assert default.name == f"lanewise.dev-{INSTANCE_UID.format(1)}-reg.sock"
    assert old.service_socket.name == f"dra-{INSTANCE_UID.format(1)}.sock"
    service.delay = 0.05
    with Kubelet(old.service_socket, protocol.pool) as first, Kubelet(new.service_socket, protocol.pool) as second:
        with ThreadPoolExecutor(8) as threads:
            calls = [
                threads.submit(
                    (first, second)[i % 2].call, protocol.DRA["v1"], "NodePrepareResources", claims=claims("exclusive")
                )
                for i in range(16)
            ]
            assert [call.result().claims[UID.format(0)].error for call in calls] == [""] * 16
        # one instance unprepares what the other prepared
        assert (service.folder / UID.format(0)).exists()
        old.stop(1)
        gc.collect()
        assert not old.service_socket.exists() and new.service_socket.exists() and new.registration_socket.exists()
        second.call(protocol.DRA["v1beta1"], "NodeUnprepareResources", claims=claims("exclusive"))
        assert not (service.folder / UID.format(0)).exists()
    new.stop(1)
    assert not list(paths.registry_dir.iterdir())


def test_calls_wait_for_the_lock_of_another_process(paths: Paths, service: FileService) -> None:
    plugin = Plugin(paths, service, Metrics(), INSTANCE_UID.format(1))
    plugin.start()
    code = (
        "import sys; from pathlib import Path; from lanewise_driver.base.lock import serialized\n"
        "with serialized(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(paths.serialize_lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout and holder.stdout.readline() == b"held\n"
    with pytest.raises(Busy, match="another instance"), lock.serialized(paths.serialize_lock, 0.1):
        raise AssertionError("two processes hold the lock")
    with Kubelet(plugin.service_socket, protocol.pool) as kubelet, ThreadPoolExecutor() as threads:
        call = threads.submit(kubelet.call, protocol.DRA["v1"], "NodePrepareResources", claims=claims("good"))
        time.sleep(0.5)
        assert not call.done()
        holder.kill()
        assert not call.result().claims[UID.format(0)].error
    holder.communicate()
    plugin.stop(1)


def test_socket_names_are_shortened_until_the_path_fits(root: Path, service: FileService) -> None:
    """They are shortened only as far as the limit of a socket address requires."""
    instance = INSTANCE_UID.format(1)
    names = {}
    for length in range(len(str(root)) + 2, MAX_SOCKET_PATH_BYTES):
        paths = under(root, registry_dir=Path(f"{root}/".ljust(length, "r")))
        try:
            path = paths.registration_socket(instance)
        except DriverError:
            break
        assert len(str(path)) <= MAX_SOCKET_PATH_BYTES
        names[path.name] = paths
    assert [len(str(paths.registration_socket(instance))) for paths in names.values()] == [MAX_SOCKET_PATH_BYTES] * 2
    for name, paths in names.items():
        plugin = Plugin(paths, service, Metrics(), instance)
        plugin.start()
        with Kubelet(paths.registry_dir / name, protocol.pool) as kubelet:
            assert kubelet.call(protocol.REGISTRATION, "GetInfo").endpoint == str(plugin.service_socket)
        plugin.stop(1)
    long_paths = under(root, plugin_dir=Path(f"{root}/".ljust(80, "p")))
    assert long_paths.service_socket(instance).name == "dra-kN1UCFUzGhs.sock"
    with pytest.raises(DriverError, match="too long for a Unix socket"):
        Plugin(under(root / ("x" * 100)), service, Metrics())


def test_a_hundred_claims_are_prepared_at_once(plugin: Plugin, service: FileService) -> None:
    with ThreadPoolExecutor(24) as threads, Kubelet(plugin.service_socket, protocol.pool) as kubelet:
        calls = [
            threads.submit(
                kubelet.call,
                protocol.DRA["v1"],
                "NodePrepareResources",
                claims=[{"namespace": "n", "name": "good", "uid": UID.format(i)}],
            )
            for i in range(100)
        ]
        assert all(not call.result().claims[UID.format(i)].error for i, call in enumerate(calls))
    assert len(list(service.folder.iterdir())) == 100


#: A plugin whose process forks while it answers calls.
FORKING_DRIVER = """
import os, sys, time
from pathlib import Path
from lanewise_driver.kubelet import plugin, protocol
from lanewise_driver.base.metrics import Metrics
from ansible_collections.lanewise.dra.tests.driver.folders import under
from ansible_collections.lanewise.dra.tests.driver.kubelet import FileService, Kubelet
from concurrent.futures import ThreadPoolExecutor
root = Path(sys.argv[1])
service = FileService(root)
service.delay = 0.02
started = plugin.Plugin(under(root), service, Metrics())
started.start()
kubelet = Kubelet(started.service_socket, protocol.pool)
next(kubelet.call(protocol.HEALTH["v1"], "NodeWatchResources"))
claim = {"namespace": "n", "name": "exclusive", "uid": "u"}
call = lambda: kubelet.call(protocol.DRA["v1"], "NodePrepareResources", claims=[claim])
with ThreadPoolExecutor(1) as threads:
    calls = [threads.submit(call) for _ in range(40)]
    for _ in range(40):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    print([call.result().claims["u"].error for call in calls] == [""] * 40)
started.stop(1)
"""


def test_calls_are_answered_while_the_process_forks(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING_DRIVER, str(root)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "True\n"
    assert "fork" not in done.stderr


def test_a_stopped_plugin_leaves_no_threads_or_descriptors(paths: Paths, service: FileService) -> None:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _unused in range(10):
        plugin = Plugin(paths, service, Metrics())
        plugin.start()
        plugin.stop(1)
    gc.collect()
    until(lambda: threading.active_count() <= threads + 1)
    assert len(os.listdir("/proc/self/fd")) < descriptors + 10
