# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Runs in a tree of unpacked packages, with this folder as /lab. Writes the kernel, its modules and an initial RAM file
# system to /lab/made.
#
#   sh -e build.sh NUMBER_OF_CORES

cores=$1
release=$(ls /lib/modules)
headers=/usr/src/linux-headers-$release
mkdir /lab/made /lab/source
cd /lab/source

# the uncompressed kernel, as unpacking takes seconds on an emulated CPU
tar -xJf /usr/src/linux-source-*.tar.xz --strip-components=1 --wildcards '*/drivers/net/netdevsim' \
    '*/drivers/infiniband/sw/rxe' '*/scripts/extract-vmlinux'
sh scripts/extract-vmlinux /boot/vmlinuz-"$release" > /lab/made/vmlinux
echo "$release" > /lab/made/release

# the test modules, without BTF type information, as there is no pahole
rm -f "$headers/vmlinux"
patch --quiet -d drivers/infiniband/sw -p1 < /lab/rxe.patch
mkdir lab
cp /lab/*.c lab
echo 'obj-m := lab_pci_ids.o lab_dcb.o' > lab/Makefile
echo 'obj-m := lab/ drivers/net/netdevsim/ drivers/infiniband/sw/rxe/' > Makefile
make --silent -j "$cores" -C "$headers" M=/lab/source CONFIG_NETDEVSIM=m CONFIG_RDMA_RXE=m modules
rm "/lib/modules/$release/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz"
mkdir "/lib/modules/$release/updates"
find . -name '*.ko' -exec cp {} "/lib/modules/$release/updates" \;
depmod "$release"

# the modules that a node loads or tests need; uncompressed, as unpacking is slow on a node
names='igb igbvf virtio_net virtio_blk virtio_rng virtio_console virtio_gpu qemu_fw_cfg nvme ext4 overlay fuse
    configfs autofs4 loop veth dummy bonding ipvlan macvlan macvtap vxlan geneve tun tap vrf ifb nlmon vfio-pci
    rdma_rxe siw ib_core ib_uverbs ib_umad ib_ipoib rdma_cm rdma_ucm netdevsim lab_pci_ids lab_dcb crc32c-intel
    crc32c_generic efi-pstore dmi-sysfs intel_rapl_common'
cd "/lib/modules/$release"
{
    for name in $names; do
        modprobe -S "$release" --ignore-install --show-depends "$name" 2> /lab/missing || cat /lab/missing >&2
    done | sed -n 's/^insmod //p' | sed 's/ .*//'
    find "$PWD/kernel/net" "$PWD/kernel/lib" "$PWD/kernel/crypto" -name '*.ko.xz'
} | sort -u > /lab/wanted
kept=/lab/kept/lib/modules/$release
mkdir -p "$kept"
while read -r path; do
    path=${path#*/lib/modules/$release/}
    mkdir -p "$kept/$(dirname "$path")"
    case $path in
        *.xz) xz -dc "$path" > "$kept/${path%.xz}" ;;
        *) cp "$path" "$kept/$path" ;;
    esac
done < /lab/wanted
cp modules.order modules.builtin modules.builtin.modinfo "$kept"
find "$kept" -name '*.ko' -exec strip --strip-debug {} +
depmod -b /lab/kept "$release"
tar -C /lab/kept -cf /lab/made/modules.tar lib

# the initial RAM file system mounts the disk and switches to it
mkdir -p /lab/initrd/bin /lab/initrd/dev /lab/initrd/root
cp /usr/bin/busybox /lab/initrd/bin
for name in virtio_blk ext4; do
    modprobe -d /lab/kept -S "$release" --show-depends "$name"
done | sed -n 's/^insmod //p' | awk '!seen[$1]++ { print $1 }' > /lab/order
{
    echo '#!/bin/busybox sh'
    echo '/bin/busybox mount -t devtmpfs none /dev'
    while read -r path; do
        cp "$path" /lab/initrd
        echo "/bin/busybox insmod /$(basename "$path")"
    done < /lab/order
    echo 'until [ -b /dev/vda ]; do /bin/busybox sleep 0.1; done'
    echo '/bin/busybox mount -t ext4 /dev/vda /root'
    echo '/bin/busybox mount -o move /dev /root/dev'
    echo 'exec /bin/busybox switch_root /root /sbin/init'
} > /lab/initrd/init
chmod +x /lab/initrd/init
cd /lab/initrd
find . | cpio --quiet -o -H newc > /lab/made/initrd
