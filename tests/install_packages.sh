#!/usr/bin/env bash
# Installs what building, running and testing need on Debian 12 (Ubuntu 24.04 too), if something is missing. Asks for
# the network and for root only then.
set -euo pipefail

packages=(
  build-essential cmake ninja-build pkg-config
  openmpi-bin libopenmpi-dev libhdf5-dev libboost-program-options-dev librandom123-dev nlohmann-json3-dev
  libpcre2-dev libxxhash-dev libhwloc-dev libutf8proc-dev libgtest-dev python3 python3-venv shellcheck
)

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
echo "installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
