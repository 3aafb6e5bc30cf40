# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""MTUs of interfaces that systemd-networkd, udev, NetworkManager or netplan manage, with the real programs.

Each test has its own node, with a private /run, /etc, /dev and system bus.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import subprocess
import tempfile
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import State
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Outcome, Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.undo import Failed
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources import owner
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.mtu import Mtu
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.rail_routes import RailRoutes
from ansible_collections.lanewise.dra.tests.common import waiting
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, pair, run
from ansible_collections.lanewise.dra.tests.host.debian_packages import unpacked_packages
from ansible_collections.lanewise.dra.tests.host.faults import FailingSystem
from ansible_collections.lanewise.dra.tests.host.node import node, run_program

_SYSTEMD = Path("/usr/lib/systemd")
_PACKAGES = (
    *("network-manager", "libnm0", "libbluetooth3", "libmm-glib0", "libndp0", "libnewt0.52", "libslang2"),
    *("libteamdctl0", "libjansson4", "libpsl5", "libcurl3-gnutls"),
    *("netplan.io", "libnetplan0", "python3-netifaces", "python3-dbus", "python3-rich", "python3-yaml"),
    *("python3-markdown-it", "python3-mdurl", "python3-pygments"),
)
#: The configuration of a system bus that everyone may use and that starts no services.
_BUS = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/><allow eavesdrop="true"/>
</policy></busconfig>
"""
_DROP_IN = Path("/etc/systemd/network/10-rail.network.d/lanewise.conf")
_PROFILE = Path("/etc/NetworkManager/system-connections/rail0.nmconnection")
_UUID = "11111111-2222-3333-4444-555555555555"
_NETPLAN = """\
network:
  version: 2
  {}
  ethernets:
    rail0:
      match: {{name: rail0}}
      mtu: 1500
      link-local: []
      accept-ra: false
      addresses: [10.0.0.1/24]
      virtual-function-count: 4
    ens1:
      match: {{name: ens1}}
    ens1v0: {{link: ens1}}
    ens1v1: {{link: ens1}}
"""

TestFunction = t.Callable[..., None]


def with_programs(networkmanager: bool = False) -> t.Callable[[TestFunction], TestFunction]:
    """Run a test on a node with a system bus and udev, and with NetworkManager and netplan installed on request."""

    def decorate(function: TestFunction) -> TestFunction:
        @functools.wraps(function)
        def test() -> None:
            for program in ("systemd-udevd", "systemd-networkd"):
                if not (_SYSTEMD / program).exists():
                    pytest.skip(f"needs {program}")
            if not shutil.which("dbus-daemon") or not shutil.which("networkctl"):
                pytest.skip("needs dbus-daemon and networkctl")
            root = unpacked_packages("network", _PACKAGES, "NetworkManager and netplan") if networkmanager else None
            memory = Path("/dev/shm")
            with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
                os.chmod(folder, 0o755)
                on_the_node(Path(folder), root)

        @on_a_node
        def on_the_node(folder: Path, root: Path | None) -> None:
            _prepare(folder, root)
            pair("rail0")
            with contextlib.ExitStack() as programs:
                _start(programs, "dbus-daemon", "--config-file", "/run/dbus/bus.conf", "--nofork", "--nopidfile")
                _start(programs, str(_SYSTEMD / "systemd-udevd"))
                wait_until(lambda: Path("/run/udev/control").exists() and Path("/run/dbus/system_bus_socket").exists())
                trigger_add_events()
                function(programs)

        del test.__wrapped__  # type: ignore[attr-defined]  # pytest would take the parameter of that function for a fixture
        return test

    return decorate


def _prepare(folder: Path, root: Path | None) -> None:
    """Mount the node's own /etc, /dev and udev rules, and /usr with the packages in `root`."""
    for name in ("etc", "work", "rules", "state", "dev"):
        (folder / name).mkdir()
    etc, usr = (f"{root}/{top}:/{top}" if root else f"/{top}" for top in ("etc", "usr"))
    run(f"mount -t overlay etc -o lowerdir={etc},upperdir={folder}/etc,workdir={folder}/work /etc")
    if root:
        run(f"mount -t overlay usr -o lowerdir={usr} /usr && ldconfig")
    # only the udev rules that apply .link files, because events of the host's devices arrive here too
    shutil.copy("/usr/lib/udev/rules.d/80-net-setup-link.rules", folder / "rules")
    for path in ("/usr/lib/udev/rules.d", "/etc/udev/rules.d"):
        Path(path).mkdir(parents=True, exist_ok=True)
    run(f"mount --bind {folder}/rules /usr/lib/udev/rules.d && mount --bind {folder}/state /var/lib")
    run(f"for device in null zero full random urandom; do cp -a /dev/$device {folder}/dev; done")
    run(f"mount --bind {folder}/dev /dev")
    for path in ("/etc/udev/rules.d", "/etc/systemd/network", "/etc/netplan"):
        shutil.rmtree(path, ignore_errors=True)
        Path(path).mkdir(parents=True)
    for path in ("/run/dbus", "/etc/NetworkManager/system-connections", "/etc/NetworkManager/conf.d"):
        Path(path).mkdir(parents=True, exist_ok=True)
    Path("/run/dbus/bus.conf").write_text(_BUS)
    Path("/etc/NetworkManager/conf.d/test.conf").write_text(
        "[main]\nno-auto-default=*\ndns=none\nrc-manager=unmanaged\nhostname-mode=none\n"
        "[keyfile]\nunmanaged-devices=except:interface-name:rail0\n"
    )


