#!/usr/bin/env bash
# Installs what building, running and testing need on Debian 12 (Ubuntu 24.04 too), if something is missing. Asks for
# the network and for root only then.
#
#   install_packages.sh [ci]    ci: the tools of .ci/run as well
set -euo pipefail

# 4 MB; tests/slurm starts them in a folder of its own, and the system's services of these names stay off.
daemons=(munge slurmctld slurmd)
packages=(
  build-essential cmake ninja-build pkg-config
  openmpi-bin libopenmpi-dev libhdf5-dev libboost-program-options-dev nlohmann-json3-dev
  libpcre2-dev libxxhash-dev libhwloc-dev libutf8proc-dev libgtest-dev libboost-context-dev python3 python3-venv shellcheck
  "${daemons[@]}" slurm-client
)
if [ "${1:-}" = ci ]; then packages+=(clang-format-14); fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "note: no apt here; these must be there under other names: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  if [ "$state" != installed ]; then missing+=("$package"); fi
done
if [ "${#missing[@]}" -eq 0 ]; then exit 0; fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "error: packages: expected ${missing[*]}, got no sudo to install them; install them as root" >&2
    exit 1
  fi
  as_root=(sudo)
fi

# Packages of daemons enable and start them. Those that come new here are for tests: a policy forbids the start while
# they are being installed (a machine that has a policy of its own keeps it), and they are disabled afterwards.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ] || grep -q "longhaul tests" "$policy"; then
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
  printf '#!/bin/sh\n# longhaul tests\nexit 101\n' | "${as_root[@]}" install -m 755 /dev/stdin "$policy"
fi
echo "installing ${missing[*]}"
"${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
for daemon in "${daemons[@]}"; do
  if [[ " ${missing[*]} " == *" $daemon "* ]]; then "${as_root[@]}" update-rc.d "$daemon" disable || true; fi
done
