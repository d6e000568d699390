#!/bin/sh
# /init of the instance's initramfs: load drivers, find the root file system by UUID, hand over to its /sbin/init.
export PATH=/bin:/sbin

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev

root=
for word in $(cat /proc/cmdline); do
    case $word in
        root=*) root=${word#root=} ;;
    esac
done

# Drivers by the aliases the buses report. Each pass reaches one bus further (PCI, then virtio, then SCSI).
coldplug() {
    cat /sys/bus/pci/devices/*/modalias /sys/bus/virtio/devices/*/modalias \
        /sys/bus/usb/devices/*/modalias /sys/bus/scsi/devices/*/modalias 2>/dev/null |
        sort -u | while read -r alias; do modprobe -q "$alias" 2>/dev/null; done
}

modprobe crc32c_generic
modprobe ext4
tries=0
device=
while [ $tries -lt 150 ]; do
    [ $((tries % 5)) -lt 3 ] && coldplug
    device=$(findfs "$root" 2>/dev/null) && [ -n "$device" ] && break
    tries=$((tries + 1))
    sleep 0.2
done
if [ -z "$device" ]; then
    echo "initramfs: no block device has $root; the kernel sees:"
    cat /proc/partitions
    exec sh
fi

if ! mount -t ext4 -o ro "$device" /root; then
    echo "initramfs: cannot mount $device"
    exec sh
fi
umount /proc
umount /sys
mount --move /dev /root/dev
exec switch_root /root /sbin/init
