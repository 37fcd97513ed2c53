#!/usr/bin/env bash
# The experiments of the paper on TokenSwift (arXiv 2502.18890), from the job to table and figure:
#
#   jobs/tokenswift/run.sh table-5
#
# names a file of this folder without its ending: table-3, -4, -5, -6, -7, -8, -12, -13, -14, -15-16, figure-1, -3, -4. By
# default that is the demo model, 16,384 tokens and three seeds; each file says how long it takes. The paper's size:
#
#   jobs/tokenswift/run.sh table-5 --max-tokens=102400 --model=/models/TokenSwift-Llama-3.1-8B \
#     --draft-model=/models/TokenSwift-Llama-3.1-8B --output=runs/table-5-8b
#
# with `grid seed = 1 | 2 | 3 | 4 | 5` in a copy of the file, which is also a name: `run.sh my/table-5.cfg`. Options are passed
# on to `longhaul sweep`. If it was killed or stopped, run it again to resume. At the end the sweep's folder has the table
# (paper.md, paper.csv: mean ± standard error over the seeds), the diversity of the whole texts (distinct.md, distinct.csv), and
# for figure-3 and figure-4 a figure. RANKS=2 runs on two MPI ranks. The exit code is the sweep's.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

# shellcheck source=jobs/experiment.sh
source "$root/jobs/experiment.sh"

choose_experiment tokenswift "$@"

# --- what stands in the table: rows, and numbers at each fifth of the length
columns=alpha,beta,speedup,distinct
rows=""
figure=()
case $name in
  table-3) rows=prompt-tokens,draft,draft-tree columns=alpha,alpha_gamma,beta,tokens_per_call,speedup,distinct ;;
  table-4 | figure-1) rows=draft,draft-tree columns=minutes,minutes_saved,speedup,tokens_per_call,distinct ;;
  table-5) rows=draft,partial-cache-mode ;;
  table-6) rows=draft,top-p,eta,min-p,repetition-penalty ;;
  table-7) rows=draft,draft-tree ;;
  table-8) rows=draft,repetition-penalty ;;
  table-12) rows=draft,top-p,eta,min-p,ngram-top ;;
  table-13) rows=draft,temperature ;;
  table-14) rows=draft,prompt-tokens ;;
  table-15-16) rows=draft,penalty-window ;;
  figure-3) rows=draft,ngram-top figure=(--kind lengths) ;;
  figure-4) rows=draft,ngram-top figure=(--kind lengths --x ngram-top) ;;
  *) fail "$file: expected the name of a table or figure of the paper, got $name; name a copy as the original is" ;;
esac

# --- the sweep
find_programs lengths
run_sweep "$output" "$file" "${given[@]}"

# --- tables and figures
"$analysis" lengths "$output" --rows "$rows" --columns "$columns" --output "$output/paper.md" --output "$output/paper.csv"
"$analysis" table "$output" --rows "$rows" --output "$output/distinct.md" --output "$output/distinct.csv" \
  --columns token_distinct_1,token_distinct_2,token_distinct_3,token_distinct_4,token_distinct
made="paper.md, paper.csv, distinct.md, distinct.csv"
if [ ${#figure[@]} -gt 0 ]; then
  "$analysis" figure "$output" "${figure[@]}" --output "$output/$name.svg"
  made+=", $name.svg"
fi
cat "$output/paper.md"
echo "$output: $made"
exit "$code"
