#include "engine/model/weight_loading.hpp"

#include <cstring>

namespace longhaul::engine {
namespace {

using kernels::Buffer;
using kernels::Matrix;
using kernels::WeightRows;

Matrix pack(const WeightPlan& plan, kernels::Device& device, TensorSource& source) {
    std::vector<WeightRows> parts;
    for (const TensorPart& part : plan.parts) {
        parts.push_back(source.matrix(part));
        if (part.transposed) continue;
        WeightRows padding = parts.back();
        padding.data = nullptr;
        padding.num_rows = part.num_rows - part.present_rows();
        if (padding.num_rows > 0) parts.push_back(padding);
    }
    if (plan.gated) return device.pack_gated(plan.dtype, parts, plan.num_slices, plan.slice_length);
    return device.pack(plan.dtype, parts, plan.num_slices, plan.slice_length);
}

/// The bytes of `buffer` in host memory; copied to `copy` if the device has its own memory.
std::span<const std::byte> on_host(kernels::Device& device, const Buffer& buffer, std::vector<std::byte>& copy) {
    if (!device.own_memory()) return {buffer.data(), buffer.num_bytes()};
    copy.resize(buffer.num_bytes());
    device.download(copy.data(), buffer.data(), copy.size());
    return copy;
}

std::vector<float> stack(const WeightPlan& plan, TensorSource& source) {
    std::vector<float> values;
    for (const TensorPart& part : plan.parts) {
        std::vector<float> some = source.vector(part);
        for (float& value : some) value = (value + plan.offset) * plan.scale;
        some.resize(part.num_rows, 0.0F);
        values.insert(values.end(), some.begin(), some.end());
    }
    return values;
}

}  // namespace

void place_experts(const WeightPlan& plan, kernels::Device& device) {
    if (plan.completes == nullptr || !device.own_memory()) return;
    constexpr std::size_t alignment = 256;
    LayerWeights& layer = *plan.completes;
    std::vector<Matrix*> matrices;
    std::size_t num_bytes = 0;
    for (Expert& expert : layer.experts) {
        for (Matrix* matrix : {&expert.gate_up, &expert.down}) {
            matrices.push_back(matrix);
            num_bytes += (matrix->data.num_bytes() + alignment - 1) / alignment * alignment;
        }
    }
    layer.expert_memory = Buffer(device, num_bytes);
    std::byte* to = layer.expert_memory.data();
    for (Matrix* matrix : matrices) {
        const std::size_t size = matrix->data.num_bytes();
        device.copy_within(to, matrix->data.data(), size);
        matrix->data = Buffer::borrowed(to, size);
        to += (size + alignment - 1) / alignment * alignment;
    }
}

void load_weights(const std::vector<WeightPlan>& plans, kernels::Device& device, TensorSource& source) {
    source.announce(plans);
    for (const WeightPlan& plan : plans) {
        if (plan.matrix != nullptr) {
            *plan.matrix = pack(plan, device, source);
        } else {
            const std::vector<float> values = stack(plan, source);
            *plan.vector = Buffer(device, values.size() * sizeof(float));
            device.upload(plan.vector->data(), values.data(), values.size() * sizeof(float));
        }
        source.done();
        place_experts(plan, device);
    }
}

void write_weights(const std::vector<WeightPlan>& plans, kernels::Device& device, TensorSource& source,
                   PackedFileWriter& file) {
    source.announce(plans);
    std::vector<std::byte> copy;
    for (const WeightPlan& plan : plans) {
        if (plan.matrix != nullptr) {
            const Matrix matrix = pack(plan, device, source);
            file.add(plan.name, on_host(device, matrix.data, copy));
        } else {
            const std::vector<float> values = stack(plan, source);
            file.add(plan.name, std::as_bytes(std::span(values)));
        }
        source.done();
    }
}

void adopt_weights(const std::vector<WeightPlan>& plans, kernels::Device& device, const PackedFile& file) {
    for (const WeightPlan& plan : plans) {
        const auto block = file.block(plan.name, plan.packed_bytes(device));
        Buffer data = device.adopt(block.data(), block.size());
        if (plan.matrix != nullptr) {
            *plan.matrix = plan.geometry();
            plan.matrix->data = std::move(data);
        } else {
            *plan.vector = std::move(data);
        }
        place_experts(plan, device);
    }
}

}  // namespace longhaul::engine
