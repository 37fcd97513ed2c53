// What a CudaDevice keeps between calls: a member or two for each of the files that implement it.
#pragma once

#include "kernels/cuda/attention_part.hpp"
#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/cuda_token_chooser.hpp"
#include "kernels/cuda/host_pages.hpp"
#include "kernels/cuda/kv_part.hpp"
#include "kernels/cuda/links.hpp"
#include "kernels/cuda/matmul_memory.hpp"
#include "kernels/cuda/pack_buffers.hpp"
#include "kernels/cuda/pass.hpp"
#include "kernels/cuda/prompt_matmul.hpp"
#include "kernels/cuda/staging.hpp"

namespace longhaul::kernels::cuda {

struct CudaDevice::State {
    State(Arithmetic arithmetic, int gpu, const GraphPolicy& policy);

    /// Row numbers on the device until the next call.
    const std::int32_t* send_rows(std::span<const std::int32_t> rows);

    Arithmetic arithmetic;
    int gpu;
    GpuProperties properties;
    Stream stream;  ///< of all operations, but copies that may not hold it up (kv.cu)
    PinnedRing ring;
    std::unique_ptr<DeviceLinks> links;
    CurrentPass pass;
    KvPart kv;
    HostPages far;
    AttentionPart attention;
    Workspace row_numbers;
    PackBuffers pack_buffers;
    MatmulMemory products;
    std::unique_ptr<PromptMatmul> prompts;  ///< nullptr: as all other rows
    CudaTokenChooser chooser;
};

}  // namespace longhaul::kernels::cuda
