#!/usr/bin/env bash
# Installs the packages for building, running and testing on Debian 12 (also Ubuntu 24.04) that are missing. Needs the
# network and root only if some are.
#
#   install_packages.sh [ci]    ci: also the tools of .ci/run
set -euo pipefail

# 4 MB; tests/slurm starts these daemons in a temporary folder, and the system's services of these names stay off.
daemons=(munge slurmctld slurmd)
packages=(
  build-essential cmake ninja-build pkg-config
  openmpi-bin libopenmpi-dev libhdf5-dev libboost-program-options-dev nlohmann-json3-dev
  libpcre2-dev libxxhash-dev libhwloc-dev libutf8proc-dev libgtest-dev libboost-context-dev python3 python3-venv shellcheck
  "${daemons[@]}" slurm-client
)
if [ "${1:-}" = ci ]; then packages+=(clang-format-14 ccache); fi

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

# Packages of daemons enable and start them. Here they are only for tests: a policy prevents the start during the
# installation (an existing policy of the machine is kept), and newly installed daemons are disabled afterwards.
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
