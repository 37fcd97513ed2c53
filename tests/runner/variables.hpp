// Environment variables for a test: unset at its start, restored at its end.
#pragma once

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace longhaul::runner {

class Variables {
  public:
    explicit Variables(const std::vector<std::string>& names) {
        for (const std::string& name : names) {
            const char* value = std::getenv(name.c_str());
            before_[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
            ::unsetenv(name.c_str());
        }
    }
    ~Variables() {
        for (const auto& [name, value] : before_) {
            if (value) ::setenv(name.c_str(), value->c_str(), 1);
            if (!value) ::unsetenv(name.c_str());
        }
    }
    Variables(const Variables&) = delete;
    Variables& operator=(const Variables&) = delete;

  private:
    std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace longhaul::runner
