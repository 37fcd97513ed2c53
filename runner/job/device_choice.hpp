// Choice of the device: the keys `device` and `kernels`, and the devices of this machine. Used by settings.cpp and by
// every command that computes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/gpu_devices.hpp"
#include "runner/job/job.hpp"

namespace longhaul::runner {

/// GPUs that this program can use on this machine.
struct Gpus {
    bool built = false;  ///< the program has GPU kernels
    int visible = 0;
    bool nccl = false;  ///< it can connect them by NCCL
};
Gpus gpus_here();

/// Values of `kernels` for a device ("cpu" or "cuda"), "auto" included.
const std::vector<std::string>& kernels_of_device(const std::string& device);

/// GPU for rank `node_rank` of the node: node_rank modulo the number of visible GPUs.
int gpu_of(int node_rank);

/// Resolves the keys as given ("auto" or "" if not given) to "cpu" or "cuda". A given device is kept. Otherwise a value
/// of `kernels` that belongs to one device selects it. Otherwise "cuda" if a GPU is visible.
std::string resolved_device(const std::string& device, const std::string& kernels, const Gpus& gpus);

/// How the device kind of kernels = amx-bf16 begins.
inline constexpr std::string_view kind_in_blocks = "cpu amx-bf16";

/// Device kind: identifies the arithmetic that decides the bits of results, so it is part of the job's identity. "cpu"
/// for CPUs and for kernels = cuda-exact, which gives the same bits. "cpu amx-bf16, tile numerics 1" with kernels =
/// amx-bf16 (kernels::tile_numerics_version). Otherwise "cuda sm_90, tensor numerics 2":
/// the GPU's generation and kernels::tensor_numerics_version. With kernels = cuda-cublas also what the bits of the
/// library depend on: "..., cuBLASLt 13.1.0 on 132 multiprocessors, tensor-parallel 2", and with all-reduce = nccl the
/// number of ranks, with any kernels: "..., sums by NCCL, tensor-parallel 2". `generation` and `library` are those of
/// kernels::gpu_generation and kernels::gpu_library.
std::string device_kind(const Settings& settings, const std::string& generation, const std::string& library);
/// The device kind with GPU number `gpu` of the node. Throws UsageError if the library is needed and not available.
std::string device_kind(const Settings& settings, int gpu = 0);

/// What `check` says about kernels that would be faster on this processor but give another text; "" if there are none.
std::string faster_kernels(const Settings& settings, bool has_bf16_tiles);

/// Throws UsageError if this program or this machine cannot provide the device of `settings`.
void check_device(const Settings& settings, const Gpus& gpus);

/// Makes the device of `settings`: a CPU device with `threads` threads, or the GPU of the rank `node_rank` of the node.
/// Throws UsageError if it is not available.
std::unique_ptr<kernels::Device> make_device(const Settings& settings, int threads, int node_rank = 0);

}  // namespace longhaul::runner
