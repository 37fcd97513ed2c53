# shellcheck shell=bash
# Steps with limits and a summary; sourced by tests/gpu.sh.
#
# A phase is a group of steps with a time limit. A step is a command with a limit of its own and a line in
# $results/summary.txt, which is rewritten after every step:
#
#   PASS      12.3 s  kernels/RowsTest            [ PASSED ] 8 tests.
#
# Other verdicts: FAIL; TIMEOUT, stopped at its limit; SKIP, the machine lacks what the step needs; NOT RUN, no time was
# left. The last column is the headline: the lines of the log that matter, or the reason of a failure. Logs are appended
# to $results/logs.tar after every step, so that nothing is lost if the machine goes; end_summary compresses them.

milliseconds() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# start_steps RESULTS SECONDS HEADER: all steps together end after SECONDS; HEADER is the summary's first line.
start_steps() {
  results=$1
  deadline=$(($(milliseconds) + $2 * 1000))
  header=$3
  phase_end=$deadline phase_name=
  gpu_works=yes reruns_left=6 verdict=
  lines=() postponed=()
  step_logs=$(mktemp -d)
  started=$(milliseconds)
  mkdir -p "$results"
  rm -f "$results/summary.txt" "$results/logs.tar" "$results/logs.tar.gz"
  write_summary running
}

# phase NAME SECONDS: steps that follow are called NAME/…, and start only within the next SECONDS.
phase() {
  phase_name=$1
  phase_end=$(($(milliseconds) + $2 * 1000))
  if ((phase_end > deadline)); then phase_end=$deadline; fi
}

count_of() {
  local verdict=$1 line count=0
  for line in "${lines[@]}"; do
    if [[ $line == "$verdict "* ]]; then count=$((count + 1)); fi
  done
  echo "$count"
}

write_summary() {  # STATE
  {
    printf '%s\n' "$header"
    printf '%s, %d s: %d passed, %d failed, %d stopped at their limit, %d skipped, %d not run\n' "$1" \
      $((($(milliseconds) - started) / 1000)) "$(count_of PASS)" "$(count_of FAIL)" "$(count_of TIMEOUT)" \
      "$(count_of SKIP)" "$(count_of 'NOT RUN')"
    if [ "${#lines[@]}" -gt 0 ]; then printf '%s\n' "${lines[@]}"; fi
  } >"$results/summary.new"
  mv "$results/summary.new" "$results/summary.txt"
}

# record VERDICT MILLISECONDS NAME HEADLINE
record() {
  local line
  line=$(printf '%-8s %6d.%d s  %-40s %s' "$1" $(($2 / 1000)) $(($2 % 1000 / 100)) "$3" "${4:0:240}")
  lines+=("$line")
  printf '%s\n' "$line"
  write_summary running
}

# Up to six lines of LOG that match PATTERN, in one.
matches() {  # LOG PATTERN
  grep -aE -e "$2" "$1" | tail -n 6 | tr -s ' \t' ' ' | sed 's/^ //; s/ $//' | paste -sd ';' | sed 's/;/; /g'
}

# The line of LOG that says best what went wrong.
reason() {  # LOG
  local pattern
  for pattern in 'exception with description' '(^|[^a-z])error' 'CUDA|Failure|fail|differ' '.'; do
    if grep -aiE -e "$pattern" "$1" | head -n 1 | tr -s ' \t' ' ' | grep .; then return; fi
  done
  echo "no output"
}

# Keeps LOG, at most its first and last 256 KiB, in the archive of logs.
keep_log() {
  local log=$1
  if (($(stat -c %s "$log") > 600000)); then
    { head -c 262144 "$log" && printf '\n…\n' && tail -c 262144 "$log"; } >"$log.short"
    mv "$log.short" "$log"
  fi
  tar -C "$step_logs" -rf "$results/logs.tar" "${log#"$step_logs"/}"
}

# skip NAME REASON
skip() { record SKIP 0 "$phase_name/$1" "$2"; }

# Runs a command for at most LIMIT seconds, output in LOG. Sets `verdict` and `took` (milliseconds).
limited() {  # LIMIT LOG COMMAND…
  local limit=$1 log=$2 code=0 start
  shift 2
  start=$(milliseconds)
  # bash reports on stderr that timeout, which kills its whole process group, was killed.
  { timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null; } 2>/dev/null || code=$?
  took=$(($(milliseconds) - start))
  verdict=FAIL
  if [ "$code" -eq 0 ]; then verdict=PASS; fi
  if [ "$code" -eq 124 ] || { [ "$code" -eq 137 ] && ((took >= limit * 1000)); }; then verdict=TIMEOUT; fi
  if [ "$verdict" = FAIL ]; then echo "exit status $code" >>"$log"; fi
}

