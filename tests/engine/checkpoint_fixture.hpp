// A fake replica for the checkpoint tests. Its tokens, keys and values are functions of item and position, so restored
// data can be compared bit for bit without keeping a copy.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/durable_file.hpp"
#include "engine/checkpoint/file_name.hpp"
#include "engine/checkpoint/identity.hpp"
#include "engine/checkpoint/kv_file.hpp"
#include "engine/checkpoint/store.hpp"
#include "engine/error.hpp"

namespace longhaul::engine {

/// Disables fsync during its lifetime: most tests are not about power cuts, and fsync takes nearly all of their time.
class FastFiles {
  public:
    FastFiles() { detail::replace_file_calls(&calls_); }
    FastFiles(const FastFiles&) = delete;
    FastFiles& operator=(const FastFiles&) = delete;
    ~FastFiles() { detail::replace_file_calls(nullptr); }

  private:
    struct Calls : detail::FileCalls {
        int fsync(int) override { return 0; }
    };
    Calls calls_;
};

/// A temporary folder, removed after the test.
class TemporaryFolder {
  public:
    TemporaryFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "longhaul-checkpoint-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
        path_ = name;
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    ~TemporaryFolder() { std::filesystem::remove_all(path_); }

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::filesystem::path file(const std::string& name) const { return path_ / name; }

  private:
    std::filesystem::path path_;
};

inline std::vector<char> read_bytes(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::filesystem::path& path, const std::vector<char>& bytes) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(out.good()) << path;
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

inline CheckpointIdentity small_identity() {
    return {.job = "0a1b2c",
            .model = "33cc",
            .tokenizer = "55dd",
            .numerics_version = 1,
            .kv_dtype = "bf16",
            .num_layers = 2,
            .num_kv_heads = 4,
            .head_dim = 8};
}

/// The token that the fake model emits.
inline std::int32_t token_at(const std::string& key, std::int64_t position) {
    return static_cast<std::int32_t>((std::hash<std::string>{}(key) % 1000 + static_cast<std::size_t>(position) * 7) %
                                     32000);
}
inline std::uint16_t kv_at(const std::string& key, std::int64_t layer, std::int64_t kv_head, bool values,
                           std::int64_t position, std::int64_t d) {
    const auto seed = static_cast<std::int64_t>(std::hash<std::string>{}(key) % 4096);
    return static_cast<std::uint16_t>(seed + layer * 10007 + kv_head * 3001 + (values ? 500 : 0) + position * 17 + d);
}

/// Fills [count, head_dim]. int8 holds the low bytes of the numbers that f32 holds, plus 4 more bytes per token.
inline void fill_kv(const CheckpointIdentity& identity, const std::string& key, std::int64_t layer,
                    std::int64_t kv_head, bool values, std::int64_t first, std::int64_t count, std::byte* to) {
    const std::int64_t width = identity.head_dim + (identity.kv_dtype == "int8" ? 4 : 0);
    for (std::int64_t i = 0; i < count * width; ++i) {
        const std::uint16_t number = kv_at(key, layer, kv_head, values, first + i / width, i % width);
        if (identity.kv_dtype == "int8") {
            to[i] = static_cast<std::byte>(number);
        } else if (identity.kv_dtype == "f32") {
            reinterpret_cast<float*>(to)[i] = number;
        } else {
            reinterpret_cast<std::uint16_t*>(to)[i] = number;
        }
    }
}

/// Heads in one rank's file: the first (global index) and their count.
using HeadRange = std::pair<std::int64_t, std::int64_t>;

struct ItemState {
    std::int64_t prompt_tokens = 0;
    std::int64_t num_tokens = 0;  ///< output tokens
    std::int64_t kv_tokens = 0;   ///< tokens whose KV is in checkpoints
    std::string last_commit;
    int rounds = 0;
};

/// Decodes nothing and checkpoints everything: one replica with its active items.
class PretendedReplica {
  public:
    PretendedReplica(std::filesystem::path folder, std::int64_t replica, std::int64_t epoch,
                     std::vector<HeadRange> layout = {{0, 2}, {2, 2}}, CheckpointIdentity identity = small_identity())
        : folder_(std::move(folder)),
          identity_(std::move(identity)),
          layout_(std::move(layout)),
          replica_(replica),
          epoch_(epoch) {}

    void start(const std::string& key, std::int64_t prompt_tokens) { items[key] = {prompt_tokens, 0, 0, "", 0}; }
    /// Continues an item that a store restored.
    void resume(const RestoredItem& item) {
        items[item.key] = {item.prompt_tokens, static_cast<std::int64_t>(item.tokens.size()), item.kv_tokens,
                           item.last_commit, 1};
    }

    [[nodiscard]] std::vector<KvSource> kv_sources(std::int64_t first_head, std::int64_t num_tokens) const {
        std::vector<KvSource> sources;
        for (const auto& [key, item] : items) {
            const std::int64_t kv_end = item.prompt_tokens + item.num_tokens + num_tokens - 1;
            sources.push_back({key, item.kv_tokens, kv_end,
                               [identity = identity_, key = key, first_head](std::size_t, const kernels::KvBox& box,
                                                                             std::byte* to, std::size_t head_stride) {
                                   for (std::int64_t layer = 0; layer < box.num_layers; ++layer) {
                                       for (std::int64_t head = 0; head < box.num_heads; ++head, to += head_stride) {
                                           fill_kv(identity, key, box.first_layer + layer,
                                                   first_head + box.first_head + head, box.values, box.first, box.count,
                                                   to);
                                       }
                                   }
                               }});
        }
        return sources;
    }

