#include "runner/dataset.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <utility>

#include "engine/error.hpp"
#include "runner/dataset_source.hpp"

namespace longhaul::runner {

using Ids = std::vector<std::int32_t>;

namespace {

/// The first `count` ids of the whole text's encoding, or all of a shorter text's.
///
/// Only the beginning is tokenised, since a prompt is often a thousandth of a book. Where a text is cut changes the ids
/// near the cut (how near depends on the tokenizer's pattern and merges), so a beginning is believed when it gives many
/// more ids than asked for and when a quarter more of text gives the same first ones.
Ids first_ids(const ItemSource& source, std::int64_t index, std::int64_t count, const engine::Tokenizer& tokenizer,
              std::string& error) {
    constexpr std::int64_t margin_tokens = 256;
    constexpr std::int64_t margin_bytes = 4096;
    const auto wanted = static_cast<std::size_t>(count);
    std::int64_t bytes = count * 6 + margin_bytes;
    Ids shorter;
    for (;;) {
        const ItemText item = source.read(index, bytes);
        error = item.error;
        if (!error.empty()) return {};
        Ids ids = tokenizer.encode(item.text);
        const bool enough = ids.size() >= wanted + margin_tokens;
        const bool agrees =
            shorter.size() >= wanted &&
            std::equal(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(std::min(wanted, ids.size())),
                       shorter.begin(), shorter.begin() + static_cast<std::ptrdiff_t>(wanted));
        if (item.whole || (enough && agrees)) {
            ids.resize(std::min(ids.size(), wanted));
            return ids;
        }
        shorter = enough ? std::move(ids) : Ids();
        bytes += enough ? bytes / 4 + margin_bytes : bytes;
    }
}

class SourceDataSet : public DataSet {
  public:
    SourceDataSet(std::unique_ptr<ItemSource> source, const Settings& settings)
        : source_(std::move(source)), settings_(settings) {
        if (settings.task == "pg19") most_tokens_ = settings.prompt_tokens;
    }

    std::int64_t size() const override { return source_->size(); }
    std::string id(std::int64_t index) const override { return source_->id(index); }

    std::int64_t prompt_bytes(std::int64_t index) const override {
        constexpr std::int64_t bytes_a_token = 5;  // rather more than less: it only orders the items
        const std::int64_t all = source_->text_bytes(index);
        return most_tokens_ > 0 ? std::min(all, most_tokens_ * bytes_a_token) : all;
    }

    Prompt prompt(std::int64_t index, const engine::Tokenizer& tokenizer, std::int64_t max_positions) const override {
        Prompt prompt{.id = source_->id(index), .tokens = {}, .error = {}};
        try {
            fill(prompt, index, tokenizer, max_positions);
        } catch (const Error& error) {
            prompt.error = error.what();
        } catch (const std::invalid_argument& error) {
            prompt.error =
                InputError::format(source_->label(index), "", "text that can be tokenised", error.what(), "");
        }
        if (!prompt.error.empty()) prompt.tokens.clear();
        return prompt;
    }

    std::string fingerprint() const override {
        std::array<char, 16> digits{};
        const auto [end, error] =
            std::to_chars(digits.data(), digits.data() + digits.size(), source_->fingerprint(), 16);
        const std::string text(digits.data(), error == std::errc() ? end : digits.data());
        return std::string(digits.size() - text.size(), '0') + text;
    }

  private:
    void fill(Prompt& prompt, std::int64_t index, const engine::Tokenizer& tokenizer,
              std::int64_t max_positions) const {
        Ids ids;
        if (most_tokens_ > 0) {
            // The begin-of-text token is one of the prompt's tokens: `prompt-tokens` is what the engine sees.
            const std::int64_t wanted = most_tokens_ - (puts_bos(settings_, tokenizer) ? 1 : 0);
            ids = first_ids(*source_, index, wanted, tokenizer, prompt.error);
        } else {
            const ItemText item = source_->read(index, std::numeric_limits<std::int64_t>::max());
            prompt.error = item.error;
            if (item.error.empty()) ids = tokenizer.encode(item.text);
        }
        if (!prompt.error.empty()) return;
        // An empty book is a mistake. An empty prompt behind a begin-of-text token is a wish.
        if (ids.empty() && most_tokens_ > 1) throw InputError(source_->label(index), "", "a text", "nothing");
        prompt.tokens = make_prompt(std::move(ids), source_->label(index), settings_, tokenizer, max_positions);
    }

    std::unique_ptr<ItemSource> source_;
    Settings settings_;
    std::int64_t most_tokens_ = 0;  ///< pg19: of the book; 0 = all of the text
};

[[noreturn]] void refuse_overlong(const std::string& label, std::int64_t count, std::int64_t room,
                                  const Settings& settings, std::int64_t max_positions) {
    const std::string expected = "at most " + std::to_string(std::max<std::int64_t>(room, 0)) + " tokens (context " +
                                 std::to_string(max_positions) + " less max-tokens " +
                                 std::to_string(settings.max_tokens) + ")";
    throw InputError(label, "prompt", expected, std::to_string(count),
                     room > 0 ? "overlong = truncate-left keeps the last ones" : "lower max-tokens");
}

std::unique_ptr<ItemSource> open_source(const Settings& settings) {
    const std::filesystem::path& data = settings.data;
    const std::string extension = data.extension().string();
    const bool json = extension == ".jsonl" || extension == ".json";
    std::error_code error;
    const bool folder = std::filesystem::is_directory(data, error);
    if (settings.task == "pg19") {
        return json && !folder ? open_lines(data, LineFormat::json_text, settings.limit)
                               : open_books(data, settings.limit);
    }
    if (folder) throw InputError(data.string(), "", "a .jsonl or .txt file with prompts", "a folder");
    return open_lines(data, extension == ".txt" ? LineFormat::plain : LineFormat::json_prompt, settings.limit);
}

}  // namespace

bool puts_bos(const Settings& settings, const engine::Tokenizer& tokenizer) {
    if (settings.add_bos == "false") return false;
    if (settings.add_bos == "auto" && !tokenizer.adds_bos()) return false;
    if (tokenizer.bos_id()) return true;
    if (settings.add_bos == "auto") return false;
    throw UsageError(InputError::format("job", "add-bos", "false with this model", "true",
                                        "its tokenizer names no begin-of-text token"));
}

Ids make_prompt(Ids ids, const std::string& label, const Settings& settings, const engine::Tokenizer& tokenizer,
                std::int64_t max_positions) {
    const bool bos = puts_bos(settings, tokenizer);
    if (ids.empty() && !bos) throw InputError(label, "prompt", "at least one token", "none");
    const std::int64_t room = max_positions - settings.max_tokens - (bos ? 1 : 0);
    const auto count = static_cast<std::int64_t>(ids.size());
    if (count > room) {
        if (settings.overlong != "truncate-left" || room <= 0)
            refuse_overlong(label, count, room, settings, max_positions);
        ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count - room));
    }
    if (bos) ids.insert(ids.begin(), *tokenizer.bos_id());
    return ids;
}

std::unique_ptr<DataSet> DataSet::open(const Settings& settings) {
    return std::make_unique<SourceDataSet>(open_source(settings), settings);
}

}  // namespace longhaul::runner
