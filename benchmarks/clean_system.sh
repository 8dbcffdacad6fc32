#!/usr/bin/env bash
# The README's two commands on a Debian system that has nothing but what the README's front names.
#
#     benchmarks/clean_system.sh FOLDER [COMMAND...]     as root; COMMAND: make demo, then make test
#
# SUITE names another release (trixie has Python 3.13); DEBIAN_MIRROR another distribution's archive (Ubuntu's noble has 3.12).
# Makes the system in FOLDER with debootstrap, clones this checkout's last commit into it, and runs the commands there. pip finds its index
# as it does outside: its configuration file, variables and certificates, and the local folders that they name, are given to the system.
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
root="$(realpath -m "$1")"
shift
packages=python3,python3-venv,python3-dev,git,make,g++

if [ ! -e "$root/complete" ]; then
  debootstrap --variant=minbase --include="$packages" "${SUITE:-bookworm}" "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
  touch "$root/complete"
fi
cp --dereference /etc/resolv.conf "$root/etc/resolv.conf"
if [ -e /etc/pip.conf ]; then cp /etc/pip.conf "$root/etc/pip.conf"; fi
mkdir -p "$root/etc/ssl/certs"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"

mounted=()
leave() { for place in "${mounted[@]}"; do umount --lazy "$place"; done; }
trap leave EXIT
give() {
  mkdir -p "$root$1"
  mount --bind "$1" "$root$1"
  mounted=("$root$1" "${mounted[@]}")
}
for place in /proc /sys /dev /dev/shm; do give "$place"; done
settings="$(env | grep '^PIP_' || true) $(cat /etc/pip.conf 2>/dev/null || true)"
for place in $(grep -oE '(file://)?/[^ =]+' <<<"$settings" | sed 's#^file://##; s#/simple$##' | sort -u); do
  if [ -d "$place" ]; then give "$place"; fi
done

rm -rf "$root/root/accel"
git clone --quiet "$here" "$root/root/accel"
if [ $# -eq 0 ]; then set -- "make demo && make test"; fi
mapfile -t variables < <(env | grep '^PIP_' || true)
env --ignore-environment HOME=/root PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 "${variables[@]}" \
  chroot "$root" bash -c "cd /root/accel && $*"
