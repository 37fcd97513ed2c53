#include "engine/model/tensor_source.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <thread>

#include "engine/model/adapter.hpp"

namespace longhaul::engine {
namespace {

using kernels::DType;
using kernels::WeightRows;

DType to_dtype(TensorType type) {
    return type == TensorType::bf16 ? DType::bf16 : type == TensorType::f16 ? DType::f16 : DType::f32;
}

}  // namespace

/// Notified of packed bytes of one tensor: records NaN and infinity, drops pages, advances the prefetch.
class FolderSource::Listener final : public kernels::PackListener {
  public:
    Listener(std::string tensor, ReadAhead* ahead) : tensor_(std::move(tensor)), ahead_(ahead) {}
    void packed(const std::byte* begin, std::size_t num_bytes, bool finite) override {
        if (!finite) bad_ = true;
        SafetensorsFolder::drop_pages(begin, static_cast<std::int64_t>(num_bytes));
        if (ahead_ != nullptr) ahead_->used(num_bytes);
    }
    [[nodiscard]] const std::string& tensor() const { return tensor_; }
    [[nodiscard]] bool bad() const { return bad_; }

  private:
    std::string tensor_;
    ReadAhead* ahead_;
    std::atomic<bool> bad_{false};
};

/// The rows of `part` in the file.
static std::span<const std::byte> bytes_of(const TensorPart& part, const MatrixView& view) {
    return view.bytes(part.first_present(), part.end_present());
}

static MatrixView view_of(const SafetensorsFolder& folder, const TensorPart& part) {
    return require_matrix(folder, part.tensor, part.rows, part.columns, part.stack);
}

FolderSource::FolderSource(const SafetensorsFolder& folder, const Adapter* adapter)
    : folder_(folder), adapter_(adapter) {}
FolderSource::~FolderSource() = default;

void FolderSource::announce(const std::vector<WeightPlan>& plans) {
    std::vector<std::span<const std::byte>> ranges;
    for (const WeightPlan& plan : plans) {
        if (plan.matrix == nullptr) continue;  // vectors are small
        for (const TensorPart& part : plan.parts) {
            ranges.push_back(bytes_of(part, view_of(folder_, part)));
        }
    }
    ahead_ = std::make_unique<ReadAhead>(std::move(ranges));
}

WeightRows FolderSource::matrix(const TensorPart& part) {
    if (part.transposed) return transposed(part);
    const MatrixView view = view_of(folder_, part);
    if (view.form != StoredForm::floats || is_merged(part)) return converted(part, view);
    return {.data = bytes_of(part, view).data(),
            .dtype = to_dtype(view.elements->dtype),
            .num_rows = part.present_rows(),
            .row_stride = part.columns * part.row_step,
            .first_column = part.first_column,
            .num_columns = part.num_columns,
            .listener = &listeners_.emplace_back(part.tensor, ahead_.get())};
}

bool FolderSource::is_merged(const TensorPart& part) const {
    return adapter_ != nullptr && part.stack.count == 0 && adapter_->changes(part.tensor);
}

WeightRows FolderSource::converted(const TensorPart& part, const MatrixView& view) {
    const std::int64_t num_rows = part.present_rows();
    const auto size = static_cast<std::size_t>(num_rows * part.num_columns);
    float* const rows = converted_memory(size);
    bool finite = read_as_f32(view,
                              {.first_row = part.first_row,
                               .num_rows = num_rows,
                               .first_column = part.first_column,
                               .num_columns = part.num_columns,
                               .row_step = part.row_step},
                              rows);
    if (is_merged(part)) finite = adapter_->add(part, rows) && finite;
    const std::span<const std::byte> read = bytes_of(part, view);
    listeners_.emplace_back(view.tensor, ahead_.get()).packed(read.data(), read.size(), finite);
    return {.data = reinterpret_cast<const std::byte*>(rows),
            .dtype = DType::f32,
            .num_rows = num_rows,
            .row_stride = part.num_columns,
            .first_column = 0,
            .num_columns = part.num_columns};
}

/// Valid until `done`.
float* FolderSource::converted_memory(std::size_t size) {
    if (num_converted_ == converted_.size()) converted_.emplace_back();
    Converted& memory = converted_[num_converted_++];
    if (memory.size < size) memory = {std::make_unique_for_overwrite<float[]>(size), size};
    return memory.values.get();
}

WeightRows FolderSource::transposed(const TensorPart& part) {
    const auto* from = reinterpret_cast<const float*>(converted(part, view_of(folder_, part)).data);
    float* const to = converted_memory(static_cast<std::size_t>(part.num_rows * part.num_columns));
    for (std::int64_t row = 0; row < part.num_rows; ++row) {
        for (std::int64_t column = 0; column < part.num_columns; ++column)
            to[column * part.num_rows + row] = from[row * part.num_columns + column];
    }
    return {.data = reinterpret_cast<const std::byte*>(to),
            .dtype = DType::f32,
            .num_rows = part.num_columns,
            .row_stride = part.num_rows,
            .first_column = 0,
            .num_columns = part.num_rows};
}

std::vector<float> FolderSource::vector(const TensorPart& part) {
    const TensorView& view = folder_.require(part.tensor, part.vector_shape());
    const std::int64_t first = part.stack.index * part.rows + part.first_row;
    std::vector<float> values(static_cast<std::size_t>(part.present_rows()));
    bool finite = true;
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = element_of(view, first + static_cast<std::int64_t>(i) * part.row_step);
        finite = finite && std::isfinite(values[i]);
    }
    const std::int64_t element =
        view.num_bytes / std::max<std::int64_t>(part.rows * std::max<std::int64_t>(part.stack.count, 1), 1);
    const auto read = static_cast<std::size_t>((part.end_present() - part.first_present()) * element);
    listeners_.emplace_back(part.tensor, nullptr).packed(view.data + first * element, read, finite);
    return values;
}

