# shellcheck shell=bash
# What the scripts of the papers' experiments share (run.sh in jobs/rsd, jobs/tokenswift and jobs/lyanna): programs and sweep. They set
# `root`, the folder of the repository, and source this file.

: "${root:?}"

fail() {
  echo "error: $1" >&2
  exit 2
}

# choose_experiment FOLDER WHAT [OPTIONS]: sets `file`, a file of jobs/FOLDER or of the user's; its `name`; the options `given`,
# and `output`, which is among them
choose_experiment() {
  local folder=$1 what=${2-} option
  file=$root/jobs/$folder/$what.cfg
  if [[ $what == *.cfg ]]; then file=$what; fi
  [[ -n $what && $what != -* && -f $file ]] ||
    fail "usage: jobs/$folder/run.sh WHAT [OPTIONS], WHAT one of $(cd "$root/jobs/$folder" && shopt -s nullglob && echo table-*.cfg figure-*.cfg | sed 's/\.cfg//g')"
  name=$(basename "$file" .cfg)
  given=("${@:3}")
  output=
  for option in "${given[@]}"; do
    case $option in
      --output=*) output=${option#--output=} ;;
      --output) fail "--output: expected --output=FOLDER" ;;
    esac
  done
  if [ -z "$output" ]; then
    output=$root/runs/$folder/$name
    given+=("--output=$output")
  fi
}

# find_longhaul: sets `longhaul`
find_longhaul() {
  longhaul=${LONGHAUL_PROGRAM:-$root/build/runner/longhaul}
  [ -x "$longhaul" ] || longhaul=$(command -v longhaul) ||
    fail "longhaul: expected the program in $root/build/runner, in PATH or as LONGHAUL_PROGRAM, got none; jobs/demo.sh builds it"
}

# has_table_files COMMAND: whether `analysis` has the command, and writes its tables into files
has_table_files() {
  [ -n "$analysis" ] && "$analysis" "$1" --help 2>/dev/null | grep -e --output >/dev/null
}

# find_programs COMMAND: sets `longhaul`, `analysis` (a longhaul-analysis that has the command) and `launcher` (RANKS=N)
find_programs() {
  find_longhaul
  analysis=$(command -v longhaul-analysis) || analysis=
  if ! has_table_files "$1"; then # none, or an earlier version
    analysis=$root/build/analysis-for-jobs/bin/longhaul-analysis
    if ! has_table_files "$1"; then
      echo "installing longhaul-analysis in $root/build/analysis-for-jobs"
      python3 -m venv "$root/build/analysis-for-jobs"
      "$root/build/analysis-for-jobs/bin/pip" install -q "$root/analysis"
    fi
  fi
  launcher=()
  if [ "${RANKS:-1}" -gt 1 ]; then
    launcher=(mpirun -q --oversubscribe -n "$RANKS")
    if [ "$(id -u)" -eq 0 ]; then launcher+=(--allow-run-as-root); fi
  fi
}

# run_sweep OUTPUT FILE [OPTIONS]: sets `code`, the sweep's exit code: 0, or 3 if some items failed; exits with any other
run_sweep() {
  code=0
  "${launcher[@]}" "$longhaul" sweep "${@:2}" || code=$?
  case $code in
    0) ;;
    3) echo "warning: some items failed, $1/sweep.md says of which points; the tables are of the others; with \
--retry-failed=true they are tried again" >&2 ;;
    *)
      echo "error: the sweep ended with exit code $code, and no tables were made; fix the reported error, then run \
this again: it resumes where it was" >&2
      exit "$code"
      ;;
  esac
}