    /// The commit of the next round, in which every item gains `num_tokens` tokens.
    [[nodiscard]] Commit commit(std::int64_t num_tokens, std::vector<KvFile> kv_files) const {
        Commit commit{.name = commit_name(replica_, epoch_, round),
                      .identity = identity_,
                      .replica = replica_,
                      .epoch = epoch_,
                      .round = round,
                      .items = {},
                      .kv_files = std::move(kv_files)};
        for (const auto& [key, item] : items) {
            ItemDelta delta{.key = key,
                            .previous_commit = item.last_commit,
                            .prompt_tokens = item.prompt_tokens,
                            .first_token = item.num_tokens,
                            .tokens = {},
                            .kv_begin = item.kv_tokens,
                            .kv_end = item.prompt_tokens + item.num_tokens + num_tokens - 1,
                            .drafter = {"ngram/2",
                                        3,
                                        {item.rounds, 1, 2, item.rounds, 3, 4},
                                        {{"state", {2, 3}, {item.rounds, 1, 2, 3, 4, 5}}, {"scalar", {}, {7}}}},
                            .statistics = "{\"rounds\":" + std::to_string(item.rounds + 1) + "}"};
            if (commit.kv_files.empty()) delta.kv_end = delta.kv_begin;
            for (std::int64_t i = 0; i < num_tokens; ++i) {
                delta.tokens.push_back(token_at(key, item.num_tokens + i));
                for (std::int32_t word = 0; word < 3; ++word) delta.logprobs.push_back(word - delta.tokens.back());
            }
            commit.items.push_back(std::move(delta));
        }
        return commit;
    }

    /// Records that `commit` is durable.
    void committed(const Commit& commit) {
        for (const ItemDelta& delta : commit.items) {
            ItemState& item = items[delta.key];
            item.num_tokens += static_cast<std::int64_t>(delta.tokens.size());
            item.kv_tokens = delta.kv_end;
            item.last_commit = commit.name;
            ++item.rounds;
        }
        ++round;
    }

    /// Writes a whole round on the calling thread and returns its commit.
    Commit write_round(std::int64_t num_tokens = 20, bool store_kv = true) {
        std::vector<KvFile> kv_files;
        for (std::size_t rank = 0; store_kv && rank < layout_.size(); ++rank) {
            const auto [first, count] = layout_[rank];
            kv_files.push_back(write_kv_file(folder_, kv_file_name(replica_, epoch_, round, static_cast<int>(rank)),
                                             identity_, first, count, kv_sources(first, num_tokens)));
        }
        Commit next = commit(num_tokens, std::move(kv_files));
        write_commit(folder_, next);
        committed(next);
        return next;
    }

    std::map<std::string, ItemState> items;
    std::int64_t round = 0;

  private:
    std::filesystem::path folder_;
    CheckpointIdentity identity_;
    std::vector<HeadRange> layout_;
    std::int64_t replica_, epoch_;
};

/// Expects every key and value that `restore` promised to equal the model's, head by head.
inline void expect_kv(CheckpointStore& store, const RestoredItem& item,
                      const CheckpointIdentity& identity = small_identity()) {
    const std::size_t row_bytes = identity.kv_dtype == "int8" ? static_cast<std::size_t>(identity.head_dim) + 4
                                                              : static_cast<std::size_t>(identity.head_dim) *
                                                                    (identity.kv_dtype == "f32" ? 4 : 2);
    std::vector<std::byte> got(static_cast<std::size_t>(item.kv_tokens) * row_bytes);
    std::vector<std::byte> expected(got.size());
    for (std::int64_t layer = 0; layer < identity.num_layers; ++layer) {
        for (std::int64_t head = 0; head < identity.num_kv_heads; ++head) {
            for (const bool values : {false, true}) {
                store.read_kv(item.key, {0, layer, head, values, 0, item.kv_tokens}, got.data());
                fill_kv(identity, item.key, layer, head, values, 0, item.kv_tokens, expected.data());
                ASSERT_EQ(got, expected) << item.key << " layer " << layer << " head " << head << " values " << values;
            }
        }
    }
}

/// Expects the item to be restored with exactly `num_tokens` tokens and `kv_tokens` KV positions, all of them correct.
inline RestoredItem expect_item(CheckpointStore& store, const std::string& key, std::int64_t num_tokens,
                                std::int64_t kv_tokens, const CheckpointIdentity& identity = small_identity()) {
    const auto item = store.restore(key);
    EXPECT_TRUE(item.has_value()) << key;
    if (!item) return {};
    EXPECT_EQ(static_cast<std::int64_t>(item->tokens.size()), num_tokens) << key;
    for (std::size_t i = 0; i < item->tokens.size(); ++i) {
        EXPECT_EQ(item->tokens[i], token_at(key, static_cast<std::int64_t>(i))) << key << " at " << i;
    }
    EXPECT_EQ(item->kv_tokens, kv_tokens) << key;
    expect_kv(store, *item, identity);
    return *item;
}

/// The message of the InputError that `action` throws; "" if it throws none.
inline std::string refusal_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const InputError& error) {
        return error.what();
    }
    return "";
}

inline bool any_contains(const std::vector<std::string>& lines, const std::string& part) {
    for (const std::string& line : lines) {
        if (line.find(part) != std::string::npos) return true;
    }
    return false;
}

}  // namespace longhaul::engine
