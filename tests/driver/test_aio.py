# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Asynchronous reads and writes of sysctls return what plain ones return. What they save is in docs/bench."""

from __future__ import annotations

import errno
import os
import typing as t
from pathlib import Path

import pytest
from lanewise_driver.kernel import aio, netns, sysctls

CONF = Path("/proc/sys/net/ipv6/conf")
MODE = CONF / "lo" / "addr_gen_mode"

pytestmark = pytest.mark.skipif(not MODE.exists(), reason="the kernel has no IPv6")


def _content(path: Path, read: t.Callable[[int], bytes]) -> bytes | int | None:
    """The content, or errno if it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read(descriptor)
    except OSError as error:
        return error.errno
    finally:
        os.close(descriptor)


def test_every_sysctl_reads_the_same_as_by_a_plain_read() -> None:
    files = [
        path for folder in (CONF / "lo", CONF / "default") for path in folder.iterdir() if os.access(path, os.R_OK)
    ]
    assert len(files) > 50
    for path in files:
        assert _content(path, aio.read) == _content(path, lambda descriptor: os.read(descriptor, 4096)), path


def test_reading_a_secret_that_is_not_set_is_an_error() -> None:
    """As with a plain read; sysctls.read relies on that."""

    def look() -> None:
        assert _content(CONF / "lo" / "stable_secret", aio.read) == errno.EIO
        assert "net.ipv6.conf.IFNAME.stable_secret" not in sysctls.read("lo")
        sysctls.write("lo", {"net.ipv6.conf.IFNAME.stable_secret": "2001:db8::1"})
        assert sysctls.read("lo")["net.ipv6.conf.IFNAME.stable_secret"] == "2001:0db8:0000:0000:0000:0000:0000:0001"

    _elsewhere(look)


def test_writes_what_the_kernel_accepts_and_reports_what_it_refuses() -> None:
    def change() -> None:
        key = "net.ipv6.conf.IFNAME.addr_gen_mode"
        sysctls.write("lo", {key: "1"})
        assert MODE.read_text() == "1\n" and sysctls.get("lo", key) == "1"
        with pytest.raises(OSError, match="addr_gen_mode = 9") as caught:
            sysctls.write("lo", {key: "9"})
        assert caught.value.errno == errno.EINVAL
        assert MODE.read_text() == "1\n"

    _elsewhere(change)


def test_an_uncollected_result_is_not_returned_by_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an exception between the two system calls of a request."""
    real = aio._call

    def interrupted(number: int, *arguments: t.Any) -> int:
        if real(number, *arguments) == 1 and len(arguments) == 3:  # io_submit
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(aio, "_context", aio._Context())
    longer = CONF / "lo" / "mtu"
    assert len(_plain(longer)) > len(_plain(MODE))
    assert _content(MODE, aio.read) == _plain(MODE)
    if aio._context._calls is None:
        pytest.skip("the kernel or a seccomp filter refuses io_submit(2)")
    monkeypatch.setattr(aio, "_call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _content(longer, aio.read)
    monkeypatch.setattr(aio, "_call", real)
    assert _content(MODE, aio.read) == _plain(MODE)


def _plain(path: Path) -> bytes:
    return path.read_bytes()


def _elsewhere(function: t.Callable[[], None]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes network namespaces")
    space = netns.new()
    try:
        netns.run(space, function)
    finally:
        os.close(space)
