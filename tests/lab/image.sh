# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Turns a root file system with installed packages into a lab node.
#
#   sh -e image.sh ROOT KEYS KERNEL

root=$1 keys=$2 kernel=$3

tar -C "$root/usr" -xf "$kernel/modules.tar"

install -m 600 "$keys/id.pub" "$root/etc/ssh/authorized_keys"
rm -f "$root"/etc/ssh/ssh_host_*
install -m 600 "$keys/host" "$root/etc/ssh/ssh_host_ed25519_key"
install -m 644 "$keys/host.pub" "$root/etc/ssh/ssh_host_ed25519_key.pub"
# without PAM, so that sessions do not start a systemd user instance
printf 'UseDNS no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\nMaxSessions 100\nMaxStartups 100\nAuthorizedKeysFile /etc/ssh/authorized_keys\n' \
    > "$root/etc/ssh/sshd_config.d/lab.conf"

sed -i 's/^root:[^:]*:/root:*:/' "$root/etc/shadow" # no valid password, but not a locked account

# QEMU's user network has the same addresses on each node
printf '[Match]\nDriver=virtio_net\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\nIPv6AcceptRA=no\nLinkLocalAddressing=no\n' \
    > "$root/etc/systemd/network/10-lab.network"
printf '[Match]\nDriver=virtio_net\n[Link]\nName=mgmt0\n' > "$root/etc/systemd/network/10-lab.link"
printf '[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n' > "$root/etc/systemd/networkd.conf"
rm -f "$root/etc/resolv.conf"
echo 'nameserver 10.0.2.3' > "$root/etc/resolv.conf"
echo lab > "$root/etc/hostname"
printf '127.0.0.1 localhost\n::1 localhost\n' > "$root/etc/hosts"
: > "$root/etc/machine-id"
echo '/dev/vda / ext4 rw 0 0' > "$root/etc/fstab"

chroot "$root" systemctl --quiet enable systemd-networkd ssh
chroot "$root" systemctl --quiet disable containerd # tests start it if they need it
# mask units that take seconds on an emulated CPU and that no test needs
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
    fstrim.timer getty@tty1.service serial-getty@ttyS0.service ldconfig.service proc-sys-fs-binfmt_misc.automount \
    proc-sys-fs-binfmt_misc.mount systemd-binfmt.service systemd-journal-catalog-update.service \
    systemd-hwdb-update.service systemd-logind.service systemd-machine-id-commit.service \
    systemd-networkd-wait-online.service systemd-pstore.service systemd-random-seed.service \
    systemd-timesyncd.service systemd-update-utmp.service systemd-user-sessions.service sys-kernel-debug.mount \
    sys-kernel-tracing.mount dev-mqueue.mount; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
mkdir -p "$root/etc/systemd/journald.conf.d" "$root/etc/systemd/system.conf.d"
printf '[Journal]\nStorage=volatile\nRuntimeMaxUse=16M\n' > "$root/etc/systemd/journald.conf.d/lab.conf"
printf '[Manager]\nDefaultTimeoutStartSec=600\nDefaultTimeoutStopSec=30\nDefaultDeviceTimeoutSec=600\n' \
    > "$root/etc/systemd/system.conf.d/lab.conf"
rm -rf "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/var/cache/apt/*
touch "$root/etc/.updated" "$root/var/.updated" # or the first boot runs all update services
