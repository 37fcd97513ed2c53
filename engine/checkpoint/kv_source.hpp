// Keys and values to write into a KV file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "kernels/device.hpp"

namespace longhaul::engine {

/// Copies positions of one item from the device to the host (Device::kv_export_box). Layers are indexed within their
/// group, heads within this rank.
using KvExport =
    std::function<void(std::size_t group, const kernels::KvBox& box, std::byte* to, std::size_t head_stride)>;

struct KvSource {
    std::string key;  ///< of the item
    std::int64_t kv_begin = 0, kv_end = 0;
    KvExport read;  ///< called from the writer thread; keeps the pages it reads alive
};

}  // namespace longhaul::engine
