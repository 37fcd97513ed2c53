// What computes: the keys `device` and `kernels`, and what this machine has. Elsewhere nobody asks which device it is.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/gpu_devices.hpp"
#include "runner/job/job.hpp"

namespace longhaul::runner {

/// GPUs that this program can use here.
struct Gpus {
    bool built = false;  ///< it has kernels for them
    int visible = 0;
};
Gpus gpus_here();

/// Values of `kernels` that belong to a device, "auto" among them.
const std::vector<std::string>& kernels_of_device(const std::string& device);

/// GPU of the node's rank number `node_rank`: they take turns.
int gpu_of(int node_rank);

/// "cpu" or "cuda", from the keys as they were given ("auto" or "" where they were not): a GPU where there is one and
/// nothing speaks against it.
std::string resolved_device(const std::string& device, const std::string& kernels, const Gpus& gpus);

/// What decides the bits of a job's results, and so belongs to its identity: "cuda sm_90", since another generation of
/// GPUs has other bits; with what its library's bits follow from where prompts are computed by one ("cuda sm_90,
/// cuBLASLt 13.1.0 on 132 multiprocessors, tensor-parallel 2"); or "cpu" also of a GPU that computes as the CPU does.
std::string device_kind(const Settings& settings, const std::string& generation, const std::string& library);
/// The same with this GPU of the node. Throws UsageError where the library is not there.
std::string device_kind(const Settings& settings, int gpu = 0);

/// Throws UsageError where this program, or this machine, does not have the device of `settings`.
void check_device(const Settings& settings, const Gpus& gpus);

/// The device of `settings` with `threads` threads; of several GPUs that of the node's rank number `node_rank`. Throws
/// UsageError where it is not to be had here.
std::unique_ptr<kernels::Device> make_device(const Settings& settings, int threads, int node_rank = 0);

}  // namespace longhaul::runner
