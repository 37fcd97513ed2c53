#!/usr/bin/env bash
# Runs everything that needs an NVIDIA GPU, in under nine minutes: the tests on the GPU, some of them again under
# compute-sanitizer, whole runs that must give the same bytes in every configuration, and benchmarks, compared with
# PyTorch if it is installed. Prints a table at the end.
#
#   tests/gpu.sh          runs everything; packs first if build-gpu/programs.tar.gz is missing
#   tests/gpu.sh pack     builds, and packs the programs with the libraries that a bare machine lacks. Needs no GPU.
#                         The repository, including build-gpu/, can then be copied to a machine that has only a GPU and
#                         its driver, and optionally the CUDA toolkit, NCCL and PyTorch.
#
# Benchmark results and logs are written to build-gpu/results (or $RESULTS).
set -euo pipefail
cd "$(dirname "$0")/.."
archive=$PWD/build-gpu/programs.tar.gz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packed=$work/programs
programs=(tests/gpu_test tests/gpu_engine_test tests/gpu_bench runner/longhaul)

# The C library and the driver come from the machine. NCCL and cuBLASLt are large and loaded on demand; a machine with
# the CUDA toolkit or PyTorch has them.
carried() { ! [[ $1 =~ ^(ld-linux|libc\.|libm\.|libdl\.|librt\.|libpthread\.|libresolv\.|libcuda\.) ]]; }

pack() {
  local program name library
  mkdir -p build-cuda build-gpu "$packed/bin" "$packed/lib"
  cmake --preset cuda >build-cuda/configure.log 2>&1 || {
    cat build-cuda/configure.log >&2
    exit 1
  }
  cmake --build build-cuda --target "${programs[@]##*/}"
  for program in "${programs[@]}"; do
    install -s "build-cuda/$program" "$packed/bin/"
    while read -r name _ library _; do
      if [ -e "$library" ] && carried "$name"; then cp -L "$library" "$packed/lib/"; fi
    done < <(ldd "build-cuda/$program")
  done
  # A single rank needs only Open MPI's library and those of its plug-ins that load without other libraries.
  mkdir -p "$packed/mpi"
  cp -rL "$(ompi_info --path pkglibdir | sed 's/^.*: *//')" "$packed/mpi/plugins"
  cp -rL "$(ompi_info --path pkgdatadir | sed 's/^.*: *//')" "$packed/mpi/share"
  git rev-parse HEAD >"$packed/commit" 2>/dev/null || true
  tar -C "$work" -czf "$archive" programs
}

if [ "${1:-}" = pack ] || [ ! -e "$archive" ]; then pack; fi
if [ "${1:-}" = pack ]; then exit 0; fi
tar -C "$work" -xzf "$archive"

if [ ! -e /dev/nvidia0 ] && ! nvidia-smi -L >/dev/null 2>&1; then
  echo "error: GPU: expected an NVIDIA GPU, got none" >&2
  exit 1
