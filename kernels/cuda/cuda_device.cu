// CudaDevice: memory of the GPU, copies between host and GPU, and the start of a pass.
#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/checks.hpp"
#include "kernels/cuda/cuda_state.hpp"

namespace longhaul::kernels::cuda {

void Workspace::grow(const Stream& stream, std::size_t num_bytes) {
    stream.synchronize();
    if (data_ != nullptr) release_memory(data_);
    data_ = nullptr;
    num_bytes_ = 0;
    data_ = allocate_memory(num_bytes);
    num_bytes_ = num_bytes;
}

void check_gpu(const GpuProperties& gpu) {
    if (gpu.major >= 8 && gpu.shared_bytes >= block_shared_bytes) return;
    const auto kilobytes = [](std::size_t bytes) { return std::to_string(bytes >> 10) + " KB"; };
    throw std::invalid_argument("GPU: expected compute capability 8.0 or later with " + kilobytes(block_shared_bytes) +
                                " of shared memory a block (A100, H100 and their kin), got " + gpu.name + " with " +
                                std::to_string(gpu.major) + "." + std::to_string(gpu.minor) + " and " +
                                kilobytes(gpu.shared_bytes) + "; compute on another, or with device = cpu");
}

namespace {
GpuProperties usable_gpu(int gpu) {
    use_gpu(gpu);
    GpuProperties properties = properties_of(gpu);
    check_gpu(properties);
    return properties;
}
}  // namespace

CudaDevice::State::State(Arithmetic arithmetic, int gpu, const GraphPolicy& policy, SumOrder order)
    : arithmetic(arithmetic),
      gpu(gpu),
      properties(usable_gpu(gpu)),
      stream(policy),
      ring(stream),
      links(make_links(stream, gpu, order)),
      kv(stream),
      far(stream),
      chooser(stream, ring) {
    if (arithmetic != Arithmetic::library) return;
    prompts = std::make_unique<PromptMatmul>(stream, make_block_library(stream));
}

const std::int32_t* CudaDevice::State::send_rows(std::span<const std::int32_t> rows) {
    auto* numbers = row_numbers.get<std::int32_t>(stream, static_cast<std::int64_t>(rows.size()));
    ring.send(reinterpret_cast<std::byte*>(numbers), rows.data(), rows.size_bytes());
    return numbers;
}

CudaDevice::CudaDevice(Arithmetic arithmetic, int gpu, const GraphPolicy& policy, SumOrder order)
    : state_(std::make_unique<State>(arithmetic, gpu, policy, order)) {}

CudaDevice::~CudaDevice() {
    try {
        state_->stream.synchronize();
    } catch (const std::exception&) {  // already thrown to the caller that waited for results
    }
}

std::string_view CudaDevice::name() const {
    switch (state_->arithmetic) {
        case Arithmetic::exact:
            return "cuda-exact";
        case Arithmetic::tensor:
            return "cuda";
        case Arithmetic::library:
            return "cuda-cublas";
    }
    throw std::logic_error("no such arithmetic");
}

std::string CudaDevice::place() const {
    const GpuProperties& gpu = state_->properties;
    return "GPU " + std::to_string(state_->gpu) + " of " + std::to_string(num_gpus()) + ", " + gpu.name + " (" +
           gpu.uuid.substr(0, 8) + ")";
}

std::optional<DeviceMemory> CudaDevice::own_memory() const {
    return DeviceMemory{.total_bytes = static_cast<std::int64_t>(state_->properties.memory_bytes),
                        .free_bytes = static_cast<std::int64_t>(free_memory_bytes())};
}

std::int64_t CudaDevice::operation_bytes(const KvLayout& layout, const PassSize& pass) const {
    if (layout.is_state()) return DeltaPart::bytes(layout.delta, pass.rows);
    // Plans, row numbers, checkpoint staging; buffers of links to other GPUs.
    constexpr std::int64_t small_things = std::int64_t{96} << 20, link_buffers = std::int64_t{512} << 20;
    return small_things + (pass.ranks > 1 && state_->links ? link_buffers : 0) + MatmulMemory::bytes(pass) +
           CudaTokenChooser::bytes(pass) + AttentionPart::bytes(layout, pass, state_->properties) +
           RankMemory::bytes(layout, pass.positions);
}

DeviceLinks* CudaDevice::links() {
    return state_->links.get();
}

TokenChooser* CudaDevice::token_chooser() const {
    return &state_->chooser;
}

void CudaDevice::finish() {
    state_->kv.flush_moves();
    state_->stream.synchronize();
}

std::byte* CudaDevice::allocate_staging(std::size_t num_bytes) {
    return allocate_pinned(num_bytes);
}

void CudaDevice::release_staging(std::byte* data, std::size_t /*num_bytes*/) noexcept {
    release_pinned(data);
}

std::byte* CudaDevice::allocate(std::size_t num_bytes) {
    std::byte* const data = allocate_memory(num_bytes);
    fill_zero(state_->stream, data, num_bytes);
    return data;
}

std::byte* CudaDevice::allocate_in_host_memory(std::size_t num_bytes) {
    return state_->far.allocate(num_bytes);
}

void CudaDevice::release(std::byte* data, std::size_t /*num_bytes*/) noexcept {
    try {
        finish();                      // pending moves may use this memory
    } catch (const std::exception&) {  // thrown to the caller that waits for results
    }
    if (!state_->far.release(data)) release_memory(data);
}

void CudaDevice::upload(std::byte* to, const void* from_host, std::size_t num_bytes) {
    state_->ring.send(to, from_host, num_bytes);
}

void CudaDevice::download(void* to_host, const std::byte* from, std::size_t num_bytes) {
    if (num_bytes > 0) copy(state_->stream, to_host, from, num_bytes);
    state_->stream.synchronize();
}

void CudaDevice::copy_within(std::byte* to, const std::byte* from, std::size_t num_bytes) {
    copy(state_->stream, to, from, num_bytes);
}

Buffer CudaDevice::adopt(const std::byte* data, std::size_t num_bytes) {
    Buffer buffer(*this, num_bytes);
    upload(buffer.data(), data, num_bytes);
    return buffer;
}

void CudaDevice::begin_pass(const PassRows& pass) {
    check_pass(pass);
    state_->kv.pass_begins(pass);
    state_->far.pass_begins(pass);
    state_->pass.begin(state_->stream, state_->ring, pass);
}

void CurrentPass::begin(const Stream& stream, PinnedRing& ring, const PassRows& pass) {
    parcel_.clear();
    std::vector<std::size_t> slots;
    for (std::int64_t g = 0; g < pass.num_groups(); ++g) slots.push_back(parcel_.add(pass.group(g).slots));
    std::vector<std::array<std::size_t, 4>> angles;
    const std::size_t num_angles = pass.slots.size() * static_cast<std::size_t>(pass.num_angles);
    for (const PassAngles& one : pass.angles) {
        std::array<std::size_t, 4>& at = angles.emplace_back();
        const float* const all[] = {one.cos, one.sin, one.query_cos, one.query_sin};
        for (std::size_t i = 0; i < at.size(); ++i)
            at[i] = parcel_.add(std::span(all[i], all[i] == nullptr ? 0 : num_angles));
    }
    const std::span<const std::byte> bytes = parcel_.bytes();
    auto* const memory = memory_.get<std::byte>(stream, static_cast<std::int64_t>(bytes.size()));
    ring.send(memory, bytes.data(), bytes.size());

    host_ = pass;
    ++number_;
    device_.clear();
    for (const std::size_t at : slots)
        device_.push_back({.slots = reinterpret_cast<const KvSlot*>(memory + at),
                           .num_slots = static_cast<std::int64_t>(pass.slots.size())});
    angles_.clear();
    for (std::size_t i = 0; i < angles.size(); ++i) {
        const auto floats = [&](std::size_t which) {
            return reinterpret_cast<const float*>(memory + angles[i][which]);
        };
        PassAngles& one = angles_.emplace_back(PassAngles{.cos = floats(0), .sin = floats(1)});
        if (pass.angles[i].query_cos == nullptr) continue;
        one.query_cos = floats(2);
        one.query_sin = floats(3);
    }
}

}  // namespace longhaul::kernels::cuda
