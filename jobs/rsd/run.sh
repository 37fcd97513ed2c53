#!/usr/bin/env bash
# The experiments of the paper on recursive speculative decoding, from data to table and figure:
#
#   jobs/rsd/run.sh 1 xsum         # draft lengths 2 to 5;      also wmt, dolly
#   jobs/rsd/run.sh 2 xsum         # budgets of 6 to 30 tokens; also wmt, dolly
#   jobs/rsd/run.sh ordering       # tokens per target call, decoder by decoder, on prompts from the demo's books
#   jobs/rsd/run.sh all            # both experiments, every pair of models, every task: one table and figures 4 and 5
#   jobs/rsd/run.sh rates          # token rates at the paper's ratio of parameters: random weights, real draft passes
#
# Options are passed on to `longhaul sweep` (rates: to `longhaul bench speculation`), for example --model=… --draft-model=…
# --data=… --reference=… --output=…. `all` has some of its own:
#
#   --pair=TARGET,DRAFT            # repeatable; default: the demo's models
#   --tasks=xsum,wmt,dolly --experiments=1,2
#   --xsum-data=… --xsum-reference=… --wmt-data=… --wmt-reference=… --dolly-data=…
#
# --draft-ratio=0.017 gives MBSU for another ratio of parameters than the models' own. --token-rates=false leaves token rates out:
# on a machine that others use too they say little. SEEDS="1 2" replaces the seeds of the job's file; RANKS=2 runs on two MPI
# ranks.
#
# Prompts are chat messages with --chat=true, and by default if the name of the model's folder says chat, instruct or it
# (--chat=false: as for base models). Texts of base models for xsum and wmt end at a line end, as the examples in their
# prompts do; --stop= takes that away. Chat models end their answers themselves. Dolly's texts have up to 256 tokens.
#
# If it was killed or stopped, run it again to resume. At the end the sweep's folder has the table (paper.md, paper.csv;
# standard errors over items), the same relative to plain decoding (relative.md, relative.csv), figure 4 or 5, and
# accuracy.txt (each decoder against plain decoding) and paired.txt (block efficiency of RSD-S against the other decoders).
# The exit code is 1 if the accuracy of a decoder is significantly below plain decoding's (p < 0.01 over
# all comparisons), else the sweep's: 3 if some items failed; the tables then leave them out.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
usage="usage: jobs/rsd/run.sh 1|2 wmt|xsum|dolly [OPTIONS], or jobs/rsd/run.sh ordering|all|rates [OPTIONS]"

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
# given_value KEY: the last --KEY=VALUE, or "true" for --KEY alone
given_value() {
  local option value=
  for option in "${given[@]}"; do
    case $option in
      "--$1") value=true ;;
      "--$1="*) value=${option#*=} ;;
    esac
  done
  echo "$value"
}
# take KEY: removes all --KEY=VALUE from `given`; sets `taken` to their values and `last` to the last one ("": none)
take() {
  local option rest=()
  taken=() last=
  for option in "${given[@]}"; do
    case $option in
      "--$1="*) last=${option#*=} taken+=("${option#*=}") ;;
      "--$1") fail "$option: expected $option=VALUE" ;;
      *) rest+=("$option") ;;
    esac
  done
  given=("${rest[@]}")
}
# default KEY VALUE: adds the option unless the user gave it
default() {
  is_given "$1" || defaults+=("--$1=$2")
}
# take_measures: sets `speeds`, names of measures, and `ratio`, an option of longhaul-analysis or ""
take_measures() {
  take token-rates
  speeds=block_efficiency,mbsu
  if [ "$last" != false ]; then speeds+=,tokens_per_second; fi
  take draft-ratio
  ratio=${last:+--draft-ratio=$last}
}
# Whether prompts are chat messages; see above
is_chat() {
  if is_given chat; then
    [ "$(given_value chat)" = true ]
    return
  fi
  case $(given_value template) in *chat*) return 0 ;; esac
  if is_given chat-template; then return 0; fi
  [[ $(basename "$(given_value model)" | tr '[:upper:]' '[:lower:]') =~ (^|[-_.])(chat|instruct|it)([-_.]|$) ]]
}

# Of `file` a copy with the seeds of SEEDS; its paths are all given as options.
with_seeds() {
  [ -n "${SEEDS-}" ] || return 0
  [[ $SEEDS =~ ^[0-9]+(\ +[0-9]+)*$ ]] || fail "SEEDS: expected numbers such as '1 2 3', got '$SEEDS'"
  mkdir -p "$(dirname "$output")"
  sed "s/^grid seed .*/grid seed = ${SEEDS// / | }/" "$file" >"$output.cfg"
  file=$output.cfg
}

# --- what is run

