# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Metrics and readiness over HTTP, and log lines."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import socket
import threading
import time
import typing as t
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from lanewise_driver import cli
from lanewise_driver import web as web_module
from lanewise_driver.base import logs
from lanewise_driver.base.errors import Busy, KernelError, Refused
from lanewise_driver.base.metrics import ALLOCATED, ATTACH, PREPARE, PUBLISHED, Metrics
from lanewise_driver.web import MAX_CONNECTIONS, Web
from prometheus_client.parser import text_string_to_metric_families


def samples(text: str) -> dict[str, float]:
    """The values of all metrics, without buckets. A key is the metric's name and the values of its labels."""
    return {
        sample.name + "".join(f" {value}" for _unused, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    """The status and the text of the answer to a request."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_operations_are_counted_by_their_outcome() -> None:
    metrics = Metrics()
    cases: list[tuple[Exception | None, str]] = [
        (None, "ok"),
        (Refused("x"), "refused"),
        (Busy("x"), "busy"),
        (KernelError("x", 1), "kernel"),
        (KeyError("x"), "failed"),
    ]
    for error, _outcome in cases:
        try:
            with metrics.operation(ATTACH):
                if error:
                    raise error
        except type(error) as raised:  # type: ignore[misc]
            assert raised is error
    found = samples(metrics.text().decode())
    for _error, outcome in cases:
        assert found[f"lanewise_operation_seconds_count attach {outcome}"] == 1
    assert found["lanewise_operation_seconds_count prepare ok"] == 0


def test_the_guide_lists_every_metric() -> None:
    guide = Path(__file__).resolve().parents[2] / "docs/driver.md"
    listed = set(re.findall(r"(?m)^\| `(lanewise_\w+)`", guide.read_text(encoding="utf-8")))
    families = text_string_to_metric_families(Metrics().text().decode())
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert listed == {name for name in names if not name.endswith("_created")}


def test_http_serves_health_readiness_and_metrics() -> None:
    reasons: list[str] = ["kubelet has not contacted it yet", "nothing is published"]
    metrics = Metrics()
    metrics.devices(PUBLISHED, 8)
    metrics.devices(ALLOCATED, 2)
    metrics.published()
    metrics.error("publish")
    with metrics.operation(PREPARE):
        pass
    web = Web("127.0.0.1:0", metrics, lambda: reasons)
    web.start()
    try:
        assert get(web.port, "/healthz") == (200, "ok\n")
        assert get(web.port, "/readyz?verbose") == (503, "kubelet has not contacted it yet\nnothing is published\n")
        reasons.clear()
        assert get(web.port, "/readyz") == (200, "ok\n")
        assert get(web.port, "/other")[0] == 404
        found = samples(get(web.port, "/metrics")[1])
        assert found["lanewise_devices published"] == 8 and found["lanewise_devices allocated"] == 2
        assert found["lanewise_errors_total publish"] == 1
        assert found["lanewise_published_timestamp_seconds"] > 1.7e9
        reasons.append(None)  # type: ignore[arg-type]
        assert get(web.port, "/readyz")[0] == 503
    finally:
        web.stop()
        web.stop()
    with pytest.raises(OSError):
        get(web.port or 1, "/healthz")


def test_http_continues_after_an_error_in_a_handler() -> None:
    def broken() -> t.Sequence[str]:
        raise KeyError("x")

    web = Web("127.0.0.1:0", Metrics(), broken)
    web.start()
    assert get(web.port, "/readyz") == (500, "failed\n")
    assert get(web.port, "/healthz") == (200, "ok\n")
    web.stop()


@pytest.mark.parametrize("answer", ["HTTP/1.0 503 x\r\nContent-Length: 96\r\n\r\n", "HTTP/1.0 503 x\r\nCon", "HT", ""])
def test_a_driver_that_ends_while_it_answers_is_reported_as_not_ready(
    answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = tmp_path / "driver.yml"
        settings.write_text(f"metrics_address: 127.0.0.1:{server.getsockname()[1]}")

        def answer_and_close() -> None:
            connection, _address = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer.encode())

        thread = threading.Thread(target=answer_and_close)
        thread.start()
        arguments = [f"--settings={settings}", f"--plugin-dir={tmp_path}", f"--run-dir={tmp_path}", "status", "--json"]
        status = cli.main(arguments)
        thread.join()
    printed = json.loads(capsys.readouterr().out)
    assert status == 1 and printed["ready"] is False
    assert re.match(r"the driver does not answer|http://\S+ returned status 503", printed["reasons"][0])


@pytest.fixture
def web() -> t.Iterator[Web]:
    web = Web("127.0.0.1:0", Metrics(), list)
    web.start()
    yield web
    web.stop()


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "half a request"])
def test_silent_clients_take_no_threads_and_delay_no_others(web: Web, sent: bytes) -> None:
    """Any process on the node can connect, also pods in the host network."""
    threads, before = threading.active_count(), count_descriptors()
    with contextlib.ExitStack() as stack:
        for _number in range(512):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", web.port), timeout=20))
            with contextlib.suppress(OSError):  # it may have been dropped
                client.sendall(sent)
        start = time.monotonic()
        for _attempt in range(20):
            assert get(web.port, "/healthz") == (200, "ok\n")
        assert time.monotonic() - start < 20
        assert threading.active_count() == threads
        assert count_descriptors() - before <= 512 + MAX_CONNECTIONS


def test_clients_that_never_read_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    class LongMetrics(Metrics):
        def text(self) -> bytes:
            return b"# filler\n" * 5_000_000

    monkeypatch.setattr(web_module, "CONNECTION_SECONDS", 0.5)
    web = Web("127.0.0.1:0", LongMetrics(), list)
    web.start()
    try:
        with socket.create_connection(("127.0.0.1", web.port), timeout=20) as stalled:
            stalled.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert get(web.port, "/healthz") == (200, "ok\n")
            time.sleep(0.6)
            assert get(web.port, "/healthz") == (200, "ok\n")
            with pytest.raises(OSError):  # Broken pipe, or reset
                for _attempt in range(200):
                    stalled.sendall(b"x")
                    time.sleep(0.05)
    finally:
        web.stop()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"\0\xff" * 10_000, 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET " + b"/" * 9000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"POST /healthz HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 405),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 404),
        (b"GET /healthz HTTP/1.0\r\n\r\nGET /healthz HTTP/1.0\r\n\r\n", 200),
    ],
)
def test_any_bytes_get_their_status_or_no_answer(web: Web, sent: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", web.port), timeout=20) as client:
        answer = b""
        with contextlib.suppress(OSError):  # the connection is reset if the server has not read the whole request
            client.sendall(sent)
            while part := client.recv(4096):
                answer += part
        assert not answer or answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert get(web.port, "/healthz") == (200, "ok\n")


def test_a_flood_of_requests_uses_only_part_of_a_processor(web: Web) -> None:
    """The server limits its thread to a quarter of the time; the assertion leaves a margin."""
    done = threading.Event()

    def flood() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):
                get(web.port, "/metrics")

    clients = [threading.Thread(target=flood) for _number in range(4)]
    assert web._thread and web._thread.native_id
    for thread in clients:
        thread.start()
    before, start = cpu_seconds(web._thread.native_id), time.monotonic()
    time.sleep(2)
    used, taken = cpu_seconds(web._thread.native_id) - before, time.monotonic() - start
    done.set()
    for thread in clients:
        thread.join()
    assert used < 0.4 * taken


def cpu_seconds(thread: int) -> float:
    """CPU seconds of a thread of this process (proc_pid_stat(5))."""
    fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_http_is_served_over_ipv6() -> None:
    web = Web("[::1]:0", Metrics(), list)
    try:
        web.start()
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert get(web.port, "/readyz", "[::1]") == (200, "ok\n")
    web.stop()


@pytest.fixture
def lines() -> t.Iterator[t.Callable[[], list[dict[str, t.Any]]]]:
    """Configures logging. Gives a function that returns the lines logged so far."""
    root = logging.getLogger()
    before = list(root.handlers), root.level
    stream = io.StringIO()
    logs.setup("info", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:], root.level = before


def test_log_lines_contain_claim_pod_device_and_error(lines: t.Callable[[], list[dict[str, t.Any]]]) -> None:
    log = logging.getLogger("lanewise_driver.claims.service")
    with logs.context(claim="uid-1", pod="training/worker-0", pod_uid=""):
        log.info("attached %d", 2, extra={"device": "nic0"})
        with logs.context(claim="uid-2"):
            thread = threading.Thread(target=log.warning, args=("in another thread",))
            thread.start()
            thread.join()
        try:
            raise KernelError("move eth7", 16)
        except KernelError:
            log.exception("two\nlines")
    log.debug("not logged")
    log.info("after")
    first, second, third, fourth = lines()
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "message": "attached 2",
        "part": "claims.service",
        "claim": "uid-1",
        "pod": "training/worker-0",
        "device": "nic0",
    }
    assert "claim" not in second and second["level"] == "warning"
    assert third["error"] == "KernelError: move eth7: Device or resource busy" and third["claim"] == "uid-1"
    assert third["message"] == "two\nlines" and "Traceback" in third["trace"]
    assert set(fourth) == {"time", "level", "message", "part"}


def test_long_log_lines_are_shortened(lines: t.Callable[[], list[dict[str, t.Any]]]) -> None:
    log = logging.getLogger("lanewise_driver.claims.service")
    long = "half a line " + "x" * 1_000_000
    with logs.context(claim=long, pod=long):
        try:
            raise ValueError(long)
        except ValueError:
            log.exception("of %s", long, extra={"device": long})
    (line,) = lines()
    assert line["message"].startswith("of half") and line["error"].startswith("ValueError: half")
    assert len(json.dumps(line)) < 50_000


def test_a_condition_that_lasts_is_logged_once(lines: t.Callable[[], list[dict[str, t.Any]]]) -> None:
    conditions = logs.Conditions(logging.getLogger("lanewise_driver.claims.recovery"))
    for message in ("busy", "busy", "gone", "busy"):
        conditions.report("uid-1", logging.ERROR, message)
        conditions.report("uid-2", logging.WARNING, "other")
    conditions.clear("uid-1")
    conditions.report("uid-1", logging.ERROR, "busy")
    for number in range(5000):
        conditions.report(number, logging.DEBUG, "many")
    assert len(conditions._logged) <= conditions._MAX_CONDITIONS
    logged = [(line["level"], line["message"]) for line in lines()]
    assert logged == [
        ("error", "busy"),
        ("warning", "other"),
        ("error", "gone"),
        ("error", "busy"),
        ("error", "busy"),
    ]


def test_unknown_log_fields_and_levels_are_errors() -> None:
    with pytest.raises(KeyError), logs.context(clam="x"):
        pass
    with pytest.raises(ValueError):
        logs.setup("loud")


def test_a_second_setup_of_logging_replaces_the_first(lines: t.Callable[[], list[dict[str, t.Any]]]) -> None:
    stream = io.StringIO()
    logs.setup("debug", stream)
    logging.getLogger("lanewise_driver").debug("once")
    assert len(stream.getvalue().splitlines()) == 1 and lines() == []