std::vector<std::string> FolderSource::bad_tensors() const {
    std::vector<std::string> names;
    for (const Listener& listener : listeners_) {
        const bool is_known = std::find(names.begin(), names.end(), listener.tensor()) != names.end();
        if (listener.bad() && !is_known) names.push_back(listener.tensor());
    }
    return names;
}

/// Uniform bf16 numbers in [-scale, scale), by threads, because a model of 8 billion parameters has a billion of them
/// outside of its layers. Each is a hash of its index, so that it does not depend on the number of threads.
static void fill_uniform(std::span<std::uint16_t> values, float scale, std::uint32_t start) {
    const auto fill = [values, unit = scale * 0x1p-31F, start](std::size_t first, std::size_t end) {
        for (std::size_t i = first; i < end; ++i) {
            std::uint32_t hash = start + static_cast<std::uint32_t>(i) * 0x9e3779b1U;
            hash = (hash ^ hash >> 15) * 0x85ebca77U;
            const auto uniform = static_cast<float>(static_cast<std::int32_t>(hash ^ hash >> 13));
            values[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(uniform * unit) >> 16);
        }
    };
    constexpr std::size_t part = std::size_t{1} << 20;
    const std::size_t wanted = std::min<std::size_t>(std::thread::hardware_concurrency(), values.size() / part);
    const std::size_t threads = std::clamp<std::size_t>(wanted, 1, 16), each = (values.size() + threads - 1) / threads;
    std::vector<std::jthread> workers;
    for (std::size_t first = each; first < values.size(); first += each)
        workers.emplace_back(fill, first, std::min(first + each, values.size()));
    fill(0, std::min(each, values.size()));
}

WeightRows RandomSource::matrix(const TensorPart& part) {
    const std::uint64_t start = (seed_ + 1) * 0x9e3779b97f4a7c15ULL ^ std::hash<std::string>{}(part.tensor) ^
                                static_cast<std::uint64_t>(part.stack.index) << 32;
    const auto count = static_cast<std::size_t>(part.rows * part.columns);
    held_.push_back(std::make_unique_for_overwrite<std::uint16_t[]>(count));
    const float scale = 1.7F / std::sqrt(static_cast<float>(part.columns));
    fill_uniform({held_.back().get(), count}, scale, static_cast<std::uint32_t>(start ^ start >> 32));
    if (part.transposed)  // random all the same
        return {.data = reinterpret_cast<const std::byte*>(held_.back().get()),
                .dtype = DType::bf16,
                .num_rows = part.num_columns,
                .row_stride = part.num_rows,
                .first_column = 0,
                .num_columns = part.num_rows};
    return {.data = reinterpret_cast<const std::byte*>(held_.back().get() + part.first_present() * part.columns),
            .dtype = DType::bf16,
            .num_rows = part.present_rows(),
            .row_stride = part.columns * part.row_step,
            .first_column = part.first_column,
            .num_columns = part.num_columns};
}

std::vector<float> RandomSource::vector(const TensorPart& part) {
    const bool is_gain = part.tensor.ends_with(".weight") || part.tensor.find("scal") != std::string::npos;
    return std::vector<float>(static_cast<std::size_t>(part.present_rows()), is_gain ? 1.0F : 0.0F);
}

}  // namespace longhaul::engine