# experiment NUMBER TASK
set_experiment() {
  experiment=$1 task=$2
  file=$root/jobs/rsd/experiment-$experiment.cfg
  name=experiment-$experiment-$task
  measure=
  default task "$task"
  case $task in
    wmt)
      # The sample references belong to the sample sentences. For a user's data the program finds the user's references.
      is_given data || default reference "$root/jobs/rsd/sample/wmt.en"
      default data "$root/jobs/rsd/sample/wmt.de"
      measure=accuracy
      ;;
    xsum)
      default data "$root/jobs/rsd/sample/xsum.jsonl"
      measure=accuracy
      ;;
    dolly)
      default data "$root/jobs/rsd/sample/dolly.jsonl"
      default temperature 1
      default top-p 0.95
      default max-tokens 256
      ;;
  esac
  if is_chat; then
    case $(given_value template) in *chat*) ;; *) default chat true ;; esac
  elif [ "$task" != dolly ]; then
    default stop '\n' # the examples in the prompt end like this
  fi
}

# all: runs this script for each pair, experiment and task, then makes the tables and figures of all
run_all() {
  local pair pairs=() tasks=xsum,wmt,dolly experiments=1,2 experiment task folder data worst=0 names=()
  take pair
  pairs=("${taken[@]}")
  [ ${#pairs[@]} -gt 0 ] || pairs=("$root/jobs/demo/model,$root/jobs/demo/draft")
  take tasks
  tasks=${last:-$tasks}
  take experiments
  experiments=${last:-$experiments}
  declare -A own=()
  for task in xsum wmt dolly; do
    for data in data reference; do
      take "$task-$data"
      own[$task-$data]=$last
    done
  done
  take output
  output=${last:-$root/runs/rsd/all}
  for pair in model draft-model data reference; do
    if is_given "$pair"; then fail "--$pair: expected --pair=TARGET,DRAFT, --TASK-data and --TASK-reference with all"; fi
  done
  for pair in "${pairs[@]}"; do
    [[ $pair == ?*,?* ]] || fail "--pair: expected TARGET,DRAFT, two folders, got $pair"
    names+=("$(basename "${pair%%,*}")")
  done
  [ -z "$(printf '%s\n' "${names[@]}" | sort | uniq -d)" ] ||
    fail "--pair: expected targets with different names, got ${names[*]}; give another --output to another run of all"
  for experiment in ${experiments//,/ }; do
    local folders=()
    for pair in "${pairs[@]}"; do
      for task in ${tasks//,/ }; do
        case $experiment-$task in [12]-wmt | [12]-xsum | [12]-dolly) ;; *) fail "$usage" ;; esac
        folder=$output/$(basename "${pair%%,*}")/experiment-$experiment-$task
        local words=("--model=${pair%%,*}" "--draft-model=${pair#*,}" "--output=$folder")
        for data in data reference; do
          [ -z "${own[$task-$data]-}" ] || words+=("--$data=${own[$task-$data]}")
        done
        local code=0
        case $speeds in *tokens_per_second*) ;; *) words+=(--token-rates=false) ;; esac
        bash "$0" "$experiment" "$task" "${words[@]}" ${ratio:+"$ratio"} "${given[@]}" >/dev/null || code=$?
        case $code in 0 | 1 | 3) ;; *) exit "$code" ;; esac
        if [ "$code" = 1 ] && [ ! -e "$folder/paper.md" ]; then exit 1; fi # no table: the sweep failed
        if [ "$code" = 1 ] || [ "$worst" = 0 ]; then worst=$code; fi
        folders+=("$folder")
      done
    done
    tables_of_all "$experiment" "${folders[@]}"
    for folder in "${folders[@]}"; do
      sed "s|^|${folder#"$output/"}: |" "$folder/paired.txt"
    done >"$output/paired-$experiment.txt"
  done
  {
    for experiment in ${experiments//,/ }; do
      printf '## Experiment %s\n\n' "$experiment"
      cat "$output/table-$experiment.md"
      echo
    done
  } >"$output/paper.md"
  cat "$output/paper.md"
  echo "$output: paper.md and, for each experiment, table-N.md, table-N.csv, paired-N.txt, figure-4.svg, figure-5.svg"
  exit "$worst"
}

# tables_of_all EXPERIMENT FOLDERS: one table, one figure
tables_of_all() {
  local size=draft-depth title=DL columns=$speeds titles rows
  if [ "$1" = 2 ]; then size=draft-nodes title=Comp.; fi
  titles="Model,Task,$title,Dec.,Spec.,Eff.,MBSU"
  case $speeds in *tokens_per_second*) titles+=,TR ;; esac
  if compgen -G "$output/*/experiment-$1-*/*/references.jsonl" >/dev/null; then columns+=,accuracy titles+=,Acc.; fi
  rows=model,task,$size,draft,draft-tree
  "$analysis" table "${@:2}" --rows "$rows" --columns "$columns" --titles "$titles" --errors items ${ratio:+"$ratio"} \
    >"$output/table-$1.md"
  "$analysis" table "${@:2}" --rows "$rows" --columns "$columns" --errors items ${ratio:+"$ratio"} --format csv \
    >"$output/table-$1.csv"
  "$analysis" figure "${@:2}" --kind decoders --x "$size" --measures "$speeds,accuracy" ${ratio:+"$ratio"} \
    --output "$output/figure-$(($1 + 3)).svg"
}

