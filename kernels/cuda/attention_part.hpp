// State of CudaDevice::attention between calls: the plan of the pass on the device, and workspaces for partial results.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "kernels/cuda/attention_plan.hpp"
#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/host_pages.hpp"
#include "kernels/cuda/pass.hpp"
#include "kernels/cuda/staging.hpp"

namespace longhaul::kernels::cuda {

struct AttentionArgs;

/// One call of Device::attention; pointers to device memory.
struct AttentionCall {
    bool tensor_cores;
    const KvLayout& layout;
    std::int64_t layer;
    const std::byte* q;
    std::int64_t q_heads;
    const float* sinks;
    DType act;
    std::byte* out;
    std::int64_t out_stride;
};

/// Partial results take 4 * (head_dim + 2) bytes per query head, row and chunk of 512 positions (on tensor cores: 128
/// positions, or 1024 where there is enough to do), at most 512 MB at a time unless a single row needs more. The plan
/// takes 80 bytes per row and 64 bytes per unit, plus its pages and paths.
class AttentionPart {
  public:
    /// Upper bound in bytes for passes of this size, without the plans.
    static std::int64_t bytes(const KvLayout& layout, const PassSize& pass, const GpuProperties& gpu);
    void run(const Stream& stream, PinnedRing& ring, const CurrentPass& pass, HostPages& far, const PlanShape& shape,
             const AttentionCall& call);

  private:
    struct DevicePlan {
        const PlanUnit* units;
        const PlanRow* rows;
        const std::int32_t* paths;
        const PageEntry* pages;
    };
    struct GroupPlan;
    const GroupPlan& prepare(const Stream& stream, PinnedRing& ring, const CurrentPass& pass, const HostPages& far,
                             const PlanShape& shape, std::int64_t group);
    static void run_round(const Stream& stream, const AttentionCall& call, const GroupPlan& of, AttentionArgs args,
                          const PlanRound& round);
    static void merge(const Stream& stream, const AttentionCall& call, const GroupPlan& of, const AttentionArgs& args,
                      const PlanRound& round);

    /// The plan of one group of layers.
    struct GroupPlan {
        std::uint64_t planned = 0;  ///< number of the planned pass
        std::optional<PlanShape> shape;
        Plan plan;
        DevicePlan device{};
        Workspace memory;
    };
    Parcel parcel_;
    std::deque<GroupPlan> groups_;
    Workspace outputs_;
    Workspace softmax_;
};

}  // namespace longhaul::kernels::cuda
