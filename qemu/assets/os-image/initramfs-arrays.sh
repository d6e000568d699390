# Sourced by /init of the initramfs in an image for software RAID, before each look for the root file system: whole arrays
# are started at once, those that lack a member when it has not come for a while.
export PATH=/bin:/sbin:/usr/sbin
[ $tries -eq 0 ] && modprobe raid1
if [ $tries -lt 20 ]; then whole=--no-degraded; else whole=--run; fi
mdadm --assemble --scan $whole >/dev/null 2>&1
