#!/usr/bin/env bash
# The experiments of the paper on Lyanna, from the job to table and figure:
#
#   jobs/lyanna/run.sh figure-8
#
# names a file of this folder without its ending: figure-8, figure-12. The prompts are 200 pieces of Treasure Island, the models
# the demo's. Your own:
#
#   jobs/lyanna/run.sh figure-12 --data=prompts.jsonl --model=/models/target --draft-model=/models/target-lyanna \
#     --output=runs/figure-12-mine
#
# (figure-8 names a draft model for each method: change them in a copy of the file, which is also a name: `run.sh my/figure-8.cfg`.)
# Options are passed on to `longhaul sweep`. If it was killed or stopped, run it again to resume. At the end the sweep's folder
# has the table (paper.md, paper.csv), and for figure-8 a figure. RANKS=2 runs on two MPI ranks. The exit code is the sweep's.
#
# Figure 13 is `longhaul bench layers`. Tables 1 and 2 and figures 5 and 7 are of the training: jobs/train/README.md.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

# shellcheck source=jobs/experiment.sh
source "$root/jobs/experiment.sh"

choose_experiment lyanna "$@"
case $name in
  figure-8) rows=draft,draft-tree columns=block_efficiency,tokens_per_second,batch ;;
  figure-12) rows=temperature,resample,draft-tree columns=block_efficiency,drafts_per_call,resampled,tokens_per_second ;;
  *) fail "$file: expected the name of a figure of the paper, got $name; name a copy as the original is" ;;
esac

# --- the sweep
find_programs table
mkdir -p "$root/runs/lyanna"
python3 "$root/jobs/prompts.py" "$root/jobs/tokenswift" --count 200 --characters 190 >"$root/runs/lyanna/prompts.jsonl"
run_sweep "$output" "$file" "${given[@]}"

# --- table and figure
"$analysis" table "$output" --rows "$rows" --columns "$columns" --output "$output/paper.md" --output "$output/paper.csv"
made="paper.md, paper.csv"
if [ "$name" = figure-8 ]; then
  "$analysis" figure "$output" --kind speed --x batch --output "$output/$name.svg"
  made+=", $name.svg"
fi
cat "$output/paper.md"
echo "$output: $made"
exit "$code"
