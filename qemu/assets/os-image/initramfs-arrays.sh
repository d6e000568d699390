# Sourced by /init of the initramfs in an image for software RAID, before each look for the root file system: whole arrays
# are started at once, those that lack a member when it has not come for a while. What was put together of those until then
# is in the way.
export PATH=/bin:/sbin:/usr/sbin
[ $tries -eq 0 ] && modprobe raid1
if [ $tries -lt 15 ]; then
    mdadm --assemble --scan --no-degraded >/dev/null 2>&1
else
    mdadm --stop --scan >/dev/null 2>&1
    mdadm --assemble --scan --run >/dev/null 2>&1
fi