def _start(programs: contextlib.ExitStack, *command: str) -> subprocess.Popen[bytes]:
    """Start a program that is terminated after the test. It cannot change the host name of the machine."""
    with open("/run/programs.log", "ab") as log:
        process = subprocess.Popen(["unshare", "--uts", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    programs.callback(process.wait)
    programs.callback(process.terminate)
    return process


wait_until = functools.partial(
    waiting.until, seconds=15, why=lambda: Path("/run/programs.log").read_text(errors="replace")[-4000:]
)


def generate_netplan_files(renderer: str) -> Path:
    """Write a netplan file and let netplan generate the files of its renderer. Returns the path of the netplan file."""
    path = Path("/etc/netplan/50-rail.yaml")
    path.write_text(_NETPLAN.format(renderer))
    path.chmod(0o600)
    run("/usr/libexec/netplan/generate")
    return path


def trigger_add_events() -> None:
    """Trigger the udev events of interfaces that a driver creates."""
    run("udevadm trigger --action=add --subsystem-match=net --settle")


def start_networkd(programs: contextlib.ExitStack) -> None:
    for name in ("links", "leases"):
        Path(f"/run/systemd/netif/{name}").mkdir(parents=True)
    run("chown -R systemd-network:systemd-network /run/systemd/netif")
    _start(programs, str(_SYSTEMD / "systemd-networkd"))
    wait_until(lambda: owner.NETWORKD in managers())
    wait_for_networkd()


def start_networkmanager(programs: contextlib.ExitStack) -> subprocess.Popen[bytes]:
    process = _start(programs, "NetworkManager", "--debug")
    wait_until(lambda: owner.NETWORK_MANAGER in managers())
    wait_until(lambda: "100 (connected)" in run("nmcli -g GENERAL.STATE device show rail0", check=False))
    return process


def managers(interface: str = "rail0") -> dict[str, owner.Manager]:
    """The programs that manage an interface, by name."""
    return {manager.program: manager for manager in owner.managers(System(), interface)}


def wait_for_networkd() -> None:
    """Wait until systemd-networkd has configured rail0."""
    state = Path(f"/run/systemd/netif/links/{Path('/sys/class/net/rail0/ifindex').read_text().strip()}")
    wait_until(lambda: "ADMIN_STATE=configured" in state.read_text())


def reconfigure() -> None:
    """Make networkd configure rail0 again, as an administrator or an update of systemd does."""
    run("networkctl reconfigure rail0")
    time.sleep(0.3)  # networkctl returns before networkd begins
    wait_for_networkd()


def mtu(interface: str = "rail0") -> int:
    return int(Path(f"/sys/class/net/{interface}/mtu").read_text())


def apply(
    *interfaces: str,
    system: System | None = None,
    extra: dict[str, t.Any] | None = None,
    wanted: dict[str, State] | None = None,
) -> Outcome:
    """Set the MTU of interfaces (rail0 by default) to 9000, or the state `wanted`.

    `extra` are other settings of the interfaces. Checks that check mode predicts the changes, and that a second run
    makes none.
    """
    system = system or System(run=run_program)
    settings = {name: {"mtu": 9000, **(extra or {})} for name in interfaces or ("rail0",)}
    try:
        predicted = converge(node(system, settings), [Mtu(system)], check_mode=True, wanted=wanted)
        outcome = converge(node(system, settings), [Mtu(system)], wanted=wanted)
        assert [str(change) for change in outcome.changes] == [str(change) for change in predicted.changes]
        assert not converge(node(system, settings), [Mtu(system)], wanted=wanted).changes
        return outcome
    finally:
        system.close()


def refusals() -> list[str]:
    """The reasons why the MTU of rail0 is not set to 9000."""
    with pytest.raises(Refused) as failure:
        apply()
    assert mtu() == 1500
    return [str(refusal) for refusal in failure.value.refusals]


def restore(outcome: Outcome) -> None:
    """Restore what `outcome` changed, as `state: absent` does."""
    apply(wanted=outcome.before)


def write_network_file(link: str = "MTUBytes=1500", match: str = "rail0") -> None:
    """Write a .network file of networkd, with the lines `link` in its section [Link]."""
    text = f"[Match]\nName={match}\n[Link]\n{link}\n[Network]\nLinkLocalAddressing=no\nAddress=10.0.0.1/24\n"
    Path("/etc/systemd/network/10-rail.network").write_text(text)


@with_programs()
def test_networkd_keeps_the_mtu_of_our_drop_in(programs: contextlib.ExitStack) -> None:
    write_network_file()
    start_networkd(programs)
    run("ip link set rail0 mtu 9000")
    reconfigure()
    assert mtu() == 1500  # without a drop-in networkd sets it again
    outcome = apply()
    assert [str(change) for change in outcome.changes] == [
        f"rail0: mtu in {_DROP_IN} unset -> 9000",
        "rail0: mtu 1500 -> 9000",
    ]
    assert outcome.changes[0].interrupts == "systemd-networkd reconfigures rail0"
    for _unused in range(2):
        reconfigure()
        assert mtu() == 9000
    run("networkctl reload")
    run("ip link set rail0-far down; sleep 0.3; ip link set rail0-far up")
    wait_for_networkd()
    assert mtu() == 9000
    restore(outcome)
    assert not _DROP_IN.exists() and mtu() == 1500
    reconfigure()
    assert mtu() == 1500


@with_programs()
def test_a_drop_in_that_is_no_longer_needed_is_removed(programs: contextlib.ExitStack) -> None:
    write_network_file()
    start_networkd(programs)
    apply()
    write_network_file("MTUBytes=9000")
    run("networkctl reload")
    assert [str(change) for change in apply().changes] == [f"rail0: mtu in {_DROP_IN} 9000 -> unset"]
    reconfigure()
    assert mtu() == 9000


@with_programs()
def test_without_a_networkd_setting_only_the_interface_changes(programs: contextlib.ExitStack) -> None:
    write_network_file("# MTUBytes=1500")
    start_networkd(programs)
    assert [str(change) for change in apply().changes] == ["rail0: mtu 1500 -> 9000"]
    reconfigure()
    assert mtu() == 9000 and not _DROP_IN.exists()


@with_programs()
def test_a_network_file_of_two_interfaces_needs_the_same_mtu_for_both(programs: contextlib.ExitStack) -> None:
    pair("rail10", "rail10-far")
    trigger_add_events()
    write_network_file(match="rail0 rail10")
    start_networkd(programs)
    wait_until(lambda: owner.NETWORKD in managers("rail10"))
    assert refusals() == [
        "rail0: mtu: systemd-networkd sets 1500 again, because of /etc/systemd/network/10-rail.network, which is for "
        "rail10 too (give rail0 a separate file, or request 9000 for them too)"
    ]
    apply("rail0", "rail10")
    reconfigure()
    assert mtu() == mtu("rail10") == 9000


@with_programs()
def test_an_mtu_that_a_later_drop_in_overrides_is_refused(programs: contextlib.ExitStack) -> None:
    write_network_file("")
    later = Path("/run/systemd/network/10-rail.network.d/mtu.conf")
    later.parent.mkdir(parents=True)
    later.write_text("[Link]\nMTUBytes = 1500\n")
    start_networkd(programs)
    assert refusals() == [
        f"rail0: mtu: systemd-networkd sets 1500 again, because of {later}, which overrides {_DROP_IN} "
        "(write MTUBytes=9000 there, or remove the line)"
    ]


@with_programs()
def test_an_mtu_is_refused_if_networkd_would_remove_rail_routes_for_it(programs: contextlib.ExitStack) -> None:
    write_network_file()
    start_networkd(programs)
    routes = {"rail_routes": {"table": 100, "gateway": "10.0.0.254"}}
    system = System(run=run_program)
    converge(node(system, {"rail0": routes}), [RailRoutes(system)])
    system.close()
    before = run("ip rule; ip route show table 100")
    with pytest.raises(Refused, match="which removes its rail routes") as failure:
        apply(extra=routes)
    assert f"mtu in {_DROP_IN}: " in str(failure.value) and mtu() == 1500
    _DROP_IN.parent.mkdir()
    _DROP_IN.write_text("[Link]\nMTUBytes=9000\n")
    run("networkctl reload")
    wait_until(lambda: mtu() == 9000)
    wait_for_networkd()
    wait_until(lambda: run("ip rule; ip route show table 100", check=False) != before)  # removed by networkd
    assert not apply(extra=routes).changes


@with_programs()
def test_a_failure_at_any_step_restores_the_mtu_and_removes_the_drop_in(programs: contextlib.ExitStack) -> None:
    write_network_file()
    start_networkd(programs)
    for number in range(3):  # the drop-in, networkctl, the interface
        for takes_effect in (False, True):
            system = FailingSystem(number, errno.EIO, takes_effect, run=run_program)
            with pytest.raises(Failed) as failure:
                apply(system=system)
            assert not failure.value.remaining and "rail0" in str(failure.value)
            assert mtu() == 1500 and not _DROP_IN.exists()
            reconfigure()
            assert mtu() == 1500
    system = FailingSystem(run=run_program)
    apply(system=system)
    assert len(system.steps) == 3


@with_programs()
def test_an_mtu_that_networkd_sets_during_the_undo_is_undone_too(programs: contextlib.ExitStack) -> None:
    write_network_file()
    start_networkd(programs)
    run("ip link set rail0 mtu 9000")  # as set by an older release, without a drop-in
    system = FailingSystem(1, errno.EIO, takes_effect=True, run=run_program)
    with pytest.raises(Failed, match="networkctl|MTU of rail0") as failure:
        apply(system=system)
    time.sleep(0.3)
    wait_for_networkd()
    assert not failure.value.remaining and mtu() == 9000 and not _DROP_IN.exists()


@with_programs()
def test_udev_gives_an_interface_that_reappears_the_mtu_of_our_drop_in(programs: contextlib.ExitStack) -> None:
    Path("/etc/systemd/network/10-rail.link").write_text("[Match]\nOriginalName=rail0\n[Link]\nMTUBytes=1500\n")
    run("udevadm control --reload; ip link set rail0 mtu 9000")
    trigger_add_events()
    assert mtu() == 1500 and managers()[owner.UDEV].file == "/etc/systemd/network/10-rail.link"
    outcome = apply()
    drop_in = Path("/etc/systemd/network/10-rail.link.d/lanewise.conf")
    assert [change.setting for change in outcome.changes] == [f"mtu in {drop_in}", "mtu"]
    assert not outcome.changes[0].interrupts
    run("ip link set rail0 mtu 1400")
    trigger_add_events()
    assert mtu() == 9000
    restore(outcome)
    assert not drop_in.exists()
    trigger_add_events()
    assert mtu() == 1500


@with_programs(networkmanager=True)
def test_networkd_files_of_netplan_get_a_drop_in_and_its_number_of_vfs_is_kept(programs: contextlib.ExitStack) -> None:
    yaml = generate_netplan_files("")
    trigger_add_events()
    start_networkd(programs)
    assert managers()[owner.NETWORKD] == owner.Manager(owner.NETWORKD, "/run/systemd/network/10-netplan-rail0.network")
    run("ip link set rail0 mtu 9000")
    reconfigure()
    assert mtu() == 1500
    outcome = apply()
    drop_ins = [f"/etc/systemd/network/10-netplan-rail0.{kind}.d/lanewise.conf" for kind in ("network", "link")]
    assert [change.setting for change in outcome.changes] == [*(f"mtu in {path}" for path in drop_ins), "mtu"]
    run("/usr/libexec/netplan/generate && networkctl reload")
    reconfigure()
    trigger_add_events()
    assert mtu() == 9000
    system = System(run=run_program)
    assert [str(refusal) for refusal in owner.vfs_refusals(system, "rail0", "rail0", 8)] == [
        f"rail0: num_vfs: {yaml} creates 4 VFs of rail0, not 8 "
        "(write 8 there or remove it, or leave the VFs to that program: externally_managed: true)"
    ]
    assert not owner.vfs_refusals(system, "rail0", "rail0", 4)
    assert owner._vfs_of_netplan(system, "ens1") == 2 and owner._vfs_of_netplan(system, "ens1v0") is None
    restore(outcome)
    reconfigure()
    assert mtu() == 1500


def write_profile(ethernet: str = "mtu=1500") -> None:
    """Write a profile of NetworkManager, with the lines `ethernet` in its section [ethernet]."""
    _PROFILE.parent.mkdir(parents=True, exist_ok=True)
    _PROFILE.write_text(
        f"[connection]\nid=rail0\nuuid={_UUID}\ntype=ethernet\ninterface-name=rail0\n\n[ethernet]\n{ethernet}\n\n"
        "[ipv4]\nmethod=manual\naddress1=10.0.0.1/24\n\n[ipv6]\nmethod=disabled\n"
    )
    _PROFILE.chmod(0o600)


@with_programs(networkmanager=True)
def test_networkmanager_keeps_the_mtu_that_we_write_to_its_profile(programs: contextlib.ExitStack) -> None:
    write_profile()
    start_networkmanager(programs)
    assert managers()[owner.NETWORK_MANAGER] == owner.Manager(owner.NETWORK_MANAGER, str(_PROFILE), _UUID)
    for command in ("nmcli device reapply rail0", "nmcli connection up rail0"):
        run("ip link set rail0 mtu 9000")
        run(command)
        assert mtu() == 1500  # without a change of the profile NetworkManager sets it again
    write_profile("mtu=1500\nwake-on-lan=0")  # an administrator's change, not yet loaded
    outcome = apply()
    assert [str(change) for change in outcome.changes] == [
        f"rail0: mtu in {_PROFILE} 1500 -> 9000",
        "rail0: mtu 1500 -> 9000",
    ]
    # NetworkManager now applies the whole active profile again
    run("nmcli device modify rail0 +ipv4.addresses 10.0.0.2/24")
    assert mtu() == 9000
    assert "wake-on-lan=0" in _PROFILE.read_text() and "10.0.0.1/24" in run("ip address show rail0")
    run("nmcli device reapply rail0")
    assert mtu() == 9000
    run("nmcli connection up rail0")
    assert mtu() == 9000
    run("ip link set rail0-far down; sleep 0.3; ip link set rail0-far up; sleep 0.3; nmcli connection up rail0")
    assert mtu() == 9000
    restore(outcome)
    assert "mtu=1500" in _PROFILE.read_text() and mtu() == 1500
    run("nmcli connection up rail0")
    assert mtu() == 1500
    _PROFILE.unlink()  # no profile is left to restore
    apply(wanted={"mtu": {"rail0": {f"mtu in {_PROFILE}": 1400, "mtu": 1400}}})
    assert mtu() == 1400


@with_programs(networkmanager=True)
def test_without_a_networkmanager_setting_only_the_interface_changes(programs: contextlib.ExitStack) -> None:
    write_profile("")
    start_networkmanager(programs)
    assert [str(change) for change in apply().changes] == ["rail0: mtu 1500 -> 9000"]
    run("nmcli device reapply rail0")
    assert mtu() == 9000


@with_programs(networkmanager=True)
def test_nothing_changes_if_networkmanager_has_ended(programs: contextlib.ExitStack) -> None:
    write_profile()
    process = start_networkmanager(programs)
    process.kill()
    process.wait()
    with pytest.raises(Failed, match="nmcli connection load .*NetworkManager is not running.*previous state"):
        apply()
    assert "mtu=1500" in _PROFILE.read_text() and mtu() == 1500


@with_programs(networkmanager=True)
def test_a_profile_that_netplan_generated_is_refused_and_its_yaml_named(programs: contextlib.ExitStack) -> None:
    yaml = generate_netplan_files("renderer: NetworkManager")
    start_networkmanager(programs)
    profile = "/run/NetworkManager/system-connections/netplan-rail0.nmconnection"
    assert "uuid" not in Path(profile).read_text() and managers()[owner.NETWORK_MANAGER].file == profile
    assert refusals() == [
        f"rail0: mtu: NetworkManager sets 1500 again, because of {profile} "
        f"(write mtu: 9000 for rail0 in {yaml}, and 'netplan apply')"
    ]
