// check_checkpoints: whether all files that a resume needs are in a checkpoint folder, and intact.
#include "engine/checkpoint/folder_check.hpp"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/commit_log.hpp"
#include "engine/checkpoint/hdf5_reader.hpp"
#include "engine/checkpoint/identity.hpp"
#include "engine/checkpoint/kv_file.hpp"
#include "engine/checkpoint/store.hpp"
#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

std::set<std::string> commits_in(const std::filesystem::path& folder, std::int64_t max_epoch) {
    std::set<std::string> names;
    for (const auto& [name, parts] : detail::list_folder(folder)) {
        if (!parts.temporary && parts.rank < 0 && parts.epoch <= max_epoch) names.insert(name);
    }
    return names;
}

class FolderCheck {
  public:
    FolderCheck(std::filesystem::path folder, const std::set<std::string>& done)
        : folder_(std::move(folder)), done_(done) {}

    CheckpointReport run(std::int64_t max_epoch) {
        const std::set<std::string> names = commits_in(folder_, max_epoch);
        for (const std::string& name : names) attempt([&] { read(name); });
        for (const auto& [previous, by] : previous_) {
            if (names.contains(previous)) continue;
            report_.damage.push_back(InputError::format((folder_ / previous).string(), "", "the round before " + by,
                                                        "no such file", hdf5::recompute_hint));
        }
        refuse_lost_states();
        if (identity_) attempt([&] { find_tokens(max_epoch); });
        return std::move(report_);
    }

  private:
    template <typename Step>
    void attempt(const Step& step) {
        try {
            step();
        } catch (const InputError& error) {
            report_.damage.emplace_back(error.what());
        }
    }

    /// Files of commits whose items are all done are about to be removed, or half removed.
    void read(const std::string& name) {
        const Commit commit = read_commit(folder_ / name);
        identity_ = commit.identity;
        bool needed = false;
        for (const ItemDelta& item : commit.items) {
            if (done_.contains(item.key)) continue;
            needed = true;
            report_.items.emplace(item.key, 0);
            if (!item.previous_commit.empty()) previous_.emplace(item.previous_commit, name);
        }
        if (!needed) return;
        ++report_.num_rounds;
        std::error_code error;
        count(std::filesystem::file_size(folder_ / name, error));
        note_states(commit);
        for (const KvFile& file : commit.kv_files) {
            if (file.of() == KvFile::Of::states && !exists(file)) continue;
            attempt([&] { verify(file); });
        }
    }
    /// Notes where each unfinished item's states are. A replica removes those of a round once later rounds have them,
    /// so that alone is no damage.
    void note_states(const Commit& commit) {
        Round round{{commit.epoch, commit.round}, {}, {}};
        for (const ItemDelta& item : commit.items) {
            if (!done_.contains(item.key) && item.kv_end > item.kv_begin) round.items.push_back(item.key);
        }
        bool has_states = false;
        for (const KvFile& file : commit.kv_files) {
            if (file.of() != KvFile::Of::states) continue;
            has_states = true;
            if (!exists(file)) round.absent.push_back(file);
        }
        if (!round.absent.empty()) return rounds_without_states_.push_back(std::move(round));
        for (const std::string& key : round.items) {
            if (has_states) newest_states_[key] = std::max(newest_states_[key], round.order);
        }
    }
    void refuse_lost_states() {
        for (const Round& round : rounds_without_states_) {
            const bool superseded = std::all_of(round.items.begin(), round.items.end(), [&](const std::string& key) {
                return newest_states_[key] > round.order;
            });
            if (superseded) continue;
            for (const KvFile& file : round.absent) attempt([&] { verify(file); });
        }
    }
    [[nodiscard]] bool exists(const KvFile& file) const {
        std::error_code error;
        return std::filesystem::exists(folder_ / file.name, error);
    }
    void verify(const KvFile& file) {
        detail::verify_kv_file((folder_ / file.name).string(), file, {});
        count(file.num_bytes);
    }
    void count(std::uint64_t num_bytes) {
        ++report_.num_files;
        report_.num_bytes += static_cast<std::int64_t>(num_bytes);
    }

    void find_tokens(std::int64_t max_epoch) {
        const CheckpointStore store(folder_, *identity_, max_epoch);
        for (const auto& [key, tokens] : store.items()) {
            if (const auto item = report_.items.find(key); item != report_.items.end()) item->second = tokens;
        }
    }

    std::filesystem::path folder_;
    const std::set<std::string>& done_;
    std::optional<CheckpointIdentity> identity_;
    /// A round whose states are not all there.
    struct Round {
        std::pair<std::int64_t, std::int64_t> order;  ///< epoch and round
        std::vector<std::string> items;               ///< unfinished ones
        std::vector<KvFile> absent;
    };
    std::vector<Round> rounds_without_states_;
    std::map<std::string, std::pair<std::int64_t, std::int64_t>> newest_states_;  ///< by item: Round::order
    std::map<std::string, std::string> previous_;  ///< commits that later ones need, with one of these
    CheckpointReport report_;
};

}  // namespace

CheckpointReport check_checkpoints(const std::filesystem::path& folder, std::int64_t max_epoch,
                                   const std::set<std::string>& done) {
    return FolderCheck(folder, done).run(max_epoch);
}

}  // namespace longhaul::engine
