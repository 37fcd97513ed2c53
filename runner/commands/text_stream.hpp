// Generated text as it may be shown while it grows: without the stop strings, and without what may still become one.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longhaul::runner {

class TextStream {
  public:
    explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

    /// Appends text; returns what is certain now. After a stop string nothing is.
    std::string push(std::string_view text);
    /// The rest, when nothing more comes.
    std::string finish();
    [[nodiscard]] bool stopped() const { return stopped_; }

  private:
    std::vector<std::string> stops_;
    std::string held_;  ///< shorter than the longest stop string, between calls
    bool stopped_ = false;
};

}  // namespace longhaul::runner
