# shellcheck shell=bash
# What tests/gpu.sh runs on a GPU, in the order of value; sourced by it. step, suite and phase: steps.sh.

# Folders of NVIDIA's libraries that our programs load on demand: the CUDA toolkit's, and those of Python wheels.
nvidia_libraries() {
  local folder
  for folder in /usr/local/cuda/lib64 $(python3 -c 'import glob, nvidia; print(*(f for p in nvidia.__path__ for f in glob.glob(p + "/*/lib")))' 2>/dev/null); do
    if [ -d "$folder" ]; then printf '%s:' "$folder"; fi
  done
}

# Whether `kernels = cuda-cublas` can load its library.
has_cublas() {
  local folder folders
  IFS=: read -ra folders <<<"$libraries"
  for folder in "${folders[@]}"; do
    if compgen -G "$folder/libcublasLt.so*" >/dev/null; then return 0; fi
  done
  ldconfig -p 2>/dev/null | grep -qF libcublasLt.so
}

has_module() { python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' "$1" 2>/dev/null; }

# Sets `bin`, the programs' folder; `ours`, the command before the name of one of them; and `longhaul`, a whole command.
# Open MPI's libraries do not use the program's search path (they have a RUNPATH), so this one gets the folder of ours
# from the environment. Tools such as ncu must not: they would load our C++ library.
use_programs() {  # WORK
  bin=$1/programs/bin
  libraries=$(nvidia_libraries)${LD_LIBRARY_PATH:-}
  libraries=${libraries%:}
  ours=(env "LD_LIBRARY_PATH=$libraries" "OPAL_PKGLIBDIR=$1/programs/mpi/plugins"
    "OPAL_PKGDATADIR=$1/programs/mpi/share" OMPI_MCA_ess_singleton_isolated=1 OMPI_MCA_pml=ob1 OMPI_MCA_btl=self
    OMPI_MCA_mca_base_component_show_load_errors=0 OMPI_MCA_plm_rsh_agent= OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
  longhaul=("${ours[@]}" "LD_LIBRARY_PATH=$1/programs/lib${libraries:+:$libraries}" "$bin/longhaul")
}

# Without the archive: gpu_bench alone.
build_gpu_bench() {
  bin='build-gpu/kernels'
  phase build 420
  step configure 60 'CUDA compiler' cmake -S . -B $bin -DCMAKE_BUILD_TYPE=Release -DLONGHAUL_KERNELS_ONLY=ON \
    -DLONGHAUL_CUDA=ON
  step gpu_bench 400 'Linking' cmake --build $bin --target gpu_bench --parallel "$(nproc)"
}

smoke() {
  phase smoke 20
  step driver 5 '[0-9]' nvidia-smi --format=csv,noheader \
    --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit
  if [ "$verdict" != PASS ]; then gpu_works=no; fi
  bench smoke 15 'a copy moves|GPU|kernel'
  if [ "$verdict" != PASS ]; then gpu_works=no; fi
}

# bench SECTION LIMIT PATTERN [OPTION…]: a section of gpu_bench in a process of its own.
bench() { step "$1" "$2" "$3" "${ours[@]}" "$bin/gpu_bench" "--only=${1%-cublas}" "${@:4}"; }

# suites PROGRAM HOW: its test suites on the GPU, a line each: name and filter. HOW = devices: each device's tests apart.
suites() {
  "${ours[@]}" "$bin/$1" --gtest_list_tests '--gtest_filter=*/cuda:*/cuda_exact:*/cuda_cublas' | awk -v how="$2" '
    /^[^ ]/ { suite = $1; name = $1; sub(/.*\//, "", name); sub(/\.$/, "", name); next }
    { device = $1; sub(/.*\//, "", device)
      line = how == "devices" ? name "." device " " suite "*/" device : name " " suite "*/cuda*"
      if (!seen[line]++) print line }'
}

# all_suites PROGRAM HOW LIMIT: each in a process of its own, because after a bad memory access in a kernel a process can no
# longer use the GPU.
all_suites() {
  local name filter found
  if ! found=$(suites "$1" "$2" 2>&1); then
    record FAIL 0 "$phase_name/$1" "$found"
    return
  fi
  while read -r name filter; do
    suite "$name" "$3" "$filter" "${ours[@]}" "$bin/$1"
  done <<<"$found"
}

kernel_tests() {
  phase kernels 60
  all_suites gpu_test suites 30
}

benchmarks() {
  phase bench 60
  bench layers 20 '8b, (1|64) rows' --quick
  bench products 20 '32 layers' --quick
  bench attention 20 '100000 tokens' --quick
  bench prompt 20 '(sum of|rows,) 32 layers' --quick
  bench tree 20 '64 rows, (sum of )?32 layers' --quick
  bench choices 15 'greedy|top-p 0.5|decide' --quick
  bench rows 10 '1 rows' --quick
  bench collectives 15 'all-reduce' --quick
  bench layers-single 20 '8b, (1|64) rows' --quick
  bench host-memory 15 'host memory|port of' --quick
}

# Decoding, verification and prompts of a whole model.
passes() {
  phase passes 70
  step 8b 70 '^ +(decode +1|verify +64|prefill +8192) ' "${longhaul[@]}" bench passes --shape=8b --device=cuda
}

texts() {
  phase text 60
  local way
  for way in exact drafts cublas; do
    if [ $way = cublas ] && ! has_cublas; then
      skip $way "no cuBLASLt"
      continue
    fi
    step $way 40 'equal' tests/gpu/same_text.sh $way "$1/texts" "${longhaul[@]}"
  done
}

engine_tests() {
  phase engine 60
  all_suites gpu_engine_test devices 40
}

# The vendor's and other programs' speed at the same shape.
peers() {
  phase peers 40
  if has_module torch; then
    step pytorch 40 'layers|100000 tokens' python3 tests/bench/gpu_peer.py
  else
    skip pytorch "no torch in python3"
  fi
  if command -v llama-bench >/dev/null && [ -n "${LLAMA_GGUF:-}" ]; then
    step llama.cpp 60 'pp512|tg128' llama-bench -m "$LLAMA_GGUF" -p 512 -n 128 -o md
  else
    skip llama.cpp "no llama-bench, or LLAMA_GGUF does not name a model"
  fi
}

# Where the time of the hottest kernels goes: of decoding, prompts and attention.
profiles() {
  phase ncu 60
  if ! command -v ncu >/dev/null; then
    skip all "no ncu"
    return
  fi
  profile stream_matmul products
  profile slice_matmul tree
  profile tensor_kernel attention
  profile merge_kernel attention
  profile rms_norm_kernel layers
  profile cluster_matmul prompt
  profile warpgroup_kernel prompt
}
profile() {  # KERNEL SECTION
  step "$1-$2" 15 'Duration|DRAM Throughput|Compute \(SM\) Throughput|Achieved Occupancy' "${ours[@]}" ncu \
    --clock-control none --kernel-name "regex:$1" --launch-skip 8 --launch-count 1 --section SpeedOfLight \
    --section MemoryWorkloadAnalysis --section LaunchStats --section Occupancy --section WarpStateStats \
    "$bin/gpu_bench" "--only=$2" --quick
}

# The kernels with the most intricate use of memory, on small inputs: tiles, split sums, quantized weights, attention. Not
# cuBLASLt's, whose writes initcheck does not see.
sanitizers() {
  phase sanitizer 40
  if ! command -v compute-sanitizer >/dev/null; then
    skip all "no compute-sanitizer"
    return
  fi
  local tool
  for tool in memcheck racecheck initcheck synccheck; do
    sanitize $tool products '*PartsAreStacked*/cuda*:*SlicesOfManyRows*/cuda*:*QuantizedExtremes*/cuda*:*GatedMatmul*/cuda*:-*cuda_cublas'
    sanitize $tool attention '*MixedBatch*/cuda*:*CompanyInATile*/cuda*:*SlotsThat*/cuda*'
    sanitize $tool rows '*NormsAndActivations*/cuda*:*AdditionsAndGather*/cuda*:*RopeMove*/cuda*'
  done
}
sanitize() {  # TOOL NAME FILTER
  step "$1-$2" 20 'ERROR SUMMARY|RACECHECK SUMMARY|PASSED' "${ours[@]}" compute-sanitizer --tool "$1" \
    --error-exitcode 9 "$bin/gpu_test" "--gtest_filter=$3"
}

more_benchmarks() {
  phase more 120
  bench products-int8 20 '32 layers' --quick
  bench products-int4 20 '32 layers' --quick
  bench attention-int8 20 '100000 tokens' --quick
  if has_cublas; then
    bench products-cublas 20 '32 layers' --quick --cublas
    bench prompt-cublas 20 '(sum of|rows,) 32 layers' --quick --cublas
  else
    skip products-cublas "no cuBLASLt"
  fi
}

# number STEP AWK: what an awk program prints about the log of a step; nothing if there is no such log.
number() { if [ -e "$step_logs/$1.log" ]; then awk "$2" "$step_logs/$1.log"; fi; }

# target NAME VALUE COMPARISON WANTED MEANING: whether a measured number is as good as it should be.
target() {
  local verdict
  verdict=$(awk -v value="$2" -v wanted="$4" "BEGIN { print (value != \"\" && value + 0 $3 wanted + 0) ? \"PASS\" : \"FAIL\" }")
  record "$verdict" 0 "targets/$1" "${2:-not measured}, wanted $3 $4: $5"
}

# The goals of the GPU backend, from the numbers of this run.
# shellcheck disable=SC2016  # awk's $1
targets() {
  local copy
  copy=$(number smoke-smoke '/a copy moves/ { sub(/.*moves /, ""); print $1 }')
  target decode "$(number passes-8b "/^ +decode / && ${copy:-0} > 0 { printf \"%.2f\", \$6 / ${copy:-1} }")" '>=' 0.75 \
    "bytes per second of decoding / of a copy, 8b"
  target verify "$(number passes-8b '/^ +decode / { one = $4 } /^ +verify +64 / && one > 0 { printf "%.2f", $4 / one }')" '<=' \
    1.3 "time of 64 nodes / of one, 8b"
  target attention "$(number bench-attention '/bf16, 100000 tokens, 1 nodes/ { sub(/.*GB\/s/, ""); print $1 }')" '>=' 0.75 \
    "bytes per second of attention over 100000 tokens / of a copy"
  target prefill "$(number passes-8b '/^ +prefill +8192 / { printf "%.2f", $8 / 990e3 }')" '>=' 0.45 \
    "FLOP per second of a prompt of 8192 tokens / 990 TFLOP/s, 8b"
}

run_phases() {  # WORK RESULTS SECONDS
  local commit complete=no
  commit=$(git rev-parse HEAD 2>/dev/null || echo "of an unknown commit")
  use_programs "$1"
  if [ -e "$archive" ]; then
    unpack "$1"
    commit=$(cat "$1/programs/commit")
    complete=yes
  fi
  start_steps "$2" "$3" "longhaul $commit, $(nvidia-smi -L 2>&1 | head -n 1 || true), $(date -u '+%F %T') UTC"
  if [ $complete = no ]; then build_gpu_bench; fi
  smoke
  if [ $complete = yes ]; then kernel_tests; fi
  benchmarks
  if [ $complete = yes ]; then
    passes
    texts "$1"
    engine_tests
  fi
  peers
  profiles
  if [ $complete = yes ]; then sanitizers; fi
  more_benchmarks
  finish_steps
  targets
  end_summary
}
