// A share of a job's items for a launch of its own: of K shards, shard I has the inputs whose number in the data is I
// modulo K. What an item's bytes are does not depend on it.
#pragma once

#include <cstdint>
#include <string>

namespace longhaul::runner {

struct Shard {
    std::int64_t index = 0;
    std::int64_t count = 0;  ///< 0: the job is not divided

    bool operator==(const Shard&) const = default;

    [[nodiscard]] bool is_part() const { return count > 0; }
    [[nodiscard]] bool has(std::int64_t input) const { return count == 0 || input % count == index; }
    /// How many of the first `inputs` it has.
    [[nodiscard]] std::int64_t share_of(std::int64_t inputs) const {
        return count == 0 ? inputs : (inputs - index + count - 1) / count;
    }
    /// "2/8"; "off" for a job that is not divided.
    [[nodiscard]] std::string name() const {
        return count == 0 ? "off" : std::to_string(index) + "/" + std::to_string(count);
    }
};

inline constexpr std::int64_t max_shards = 10'000;

}  // namespace longhaul::runner
