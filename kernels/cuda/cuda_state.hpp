// State of a CudaDevice between calls: one or two members for each file that implements it.
#pragma once

#include "kernels/cuda/attention_part.hpp"
#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/cuda_token_chooser.hpp"
#include "kernels/cuda/delta_part.hpp"
#include "kernels/cuda/host_pages.hpp"
#include "kernels/cuda/kv_part.hpp"
#include "kernels/cuda/links.hpp"
#include "kernels/cuda/matmul_memory.hpp"
#include "kernels/cuda/pack_buffers.hpp"
#include "kernels/cuda/pass.hpp"
#include "kernels/cuda/prompt_matmul.hpp"
#include "kernels/cuda/rank_memory.hpp"
#include "kernels/cuda/staging.hpp"

namespace longhaul::kernels::cuda {

struct CudaDevice::State {
    State(Arithmetic arithmetic, int gpu, const GraphPolicy& policy, SumOrder order);

    /// Copies row numbers to the device; valid until the next call.
    const std::int32_t* send_rows(std::span<const std::int32_t> rows);

    Arithmetic arithmetic;
    int gpu;
    GpuProperties properties;
    Stream stream;  ///< runs all operations except transfers that must not delay it (kv.cu)
    PinnedRing ring;
    std::unique_ptr<DeviceLinks> links;
    CurrentPass pass;
    KvPart kv;
    HostPages far;
    AttentionPart attention;
    DeltaPart delta;
    RankMemory ranks;
    Workspace row_numbers;
    PackBuffers pack_buffers;
    MatmulMemory products;
    std::unique_ptr<PromptMatmul> prompts;  ///< nullptr: prompt rows are computed like all others
    CudaTokenChooser chooser;
};

}  // namespace longhaul::kernels::cuda
