// How far items had come when a launch died: the number of output tokens of each item in flight, kept in a small file
// that survives SIGKILL. It decides nothing; it is what `recomputed_tokens` is counted against.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace longhaul::runner {

/// One a replica and launch: RUN/status/tokens-R-EPOCH-SAMPLES.bin, an int32 an item number (a sparse file; the numbers
/// depend on `samples`). Best effort: nothing is fsynced, and no failure is ever reported.
class TokenLedger {
  public:
    /// Reads what launches before `epoch` left in `folder` and starts the file of this one.
    TokenLedger(const std::filesystem::path& folder, std::int64_t replica, std::int64_t epoch, std::int64_t samples);
    ~TokenLedger();
    TokenLedger(const TokenLedger&) = delete;
    TokenLedger& operator=(const TokenLedger&) = delete;

    /// The item has `num_tokens` output tokens now.
    void reached(std::int64_t item_number, std::int64_t num_tokens) noexcept;

    /// How far the newest earlier launch that had the item in flight came; 0 when none had.
    [[nodiscard]] std::int64_t known(std::int64_t item_number) const;

    /// Of a run that has ended: nobody asks any more.
    static void remove_all(const std::filesystem::path& folder);

  private:
    std::vector<std::int32_t> earlier_;  // by item number; 0: none had it
    int file_ = -1;
};

}  // namespace longhaul::runner
