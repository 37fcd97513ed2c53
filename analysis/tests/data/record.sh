#!/usr/bin/env bash
# How the recorded runs beside this file were made: record.sh LONGHAUL (the built program). Four short prompts, the demo
# model, speculative and plain decoding with two seeds (sweep/), and one run with two samples of each prompt (samples/).
# Only what the analysis reads is kept, and the paths in it are made to mean no machine.
set -euo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")"
model=$(realpath ../../../jobs/demo/model)

run() {
  local folder=$1
  shift
  rm -rf "$folder"
  "$program" run recorded.cfg --output="$folder" "$@"
  for entry in "$folder"/*; do
    case "$(basename "$entry")" in
      results.jsonl | stats.jsonl | summary.json | job.cfg) ;;
      *) rm -rf "$entry" ;;
    esac
  done
  sed -i -e "s|$PWD/|/data/|g" -e "s|$model|/models/demo|g" "$folder/job.cfg" "$folder/summary.json"
  cp references.jsonl "$folder/"
}

for seed in 1 2; do
  run "sweep/draft=ngram,seed=$seed" --draft=ngram --seed="$seed"
  run "sweep/draft=ar,seed=$seed" --draft=ar --seed="$seed"
done
run samples --draft=ngram --seed=5 --samples=2 --stop=.
