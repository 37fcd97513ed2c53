#!/usr/bin/env bash
# tests/gpu/same_text.sh WAY WORK LONGHAUL…: generates the texts of the demo on the GPU in several ways; fails if they differ.
#   exact    kernels = cuda-exact, beside the CPU
#   drafts   kernels = cuda: without drafts one by one, with drafts, and several at a time
#   cublas   the same with kernels = cuda-cublas
# Texts and run folders are kept in WORK. LONGHAUL: the words that start the program.
set -euo pipefail
way=$1 work=$2/$1
longhaul=("${@:3}")
mkdir -p "$work"

# run NAME KEY…: the demo's novels with these keys; the texts go to $work/NAME.
run() {
  local name=$1
  shift
  "${longhaul[@]}" run jobs/demo/demo.cfg --baseline=false --max-tokens=300 --output="$work/run-$name" "$@"
  cp "$work/run-$name/results.jsonl" "$work/$name"
}
same() {
  cmp "$work/$1" "$work/$2"
  echo "$1 and $2 are equal, $(wc -c <"$work/$1") bytes"
}

case $way in
  exact)
    run gpu --device=cuda --kernels=cuda-exact --draft=ngram --batch=5 --limit=2
    run cpu --device=cpu --draft=ngram --batch=5 --limit=2
    same gpu cpu
    ;;
  drafts | cublas)
    kernels=cuda
    if [ "$way" = cublas ]; then kernels=cuda-cublas; fi
    run plain --device=cuda --kernels=$kernels --draft=ar --batch=1
    run drafted --device=cuda --kernels=$kernels --draft=ngram --batch=3
    same plain drafted
    run together --device=cuda --kernels=$kernels --draft=ar --batch=5
    same plain together
    ;;
  *)
    echo "error: same_text.sh: expected exact, drafts or cublas, got '$way'" >&2
    exit 2
    ;;
esac