# Seconds that a step with this limit may take; 0 if its phase or the whole run has ended.
time_for() {  # LIMIT
  local now limit=$1 left
  now=$(milliseconds)
  left=$(((deadline - now) / 1000))
  if ((now >= phase_end || left < 1)); then
    echo 0
    return
  fi
  if [ -n "${STEP_LIMIT:-}" ] && ((limit > STEP_LIMIT)); then limit=$STEP_LIMIT; fi
  echo $((limit < left ? limit : left))
}

# has_time KIND NAME LIMIT …: whether a step may start. If not, the whole call is postponed to the end of the run.
has_time() {
  if [ "$(time_for "$3")" -gt 0 ]; then return 0; fi
  postponed+=("$(printf '%q ' "$phase_name" "$@")")
  return 1
}

# run_step NAME LIMIT PATTERN COMMAND…: a step that has_time. Sets `verdict` and `log`.
run_step() {
  local name=$phase_name/$1 limit pattern=$3 headline
  limit=$(time_for "$2")
  log=$step_logs/${name//\//-}.log
  shift 3
  limited "$limit" "$log" "$@"
  if [ "$verdict" = PASS ]; then
    headline=$(matches "$log" "$pattern" || true)
    if grep -qaF '[  PASSED  ] 0 tests' "$log"; then
      verdict=SKIP
      headline=$(grep -aA 1 ': Skipped$' "$log" | sed -n 2p || true)
    elif [ -z "$headline" ]; then
      verdict=FAIL
      headline="its log has no line with $pattern"
    fi
  else
    headline=$(reason "$log" || true)
  fi
  record "$verdict" "$took" "$name" "$headline"
  keep_log "$log"
}

# step NAME LIMIT PATTERN COMMAND…: the headline of a step that passed is the lines of its log that match PATTERN; without
# any it has failed. A step that fails does not stop the script.
step() {
  if has_time step "$@"; then run_step "$@"; fi
}

# The tests that failed according to a log of GoogleTest, one a line; also one that never ended.
failed_tests() {  # LOG
  awk '/^\[ RUN      \] / { running = $4 }
       /^\[       OK \] / || /^\[  SKIPPED \] / { running = "" }
       /^\[  FAILED  \] .*\([0-9]+ ms\)$/ { sub(/,$/, "", $4); print $4; running = "" }
       END { if (running != "") print running }' "$1"
}

# suite NAME LIMIT FILTER COMMAND…: tests of a GoogleTest program as a step. Tests that fail run again, each alone and
# under compute-sanitizer where it is installed: does the test fail by itself, and does it touch wrong memory? Six in all,
# and none without a working GPU (gpu_works).
suite() {
  local phase_end=$phase_end test
  local -a command=("${@:4}") check=()
  if ! has_time suite "$@"; then return 0; fi
  run_step "$1" "$2" '^\[  PASSED  \]' "${command[@]}" "--gtest_filter=$3"
  if [ "$verdict" = PASS ] || [ "$verdict" = SKIP ] || [ "$gpu_works" = no ]; then return 0; fi
  if command -v compute-sanitizer >/dev/null; then
    check=(compute-sanitizer --tool memcheck --error-exitcode 9 --target-processes all)
  fi
  phase_end=$deadline
  while read -r test; do
    if [ "$(time_for 20)" -gt 0 ] && ((reruns_left-- > 0)); then
      run_step "alone/${test//\//.}" 20 '^\[  PASSED  \]|ERROR SUMMARY' "${check[@]}" "${command[@]}" "--gtest_filter=$test"
    fi
  done < <(failed_tests "$log")
}

# Postponed steps, as long as there is time.
finish_steps() {
  local call
  local -a calls=("${postponed[@]}") words
  postponed=()
  phase_end=$deadline
  for call in "${calls[@]}"; do
    eval "words=($call)"
    phase_name=${words[0]}
    "${words[@]:1}"
  done
  for call in "${postponed[@]}"; do
    eval "words=($call)"
    record 'NOT RUN' 0 "${words[0]}/${words[2]}" "no time was left"
  done
}

# The final summary and logs. Returns whether nothing failed or was left out.
end_summary() {
  write_summary 'done'
  if [ -e "$results/logs.tar" ]; then gzip -f "$results/logs.tar"; fi
  rm -rf "$step_logs"
  [ $(($(count_of FAIL) + $(count_of TIMEOUT) + $(count_of 'NOT RUN'))) -eq 0 ]
}
