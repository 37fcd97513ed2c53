// A shard of a job, processed by its own launch. Shard I of K has the inputs whose index in the data is I modulo K. The
// bytes of an item's result do not depend on the sharding.
#pragma once

#include <cstdint>
#include <string>

namespace longhaul::runner {

struct Shard {
    std::int64_t index = 0;
    std::int64_t count = 0;  ///< 0: the job is not sharded

    bool operator==(const Shard&) const = default;

    [[nodiscard]] bool is_part() const { return count > 0; }
    [[nodiscard]] bool has(std::int64_t input) const { return count == 0 || input % count == index; }
    /// Number of inputs of this shard among the first `inputs`.
    [[nodiscard]] std::int64_t share_of(std::int64_t inputs) const {
        return count == 0 ? inputs : (inputs - index + count - 1) / count;
    }
    /// "2/8"; "off" if the job is not sharded.
    [[nodiscard]] std::string name() const {
        return count == 0 ? "off" : std::to_string(index) + "/" + std::to_string(count);
    }
};

inline constexpr std::int64_t max_shards = 10'000;

}  // namespace longhaul::runner
