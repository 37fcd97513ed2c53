#include "engine/checkpoint/hidden_states.hpp"

#include <algorithm>
#include <stdexcept>
#include <system_error>

#include "engine/checkpoint/durable_file.hpp"
#include "engine/checkpoint/hdf5.hpp"
#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

/// A dataset [rows, width] in chunks of up to 512 KB.
void write_rows(hid_t file, const char* name, hdf5::Type type, std::int64_t rows, std::int64_t width,
                const void* values) {
    const std::int64_t row_bytes = width * static_cast<std::int64_t>(hdf5::type_bytes(type));
    const std::int64_t chunk_rows =
        std::clamp<std::int64_t>((512 << 10) / row_bytes, 1, std::max<std::int64_t>(rows, 1));
    const hdf5::Dims dims{static_cast<hsize_t>(rows), static_cast<hsize_t>(width)};
    const hdf5::Handle dataset =
        hdf5::create_dataset(file, name, type, dims, {static_cast<hsize_t>(chunk_rows), dims[1]});
    if (rows > 0) hdf5::write_block(dataset.get(), type, {0, 0}, dims, values);
}

hdf5::Bytes encode(const CheckpointIdentity& identity, const std::string& id, const TextStates& states) {
    const std::int64_t rows = states.num_rows();
    const std::int64_t num_bytes = rows * TextStates::row_bytes(states.hidden_size, states.num_top);
    constexpr unsigned btree_fanout = 32;
    hdf5::MemoryFile file(static_cast<std::size_t>(std::clamp<std::int64_t>(num_bytes / 4, 1 << 14, 1 << 24)),
                          btree_fanout);
    hdf5::write_attribute(file.get(), "format", "longhaul hidden states");
    hdf5::write_attribute(file.get(), "format_version", std::int64_t{1});
    hdf5::write_attribute(file.get(), "model", identity.model);
    hdf5::write_attribute(file.get(), "tokenizer", identity.tokenizer);
    hdf5::write_attribute(file.get(), "id", id);
    hdf5::write_values(file.get(), "tokens", states.tokens);
    write_rows(file.get(), "hidden", hdf5::Type::u16, rows, states.hidden_size, states.hidden.data());
    write_rows(file.get(), "top_ids", hdf5::Type::i32, rows, states.num_top, states.top_ids.data());
    write_rows(file.get(), "top_logprobs", hdf5::Type::f32, rows, states.num_top, states.top_logprobs.data());
    return file.take(0);
}

}  // namespace

void write_text_states(const std::filesystem::path& folder, const std::string& name, const CheckpointIdentity& identity,
                       const std::string& id, const TextStates& states) {
    std::error_code error;  // write_durable reports why it is not there
    std::filesystem::create_directories(folder, error);
    detail::remove_file((folder / name).string());
    try {
        const hdf5::Bytes bytes = encode(identity, id, states);
        write_durable(folder, name, bytes.data.get(), bytes.size);
    } catch (const hdf5::Failure& failure) {
        throw StorageError((folder / name).string() + ": cannot write hidden states: " + failure.what());
    }
}

}  // namespace longhaul::engine
