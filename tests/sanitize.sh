#!/usr/bin/env bash
# Unit tests under AddressSanitizer and UndefinedBehaviorSanitizer: build-asan. The AVX-512 kernels are not sanitized there, because
# GCC then takes a minute for each of their files; by hand: cmake --preset asan -DLONGHAUL_AVX512_OPTIMISATION=-O1. Then the emulated
# GPU's kernels under the check for races in shared memory: build-gpu-races, tests/cuda_emulation/race_check.hpp.
#
# Left out to save time: statistical tests (rules_test), which repeat the same code millions of times; the emulated GPU
# (device_test, cases named emulated), whose threads are fibers with stacks unknown to AddressSanitizer; tests under
# mpirun; and the cases below.
set -euo pipefail
cd "$(dirname "$0")/.."

tests/install_packages.sh
mkdir -p build-asan
cmake --preset asan >build-asan/configure.log 2>&1 || {
  cat build-asan/configure.log >&2
  exit 1
}
programs=(model_files_test tokenizer_test checkpoint_test engine_test kernels_test model_test runner_test)
replays=(config_json safetensors tokenizer)
cmake --build build-asan --target "${programs[@]}" "${replays[@]/%/_replay}"
cmake --preset gpu-races -DLONGHAUL_UNITY=ON >build-asan/configure-gpu-races.log 2>&1 || {
  cat build-asan/configure-gpu-races.log >&2
  exit 1
}
cmake --build --preset gpu-races

export UBSAN_OPTIONS=print_stacktrace=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# After the builds, which list the tests of each program: without a shard's number that would be an error.
GTEST_TOTAL_SHARDS=$(nproc)
export GTEST_TOTAL_SHARDS GTEST_BRIEF=1

# Cases left out per program. model_test: cases of fifteen seconds and more, which run whole models. runner_test: cases that
# start the program, because Open MPI plug-ins leak and are then unloaded, so that no name is left to suppress.
# kernels_test: the emulation (of amx only where it computes nothing new), and the other vector variants (avx512, amx and amx_bf16).
declare -A without=(
  [kernels_test]="*avx512_emulated:*cuda*emulated:*Attention*/amx_emulated:*Rank*/amx_emulated:*Delta*/amx_emulated:*Kv*/amx_emulated:*Rows*/amx_emulated:*Sum*/amx_emulated:*/avx512*:*/amx:*/amx_bf16:*/amx_bf16_on_avx512:CudaEmulation*:CudaDevice*:LaunchesTest*:LaunchList*:SharedLibrary*"
  [model_test]="LmDrafter.*:*Quantized*:ReplicaScoring.Perplexity*:Medusa.TheDemosHeadsGain:Medusa.StoppedAndResumed*:SelfDrafter.RankedPositions*:TokenSwift.RecursiveGives*:Lyanna.RecursiveGives*:TokenSwift.TheDemosHeadsGain:TriForce.TheDemosModelsGain:Eagle.TheDemosLayerGains:Lyanna.ResamplingOnTheDemo:*.TextsAreDistributedAsTheTargets:*VariantsAndChunks*/gemma3*:*VariantsAndChunks*/gemma4:*VariantsAndChunks*/llama_default*:*VariantsAndChunks*/gpt_oss:*VariantsAndChunks*/ministral3:*VariantsAndChunks*/deepseek_v3:Models/Families.*/seed_oss:Models/Families.*/deepseek_v2:Models/Families.*/glm4_moe_lite:Models/Families.*/granite:Models/Families.*/glm4:Models/Families.*/olmo*:*LongTexts.*/gemma4*:Models/Families.*/qwen3_next:StatesOfLinearAttention.AreStored*:*.SamplingRulesEmit*:Eagle*.*TheText*:Eagle*.RecursiveGives*:Lyanna.Coupled*:TriForce.Coupled*:TokenSwift.Coupled*:TokenSwift.Passes*:TokenSwift.TheTexts*:TokenSwift.APreempted*:ReplicaResume.RowsByLength*:*DraftLayerResume.OnOtherRanks*:*DraftLayerResume.DamagedKeysAndValuesCostTime*:CostModel.MeasuresAModel*:*ContinueAsTransformersDoes*:*Fp32DraftsAreThoseOfPyTorch/tokenswift_qwen*:*LongTexts.*/qwen35:*LongTexts.*/gemma3*:*VariantsAndChunks*/mistral*:TensorParallel.EveryDegree*:Models/MtpTexts.*/qwen3_5*:Models/MtpTexts.*/glm4_moe"
  [runner_test]="Cli*"
)

failed=()
# The limit is for tests that hang: about three times what the longest shard needs on the slowest machine seen.
limit_seconds=1800
run() {  # NAME COMMAND…
  local code=0
  timeout "$limit_seconds" "${@:2}" >"build-asan/$1.log" 2>&1 || code=$?
  if [ "$code" -eq 0 ]; then return 0; fi
  cat "build-asan/$1.log" >&2
  if [ "$code" -eq 124 ]; then echo "error: sanitizers: $1 did not end within $limit_seconds s" >&2; fi
  return 1
}
run_shards() {  # NAME PROGRAM FILTER
  local shard shards=()
  for ((shard = 0; shard < GTEST_TOTAL_SHARDS; ++shard)); do
    GTEST_SHARD_INDEX=$shard run "$1.$shard" "$2" "--gtest_filter=$3" &
    shards+=($!)
  done
  for shard in "${shards[@]}"; do wait "$shard" || failed+=("$1"); done
}
start=$SECONDS
for name in "${programs[@]}"; do
  run_shards "$name" "build-asan/tests/$name" "-${without[$name]:-}"
done
for name in "${replays[@]}"; do
  run "fuzz.$name" "build-asan/tests/${name}_replay" 3000 tests/fuzz/corpus/"$name"/* || failed+=("fuzz.$name")
done
run_shards gpu-races build-gpu-races/tests/kernels_test "*/cuda*:RacesOfKernels*:-*GpuGrids*:*LargeBoxes*"

if [ "${#failed[@]}" -ne 0 ]; then
  echo "error: sanitizers: ${failed[*]}" >&2
  exit 1
fi
echo "sanitizers: ${programs[*]}, tests/fuzz and gpu-races ran without a finding ($((SECONDS - start)) s)"
