#!/usr/bin/env bash
# Installs analysis/ into a virtual environment of the build tree and runs its tests:
#
#   analysis_test.sh PYTHON BUILD_FOLDER LONGHAUL
#
# The package's dependencies are fetched once, and again when analysis/pyproject.toml changes. The package itself is
# installed each time, without network access.
set -euo pipefail
python=$1
environment=$2/analysis-environment
log=$2/analysis-environment.log
export LONGHAUL_PROGRAM=$3 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cd "$(dirname "$0")/../analysis"
export PYTHONUTF8=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Modules are compiled at first import, outside the source tree: most of the installed ones are never imported.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=$environment/bytecode
install=("$environment/bin/pip" install -q --no-compile)

fail() {
  echo "error: tests of analysis/: $1" >&2
  exit 1
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "expected Python 3.11 or newer, got $("$python" --version); install it, or configure with -DPython3_EXECUTABLE=…"

wanted=$( ("$python" --version && cat pyproject.toml) | sha256sum)
if [ "$(cat "$environment/installed" 2>/dev/null)" != "$wanted" ]; then
  "$python" -m venv --clear "$environment" >"$log" 2>&1 ||
    fail "expected Python's venv module, got an error ($log); install python3-venv"
  # rouge-score is a source package; without build isolation pip builds it with the tools installed here.
  { "${install[@]}" hatchling setuptools wheel && "${install[@]}" --no-build-isolation '.[test]'; } >>"$log" 2>&1 ||
    fail "expected the packages that analysis/pyproject.toml names, got none from pip ($log); it needs the network once"
  echo "$wanted" >"$environment/installed"
else
  "${install[@]}" --no-deps --no-build-isolation --force-reinstall . >>"$log" 2>&1 ||
    fail "expected analysis/ to install, got an error ($log)"
fi
exec "$environment/bin/pytest"
