// Records how many output tokens each item in flight has, in a small file that survives SIGKILL. Nothing depends on it
// except the statistic `recomputed_tokens` of the next launch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace longhaul::runner {

/// One file per replica and launch: RUN/status/tokens-R-EPOCH-SAMPLES.bin, one int32 per item number (a sparse file;
/// the numbers depend on `samples`). Best effort: no fsync, and errors are ignored.
class TokenLedger {
  public:
    /// Reads the files of launches before `epoch` from `folder` and creates this launch's file.
    TokenLedger(const std::filesystem::path& folder, std::int64_t replica, std::int64_t epoch, std::int64_t samples);
    ~TokenLedger();
    TokenLedger(const TokenLedger&) = delete;
    TokenLedger& operator=(const TokenLedger&) = delete;

    /// Records that the item has `num_tokens` output tokens now.
    void reached(std::int64_t item_number, std::int64_t num_tokens) noexcept;

    /// Tokens of the item in the newest earlier launch that had it in flight; 0 if none had.
    [[nodiscard]] std::int64_t known(std::int64_t item_number) const;

    /// Deletes all ledgers of a finished run.
    static void remove_all(const std::filesystem::path& folder);

  private:
    std::vector<std::int32_t> earlier_;  // by item number; 0: in no earlier launch
    int file_ = -1;
};

}  // namespace longhaul::runner
