#include "runner/commands/text_stream.hpp"

#include <algorithm>

namespace longhaul::runner {
namespace {

/// Length of the longest suffix of `text` that is a proper prefix of `stop`.
std::size_t partial_match(std::string_view text, std::string_view stop) {
    for (std::size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
        if (text.ends_with(stop.substr(0, length))) return length;
    }
    return 0;
}

}  // namespace

std::string TextStream::push(std::string_view text, bool may_stop) {
    if (stopped_) return "";
    held_ += text;
    std::size_t certain = held_.size();
    for (const std::string& stop : stops_) {
        const std::size_t found = may_stop ? held_.find(stop) : std::string::npos;
        stopped_ = stopped_ || found != std::string::npos;
        certain = std::min(certain, found != std::string::npos ? found : held_.size() - partial_match(held_, stop));
    }
    std::string shown = held_.substr(0, certain);
    held_.erase(0, stopped_ ? std::string::npos : certain);
    return shown;
}

std::string TextStream::finish() {
    return std::exchange(held_, "");
}

}  // namespace longhaul::runner
