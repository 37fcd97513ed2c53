// Cuts a growing text at stop strings. Holds back text that may still turn into a stop string. Used by `longhaul
// generate`.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longhaul::runner {

class TextStream {
  public:
    explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

    /// Appends text; returns what can be shown now. Returns nothing after a stop string. `may_stop`: false if a stop
    /// string that the text ends with is text like any other.
    std::string push(std::string_view text, bool may_stop = true);
    /// Returns the held text at the end of the stream.
    std::string finish();
    [[nodiscard]] bool stopped() const { return stopped_; }

  private:
    std::vector<std::string> stops_;
    std::string held_;  ///< between calls shorter than the longest stop string
    bool stopped_ = false;
};

}  // namespace longhaul::runner
