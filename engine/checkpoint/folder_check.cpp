// check_checkpoints: whether all files of a checkpoint folder are there and intact.
#include <algorithm>
#include <system_error>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/commit_file.hpp"
#include "engine/checkpoint/kv_file.hpp"
#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

std::vector<std::string> commits_in(const std::filesystem::path& folder, std::int64_t max_epoch) {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        const auto parts = detail::parse_file_name(entry->path().filename().string());
        if (parts && !parts->temporary && parts->rank < 0 && parts->epoch <= max_epoch)
            names.push_back(entry->path().filename().string());
    }
    if (error && error != std::errc::no_such_file_or_directory)
        throw InputError(folder.string(), "", "a readable folder", error.message());
    std::sort(names.begin(), names.end());
    return names;
}

class FolderCheck {
  public:
    explicit FolderCheck(std::filesystem::path folder) : folder_(std::move(folder)) {}

    CheckpointReport run(std::int64_t max_epoch) {
        for (const std::string& name : commits_in(folder_, max_epoch)) read(name);
        if (identity_) follow_chains(max_epoch);
        return std::move(report_);
    }

  private:
    void damaged(const std::string& line) {
        if (std::find(report_.damage.begin(), report_.damage.end(), line) == report_.damage.end())
            report_.damage.push_back(line);
    }
    void count(std::uint64_t num_bytes) {
        ++report_.num_files;
        report_.num_bytes += static_cast<std::int64_t>(num_bytes);
    }

    void read(const std::string& name) {
        try {
            const Commit commit = read_commit(folder_ / name);
            identity_ = commit.identity;
            ++report_.num_rounds;
            count(std::filesystem::file_size(folder_ / name));
            for (const ItemDelta& item : commit.items) report_.items.emplace(item.key, 0);
            for (const KvFile& file : commit.kv_files) {
                count(file.num_bytes);
                if (file.of_drafter()) verify(file);  // the others: with the items that they hold
            }
        } catch (const detail::NewerFormat&) {
            throw;
        } catch (const InputError& error) {
            damaged(error.what());
        }
    }

    void verify(const KvFile& file) {
        try {
            detail::verify_kv_file((folder_ / file.name).string(), file, {});
        } catch (const InputError& error) {
            damaged(error.what());
        }
    }

    /// Rounds that are missing show in the chains of the items that need them.
    void follow_chains(std::int64_t max_epoch) {
        CheckpointStore store(folder_, *identity_, max_epoch);
        for (auto& [key, tokens] : report_.items) {
            const auto restored = store.restore(key);
            if (!restored) continue;
            tokens = std::ssize(restored->tokens);
            for (const std::string& line : restored->damage) damaged(line);
        }
        for (const std::string& line : store.damage()) damaged(line);
    }

    std::filesystem::path folder_;
    std::optional<CheckpointIdentity> identity_;
    CheckpointReport report_;
};

}  // namespace

CheckpointReport check_checkpoints(const std::filesystem::path& folder, std::int64_t max_epoch) {
    return FolderCheck(folder).run(max_epoch);
}

}  // namespace longhaul::engine
