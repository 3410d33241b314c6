#!/bin/sh
# Boots systemd with pando's units, and with nothing else of the host's: in
# namespaces and cgroups of its own, over directories that are empty and go with it.
# units.sh WORK UNITS BIN: WORK is a directory for what is left of it.
set -eu
if [ "${INSIDE:-}" = "" ]; then
	work=$1
	made=
	while IFS=: read -r id ctrl path; do
		if [ -z "$ctrl" ]; then
			mnt=/sys/fs/cgroup
			[ -e $mnt/cgroup.procs ] || mnt=/sys/fs/cgroup/unified
		else
			mnt=/sys/fs/cgroup/${ctrl#name=}
		fi
		[ -d "$mnt" ] || continue
		at=$mnt${path%/}/pando-units-$$
		mkdir "$at"
		made="$made $at"
		if [ -e "$at/cpuset.cpus" ] && [ -n "$ctrl" ]; then
			cat "$at/../cpuset.cpus" >"$at/cpuset.cpus"
			cat "$at/../cpuset.mems" >"$at/cpuset.mems"
		fi
		echo $$ >"$at/cgroup.procs"
	done </proc/self/cgroup
	echo $made >"$work/cgroups"
	INSIDE=yes exec unshare -m -p -C -i -u -n -f --kill-child "$0" "$@"
fi
work=$1 units=$2 bin=$3
mount --make-rprivate /
mount -t proc proc /proc
ip link set lo up

# What is seen of the host is put aside first.
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/work /mnt/units /mnt/bin /mnt/dev
mount --bind "$work" /mnt/work
cp "$units"/* /mnt/units
cp "$bin"/pando "$bin"/pandod "$bin"/pando-guest /mnt/bin
[ ! -e "$bin/pando-runsc" ] || cp "$bin/pando-runsc" /mnt/bin
for d in null zero full random urandom tty; do
	touch /mnt/dev/$d
	mount --bind /dev/$d /mnt/dev/$d
done
mkdir -p /mnt/dev/net /mnt/dev/pts /mnt/dev/shm
if [ -e /dev/net/tun ]; then
	touch /mnt/dev/net/tun
	mount --bind /dev/net/tun /mnt/dev/net/tun
fi
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts /mnt/dev/pts
ln -s pts/ptmx /mnt/dev/ptmx
ln -s /proc/self/fd /mnt/dev/fd
ln -s null /mnt/dev/console
mount -t tmpfs tmpfs /mnt/dev/shm

# From here on nothing that is written is the host's.
mount --rbind /mnt/dev /dev
for d in /run /srv /var/lib /var/cache /var/log /usr/local/bin; do
	mount -t tmpfs -o mode=755 tmpfs $d
done
mkdir /run/units /run/work /srv/src
cp /mnt/units/* /run/units
cp /mnt/bin/* /usr/local/bin
mount --bind /mnt/work /run/work
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
while IFS=: read -r id ctrl path; do
	if [ -n "$ctrl" ]; then
		mkdir "/sys/fs/cgroup/${ctrl#name=}"
		mount -t cgroup -o "$ctrl" cgroup "/sys/fs/cgroup/${ctrl#name=}"
	elif [ "$(wc -l </proc/self/cgroup)" = 1 ]; then
		umount /sys/fs/cgroup
		mount -t cgroup2 cgroup2 /sys/fs/cgroup
	else
		mkdir /sys/fs/cgroup/unified
		mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
	fi
done </proc/self/cgroup
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /etc/systemd
mount -o bind /dev/null /etc/fstab 2>/dev/null || true
mkdir -p /run/systemd
echo 0123456789abcdef0123456789abcdef >/run/machine-id
mount --bind /run/machine-id /etc/machine-id
unset INSIDE
export SYSTEMD_UNIT_PATH=/run/units SYSTEMD_GENERATOR_PATH=/run/none SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/run/none container=pando-test
exec /lib/systemd/systemd --system --unit=multi-user.target --log-target=console --log-level=info --show-status=0 >/run/work/systemd.log 2>&1 </dev/null
