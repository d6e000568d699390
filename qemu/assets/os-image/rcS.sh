#!/bin/sh
# /etc/init.d/rcS: bring the system up, read the configdrive and say on the console what was found.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=0755,nosuid,nodev tmpfs /run
mkdir -p /dev/pts /run/lock
mount -t devpts -o gid=5,mode=620 devpts /dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /tmp
mount -o remount,rw,noinit_itable /
hostname -F /etc/hostname
modprobe -a button evdev
acpid -l /run/acpid.log -p /run/acpid.pid

find_configdrive() {
    findfs LABEL=config-2 2>/dev/null || findfs LABEL=CONFIG-2 2>/dev/null
}

# The value of a string or boolean member of meta_data.json: first one of that name at any depth.
meta_data() {
    tr -d '\n' <"$config/openstack/latest/meta_data.json" |
        grep -o "\"$1\"[[:space:]]*:[[:space:]]*\(\"[^\"]*\"\|[a-z]*\)" |
        head -n 1 | sed 's/^"[^"]*"[[:space:]]*:[[:space:]]*//; s/^"//; s/"$//'
}

config=/run/config-2
drive=$(find_configdrive)
hostname=
user_data=
if [ -n "$drive" ]; then
    mkdir -p $config
    modprobe -a isofs vfat nls_cp437 nls_ascii
    mount -t iso9660 -o ro "$drive" $config 2>/dev/null || mount -t vfat -o ro "$drive" $config
    if [ -r $config/openstack/latest/meta_data.json ]; then
        hostname=$(meta_data hostname)
        [ "$(meta_data poweroff)" = true ] && touch /run/poweroff-wanted
    fi
    if [ -r $config/openstack/latest/user_data ]; then
        user_data=$(head -n 1 $config/openstack/latest/user_data | tr -cd ' -~')
    fi
fi
if [ -n "$hostname" ]; then
    hostname "$hostname"
    echo "$hostname" >/etc/hostname
fi
grep -qw ferric.poweroff /proc/cmdline && touch /run/poweroff-wanted

. /etc/os-release
root=$(while read -r source target rest; do [ "$target" = / ] && echo "$source"; done </proc/mounts | tail -n 1)
# Kernel messages must not cut these lines in two: whoever watches the console matches whole lines.
dmesg -n 1
echo
echo "FERRIC-DEMO-OS up: $PRETTY_NAME kernel $(uname -r) root $root"
if [ -n "$drive" ]; then
    echo "FERRIC-DEMO-OS configdrive hostname=$hostname"
    echo "FERRIC-DEMO-OS configdrive device=$drive"
    echo "FERRIC-DEMO-OS user_data: $user_data"
else
    echo "FERRIC-DEMO-OS configdrive none"
fi
if [ -e /run/poweroff-wanted ]; then
    echo "FERRIC-DEMO-OS power off as asked"
    poweroff
fi