fi
results=${RESULTS:-$PWD/build-gpu/results}
mkdir -p "$results"
wheels=$(python3 -c 'import glob, nvidia; print(":".join(f for p in nvidia.__path__ for f in glob.glob(p + "/*/lib")))' 2>/dev/null || true)
cuda=/usr/local/cuda
export PATH=$PATH:$cuda/bin
export LD_LIBRARY_PATH=$packed/lib:$cuda/lib64:$wheels${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export OPAL_PKGLIBDIR=$packed/mpi/plugins OPAL_PKGDATADIR=$packed/mpi/share
export OMPI_MCA_ess_singleton_isolated=1 OMPI_MCA_mca_base_component_show_load_errors=0 OMPI_MCA_pml=ob1 OMPI_MCA_btl=self OMPI_MCA_plm_rsh_agent=
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# Whether cuBLASLt is installed; `kernels = cuda-cublas` needs it.
has_cublas() {
  local folder folders
  IFS=: read -ra folders <<<"$LD_LIBRARY_PATH"
  for folder in "${folders[@]}"; do
    if compgen -G "$folder/libcublasLt.so.*" >/dev/null; then return 0; fi
  done
  return 1
}

table=()
failed=0
deadline=$((SECONDS + 500))
# step NAME SECONDS COMMAND…: runs the command for at most SECONDS, with its output in a log, and records the result.
step() {
  local name=$1 limit=$2 code=0 start=$SECONDS verdict=passed
  shift 2
  if [ "$limit" -gt $((deadline - start)) ]; then limit=$((deadline > start ? deadline - start : 1)); fi
  timeout "$limit" "$@" >"$results/$name.log" 2>&1 || code=$?
  if [ "$code" -eq 124 ]; then verdict="not done in $limit s"; elif [ "$code" -ne 0 ]; then verdict="failed ($code)"; fi
  if [ "$code" -ne 0 ]; then
    failed=$((failed + 1))
    echo "--- $name: the end of its log" && tail -n 25 "$results/$name.log"
  fi
  table+=("$(printf '%-28s %-20s %4d s' "$name" "$verdict" $((SECONDS - start)))")
}

gpu_cases='--gtest_filter=*/cuda:*/cuda_exact:*/cuda_cublas'
step kernels 100 "$packed/bin/gpu_test" "$gpu_cases"
step engine 100 "$packed/bin/gpu_engine_test" "$gpu_cases"

if command -v compute-sanitizer >/dev/null; then
  small='--gtest_filter=*NormsAndActivations*/cuda:*Gather*/cuda*:*PartsAreStacked*/cuda*:*MixedBatch*/cuda*:*SlotsThat*/cuda*'
  for tool in memcheck racecheck initcheck; do
    step "$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 "$packed/bin/gpu_test" "$small"
  done
  step racecheck-rules 40 compute-sanitizer --tool racecheck --error-exitcode 9 "$packed/bin/gpu_engine_test" \
    '--gtest_filter=*Deciding.IsTheHostsRuleForIndependentDrafts*:*Deciding.IsTheHostsRuleForCertainDrafts*'
else
  table+=("compute-sanitizer            not here")
fi

# shellcheck disable=SC2317  # called by the shells started below
# run NAME KEYS…: runs the demo's novels with these keys; results.jsonl is copied to $work/NAME.
run() {
  local name=$1
  shift
  "$packed/bin/longhaul" run jobs/demo/demo.cfg --baseline=false --max-tokens=300 --output="$work/run-$name" "$@" &&
    cp "$work/run-$name/results.jsonl" "$work/$name"
}
# shellcheck disable=SC2317
one_text() {
  run plain --device=cuda --draft=ar --batch=1
  run drafts --device=cuda --draft=ngram --batch=3
  run together --device=cuda --draft=ar --batch=5
  cmp "$work/plain" "$work/drafts" && cmp "$work/plain" "$work/together"
}
# shellcheck disable=SC2317
one_text_with_cublas() {
  run library --device=cuda --kernels=cuda-cublas --draft=ar --batch=1
  run library-drafts --device=cuda --kernels=cuda-cublas --draft=ngram --batch=5
  cmp "$work/library" "$work/library-drafts"
}
# shellcheck disable=SC2317
bits_of_the_processor() {
  run exact --device=cuda --kernels=cuda-exact --draft=ngram --batch=5 --limit=2
  run processor --device=cpu --draft=ngram --batch=5 --limit=2
  cmp "$work/exact" "$work/processor"
}
export -f run one_text one_text_with_cublas bits_of_the_processor
export packed work
step one_text 60 bash -euc one_text
step bits_of_the_processor 60 bash -euc bits_of_the_processor
if has_cublas; then
  step one_text_with_cublas 40 bash -euc one_text_with_cublas
else
  table+=("cuBLASLt                     not here")
fi

step gpu_bench 100 "$packed/bin/gpu_bench"
if has_cublas; then step gpu_bench_cublas 30 "$packed/bin/gpu_bench" --cublas; fi
step bench_decode 60 "$packed/bin/longhaul" bench decode --shape 8b --device=cuda
step bench_verify 60 "$packed/bin/longhaul" bench verify --shape 8b --device=cuda
if python3 -c 'import torch' 2>/dev/null; then step gpu_peer 60 python3 tests/bench/gpu_peer.py; fi

for log in gpu_bench gpu_bench_cublas gpu_peer bench_decode bench_verify; do
  if [ -e "$results/$log.log" ]; then echo "=== $log" && cat "$results/$log.log"; fi
done
echo "=== commit $(cat "$packed/commit" 2>/dev/null || echo unknown), $(nvidia-smi -L 2>/dev/null | head -n 1)"
printf '%s\n' "${table[@]}"
exit $((failed > 0))
