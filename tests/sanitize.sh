#!/usr/bin/env bash
# Unit tests under AddressSanitizer and UndefinedBehaviorSanitizer (build-asan), and the emulated GPU's kernels under the
# check for races in shared memory (gpu_races_test in build, tests/cuda_emulation/race_check.hpp).
#
#   tests/sanitize.sh [PROGRAM…]    other programs than those of kernels and engine: runner_test
#
# Left out to save time:
# - by default runner_test, because the runner's sources are a third of all; run it by hand when you change them;
# - of undefined behaviour null pointers and objects' sizes, which mostly AddressSanitizer finds as well, and casts between
#   classes (vptr); of AVX2 kernels all but their accesses, which are checked by calls; AVX-512 kernels, for each of which
#   GCC then takes a minute (-DLONGHAUL_AVX512_OPTIMISATION=-O1 has them);
# - statistical tests (rules_test), which repeat the same code millions of times; the emulated GPU (device_test, cases
#   named emulated), whose threads are fibers with stacks unknown to AddressSanitizer; tests under mpirun;
# - the cases below, which take long and run what shorter ones run, too.
set -euo pipefail
cd "$(dirname "$0")/.."

tests/install_packages.sh
mkdir -p build-asan
cmake --preset asan >build-asan/configure.log 2>&1 || {
  cat build-asan/configure.log >&2
  exit 1
}
programs=("$@")
if [ $# -eq 0 ]; then programs=(model_test engine_test kernels_test checkpoint_test model_files_test tokenizer_test); fi
replays=(config_json safetensors tokenizer tool_calls)
cmake --build build-asan --target "${programs[@]}" "${replays[@]/%/_replay}"
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DLONGHAUL_UNITY=ON -DLONGHAUL_TESTS=ON >build-asan/configure-gpu-races.log 2>&1 || {
  cat build-asan/configure-gpu-races.log >&2
  exit 1
}
cmake --build build --target gpu_races_test

export UBSAN_OPTIONS=print_stacktrace=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# After the builds, which list the tests of each program: without a shard's number that would be an error. More shards
# than cores, because they differ in length.
export GTEST_TOTAL_SHARDS=6 GTEST_BRIEF=1

# Cases left out per program. model_test: cases of fifteen seconds and more, which run whole models, and what runs once per
# family, which is run below for some. runner_test: cases that start the program, because Open MPI plug-ins leak and are
# then unloaded, so that no name is left to suppress.
# kernels_test: the emulation (of amx only where it computes nothing new), and the other vector variants (avx512, amx and amx_bf16).
declare -A without=(
  [kernels_test]="*avx512_emulated:*cuda*emulated:*Attention*/amx_emulated:*Rank*/amx_emulated:*Delta*/amx_emulated:*Kv*/amx_emulated:*Rows*/amx_emulated:*Sum*/amx_emulated:*/avx512*:*/amx:*/amx_bf16:*/amx_bf16_on_avx512:CudaEmulation*:CudaDevice*:LaunchesTest*:LaunchList*:SharedLibrary*"
  [model_test]="LmDrafter.*:*Quantized*:ReplicaScoring.Perplexity*:Medusa.TheDemosHeadsGain:Medusa.StoppedAndResumed*:SelfDrafter.RankedPositions*:TokenSwift.RecursiveGives*:Lyanna.RecursiveGives*:TokenSwift.TheDemosHeadsGain:TriForce.TheDemosModelsGain:Eagle.TheDemosLayerGains:Lyanna.ResamplingOnTheDemo:*.TextsAreDistributedAsTheTargets:*LongTexts.*/gemma4*:StatesOfLinearAttention.AreStored*:*.SamplingRulesEmit*:Eagle*.*TheText*:Eagle*.RecursiveGives*:Lyanna.Coupled*:TriForce.Coupled*:TokenSwift.Coupled*:TokenSwift.Passes*:TokenSwift.TheTexts*:TokenSwift.APreempted*:ReplicaResume.RowsByLength*:*DraftLayerResume.OnOtherRanks*:*DraftLayerResume.DamagedKeysAndValuesCostTime*:CostModel.MeasuresAModel*:*ContinueAsTransformersDoes*:*Fp32DraftsAreThoseOfPyTorch/tokenswift_qwen*:*LongTexts.*/qwen35:*LongTexts.*/gemma3*:TensorParallel.EveryDegree*:Models/MtpTexts.*/qwen3_5*:Models/MtpTexts.*/glm4_moe:PrefixCaching.ResumesOfDrafts*:Models/Families.*:*VariantsAndChunks*"
  [runner_test]="Cli*"
)

# Families of models that are run by code of their own: windows and shared keys, linear attention, Mamba-2 and experts,
# latent attention, sinks, learned positions.
families=""
for family in gemma4 qwen3_5 nemotron_h deepseek_v3 gpt_oss gpt2; do
  families+="Models/Families.*/$family:Models/Parity.VariantsAndChunks*/$family:"
done
families="${families%:}-*ContinueAsTransformersDoes*"

# The limit is for tests that hang: several times what the longest shard needs on the slowest machine seen.
limit_seconds=1800
run() {  # NAME COMMAND…
  local code=0
  timeout "$limit_seconds" "${@:2}" >"build-asan/$1.log" 2>&1 || code=$?
  if [ "$code" -eq 0 ]; then
    echo "$1" >>build-asan/passed
    return
  fi
  cat "build-asan/$1.log" >&2
  if [ "$code" -eq 124 ]; then
    echo "error: sanitizers: $1 did not end within $limit_seconds s" >&2
  else
    echo "error: sanitizers: $1 failed ($code)" >&2
  fi
}
launch() {  # NAME COMMAND…: as soon as one of the cores is free
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
  started=$((started + 1))
  run "$@" &
}
launch_shards() {  # NAME PROGRAM FILTER
  local shard
  for ((shard = 0; shard < GTEST_TOTAL_SHARDS; ++shard)); do
    GTEST_SHARD_INDEX=$shard launch "$1.$shard" "$2" "--gtest_filter=$3"
  done
}
started=0
: >build-asan/passed
start=$SECONDS
for name in "${programs[@]}"; do
  launch_shards "$name" "build-asan/tests/$name" "-${without[$name]:-}"
done
if [[ " ${programs[*]} " == *" model_test "* ]]; then launch_shards families build-asan/tests/model_test "$families"; fi
launch_shards gpu-races build/tests/gpu_races_test "*/cuda*:RacesOfKernels*:-*GpuGrids*:*LargeBoxes*:*AttentionTest.EqualsReference/cuda_exact*"
for name in "${replays[@]}"; do
  launch "fuzz.$name" "build-asan/tests/${name}_replay" 3000 tests/fuzz/corpus/"$name"/*
done
wait

if [ "$(wc -l <build-asan/passed)" -ne "$started" ]; then
  echo "error: sanitizers: of $started runs $(wc -l <build-asan/passed) passed" >&2
  exit 1
fi
echo "sanitizers: ${programs[*]}, tests/fuzz and gpu-races ran without a finding ($((SECONDS - start)) s)"
