#!/usr/bin/env bash
# The experiments of the paper on recursive speculative decoding, from data to table and figure:
#
#   jobs/rsd/run.sh 1 xsum         # draft lengths 2 to 5;      also wmt, dolly
#   jobs/rsd/run.sh 2 xsum         # budgets of 6 to 30 tokens; also wmt, dolly
#   jobs/rsd/run.sh ordering       # tokens per target call, decoder by decoder, on prompts from the demo's books
#
# Options are passed on to `longhaul sweep`, for example --model=… --draft-model=… --data=… --reference=… --output=…
# If it was killed or stopped, run it again to resume. At the end the sweep's folder has the table (paper.md, paper.csv),
# the same relative to plain decoding (relative.md, relative.csv; not for ordering) and figure 4 or 5 (not for ordering).
# RANKS=2 runs on two MPI ranks. The exit code is the sweep's: 3 if some items failed; the tables then leave them out.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
usage="usage: jobs/rsd/run.sh 1|2 wmt|xsum|dolly [OPTIONS], or jobs/rsd/run.sh ordering [OPTIONS]"

# shellcheck source=jobs/experiment.sh
source "$root/jobs/experiment.sh"

given=("$@")
defaults=()
is_given() {
  local option
  for option in "${given[@]}"; do
    case $option in "--$1" | "--$1="*) return 0 ;; esac
  done
  return 1
}
# default KEY VALUE: adds the option unless the user gave it
default() {
  is_given "$1" || defaults+=("--$1=$2")
}

case ${1-} in
  1 | 2)
    experiment=$1 task=${2-}
    case $task in wmt | xsum | dolly) ;; *) fail "$usage" ;; esac
    given=("${@:3}")
    file=$root/jobs/rsd/experiment-$experiment.cfg
    name=experiment-$experiment-$task
    quality=()
    default task "$task"
    case $task in
      wmt)
        # The sample references belong to the sample sentences. For a user's data the program finds the user's references.
        is_given data || default reference "$root/jobs/rsd/sample/wmt.en"
        default data "$root/jobs/rsd/sample/wmt.de"
        default stop '\n' # the examples in the prompt end like this
        quality=(bleu)
        ;;
      xsum)
        default stop '\n'
        quality=(rouge2)
        ;;
      dolly)
        default data "$root/jobs/rsd/sample/dolly.jsonl"
        default temperature 1
        default top-p 0.95
        ;;
    esac
    ;;
  ordering)
    given=("${@:2}")
    file=$root/jobs/rsd/ordering.cfg
    name=ordering
    ;;
  *) fail "$usage" ;;
esac
default output "$root/runs/rsd/$name"
for option in "${defaults[@]}" "${given[@]}"; do
  case $option in --output=*) output=${option#--output=} ;; esac
done
[ -n "${output-}" ] || fail "--output: expected --output=FOLDER"

# --- the sweep
find_programs table
if [ "$name" = ordering ]; then
  mkdir -p "$root/runs/rsd"
  python3 "$root/jobs/prompts.py" "$root/jobs/demo/books" >"$root/runs/rsd/prompts.jsonl"
fi
run_sweep "$output" "$file" "${defaults[@]}" "${given[@]}"

# --- tables and figures
table() {
  local rows=$1 columns=$2 to=$3
  "$analysis" table "$output" --rows "$rows" --columns "$columns" "${@:4}" >"$output/$to.md"
  "$analysis" table "$output" --rows "$rows" --columns "$columns" "${@:4}" --format csv >"$output/$to.csv"
}
measures=block_efficiency,mbsu,tokens_per_second
if [ "$name" = ordering ]; then
  table temperature,draft-depth,draft-nodes,draft,draft-tree "$measures" paper
else
  if [ ${#quality[@]} -gt 0 ] && ! compgen -G "$output/*/references.jsonl" >/dev/null; then
    echo "warning: the data has no references, so the tables are without ${quality[*]}; --reference=FILE names them" >&2
    quality=()
  fi
  for measure in "${quality[@]}"; do measures+=,$measure; done
  size=draft-depth
  if [ "$experiment" = 2 ]; then size=draft-nodes; fi
  table "$size,draft,draft-tree" "$measures" paper
  table "$size,draft,draft-tree" "$measures" relative --relative
  "$analysis" figure "$output" --kind decoders --x "$size" --output "$output/figure-$((experiment + 3)).svg"
fi
cat "$output/paper.md"
echo "$output: paper.md, paper.csv$([ "$name" = ordering ] || echo ", relative.md, relative.csv, figure-$((experiment + 3)).svg")"
exit "$code"
