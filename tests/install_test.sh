#!/usr/bin/env bash
# Checks that an installed folder still works after it is moved: the program, its demo, and slurm/submit.
#
#   install_test.sh CMAKE BUILD_FOLDER
set -euo pipefail
cmake=$1
build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "error: install_test.sh: $1" >&2
  exit 1
}

"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log" || fail "cmake --install failed"
mv "$work/first" "$work/moved"
moved=$work/moved
cd "$work"
job=$moved/share/longhaul/jobs/demo/demo.cfg
"$moved/bin/longhaul" --version >/dev/null
"$moved/bin/longhaul" check "$job" --output="$work/run" >/dev/null || fail "expected the demo's job to be without fault"
"$moved/bin/longhaul" run "$job" --output="$work/run" --max-tokens=10 --baseline=false >"$work/run.log" 2>&1 ||
  fail "expected the demo to run: $(cat "$work/run.log")"
[ "$(wc -l <"$work/run/results.jsonl")" -eq 5 ] || fail "expected results of five items"
# submit prefers a longhaul in PATH, where the README has put one.
unset LONGHAUL
while other=$(type -P longhaul); do
  PATH=:$PATH:
  PATH=${PATH//:$(dirname "$other"):/:}
  PATH=${PATH#:} PATH=${PATH%:}
done
script=$("$moved/share/longhaul/slurm/submit" "$job" --output="$work/run" --time 1:00:00 --dry-run)
grep -q "$moved/bin/longhaul" <<<"$script" || fail "expected the batch script to run $moved/bin/longhaul"
while read -r link; do
  [ -e "$moved/share/doc/longhaul/${link%%#*}" ] || fail "README.md: expected the page $link to be installed"
done < <(grep -oE '\]\([^):]+\)' "$moved/share/doc/longhaul/README.md" | tr -d '])(')