# rates: `longhaul bench speculation` and its table
run_rates() {
  local folder
  take output
  folder=${last:-$root/runs/rsd/rates}
  default shape 7b
  default draft-shape 115m
  default acceptance 0.7
  find_programs table
  mkdir -p "$folder"
  "$longhaul" bench speculation "${defaults[@]}" "${given[@]}" --json >"$folder/bench.json"
  python3 "$root/jobs/rsd/rates.py" "$folder/bench.json" | tee "$folder/rates.md"
  echo "$folder: bench.json, rates.md"
  exit 0
}

case ${1-} in
  1 | 2)
    case ${2-} in wmt | xsum | dolly) ;; *) fail "$usage" ;; esac
    given=("${@:3}")
    set_experiment "$1" "$2"
    ;;
  ordering)
    given=("${@:2}")
    file=$root/jobs/rsd/ordering.cfg
    name=ordering
    default data "$root/runs/rsd/prompts.jsonl"
    ;;
  all)
    given=("${@:2}")
    take_measures
    find_programs table
    run_all
    ;;
  rates)
    given=("${@:2}")
    run_rates
    ;;
  *) fail "$usage" ;;
esac
default model "$root/jobs/demo/model"
default draft-model "$root/jobs/demo/draft"
default output "$root/runs/rsd/$name"
take_measures
for option in "${defaults[@]}" "${given[@]}"; do
  case $option in --output=*) output=${option#--output=} ;; esac
done
[ -n "${output-}" ] || fail "--output: expected --output=FOLDER"

# --- the sweep
find_programs table
if [ "$name" = ordering ]; then
  mkdir -p "$root/runs/rsd"
  python3 "$root/jobs/prompts.py" "$root/jobs/demo/books" --count 40 >"$root/runs/rsd/prompts.jsonl"
fi
with_seeds
run_sweep "$output" "$file" "${defaults[@]}" "${given[@]}"

# --- tables and figures
# table NAME OPTIONS
table() {
  "$analysis" table "$output" ${ratio:+"$ratio"} "${@:2}" --output "$output/$1.md" --output "$output/$1.csv"
}
# compare_trees: at each temperature RSD-S against SpecTr with the same tree, on the same prompts
compare_trees() {
  local folder temperature tree
  for folder in "$output"/spectr-*,temperature=*; do
    folder=${folder##*/spectr-}
    echo "${folder##*temperature=} ${folder%%,*}"
  done | sort -u -V | while read -r temperature tree; do
    [ -e "$output/rsd-s-$tree,seed=1,temperature=$temperature" ] || continue
    echo "temperature $temperature, $tree: $("$analysis" compare "$output/spectr-$tree,"*"temperature=$temperature" \
      "$output/rsd-s-$tree,"*"temperature=$temperature" --pool draft --measures block_efficiency --draws 10000 | tail -1)"
  done
}
# compare_decoders: block efficiency of RSD-S against each other decoder, over all trees and seeds, on the same prompts
compare_decoders() {
  local decoder
  for decoder in sd spectr rsd-c; do
    if compgen -G "$output/$decoder-*" >/dev/null && compgen -G "$output/rsd-s-*" >/dev/null; then
      echo "rsd-s against $decoder: $("$analysis" compare "$output/$decoder-"* "$output/rsd-s-"* --pool draft \
        --measures block_efficiency --draws 10000 | tail -1)"
    fi
  done
}
made="paper.md, paper.csv"
if [ "$name" = ordering ]; then
  rows=draft-nodes,draft,draft-tree
  table paper --rows "$rows" --columns "temperature,$speeds" --errors items
  table seeds --rows "$rows" --columns "temperature,$speeds"
  "$analysis" figure "$output" --kind decoders --x draft-nodes --rows temperature --measures block_efficiency \
    --output "$output/ordering.svg"
  compare_trees >"$output/paired.txt"
  made+=", the same with standard errors over seeds (seeds.md, seeds.csv), ordering.svg, paired.txt"
else
  if [ -n "$measure" ] && ! compgen -G "$output/*/references.jsonl" >/dev/null; then
    echo "warning: the data has no references, so the tables are without accuracy; --reference=FILE names them" >&2
    measure=
  fi
  size=draft-depth
  if [ "$experiment" = 2 ]; then size=draft-nodes; fi
  columns=$speeds${measure:+,$measure}
  table paper --rows "$size,draft,draft-tree" --columns "$columns" --errors items
  table relative --rows "$size,draft,draft-tree" --columns "$columns" --relative
  "$analysis" figure "$output" --kind decoders --x "$size" --measures "$speeds,accuracy" ${ratio:+"$ratio"} \
    --output "$output/figure-$((experiment + 3)).svg"
  compare_decoders >"$output/paired.txt"
  made+=", relative.md, relative.csv, figure-$((experiment + 3)).svg, paired.txt"
fi
cat "$output/paper.md"
if [ -n "${measure-}" ]; then
  made+=", accuracy.txt"
  "$analysis" compare "$output" --pool draft --measures "$measure" --draws 10000 --fail-on-loss 0.01 \
    >"$output/accuracy.txt" || code=1
  cat "$output/accuracy.txt"
fi
echo "$output: $made"
exit "$code"
