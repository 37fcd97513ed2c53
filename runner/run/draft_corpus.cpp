#include "runner/run/draft_corpus.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/run/results.hpp"
#include "runner/run/run_folder.hpp"
#include "runner/run/shard_folder.hpp"

namespace longhaul::runner {
namespace {

/// Bytes of a text that are read at most: no tokenizer's tokens are longer on average.
constexpr std::int64_t max_bytes_per_token = 16;

/// Collects the tokens of texts up to a limit.
class Collector {
  public:
    Collector(const engine::Tokenizer& tokenizer, std::int64_t max_tokens) : tokenizer_(tokenizer), left_(max_tokens) {}

    [[nodiscard]] bool is_full() const { return left_ <= 0; }
    [[nodiscard]] std::int64_t max_bytes() const { return left_ * max_bytes_per_token; }
    void add(std::string_view text) {
        std::vector<std::int32_t> tokens = tokenizer_.encode(text);
        tokens.resize(static_cast<std::size_t>(std::min(std::ssize(tokens), left_)));
        left_ -= std::ssize(tokens);
        if (!tokens.empty()) corpus.push_back(std::move(tokens));
    }

    engine::DraftCorpus corpus;

  private:
    const engine::Tokenizer& tokenizer_;
    std::int64_t left_;
};

/// The results that the run has so far; items that failed have none.
void add_results(const std::filesystem::path& run, Collector& texts) {
    std::vector<std::filesystem::path> runs{run};
    if (num_shards(run) > 0) {
        runs.clear();
        for (const RunFolder& shard : begun_shards_of(run)) runs.push_back(shard.root);
    }
    const ResultIndex index = ResultIndex::read(runs);
    for (const ResultIndex::Entry& entry : index.entries()) {
        if (texts.is_full()) return;
        if (!entry.failed) texts.add(index.load(entry).text);
    }
}

/// Lines {"text"}. Ids do not matter: the samples of a prompt share theirs.
void add_lines(const std::filesystem::path& path, Collector& texts) {
    const InputFile file(path);
    const std::string bytes = file.read(0, std::min(file.num_bytes(), texts.max_bytes()));
    std::int64_t number = 0;
    for (std::size_t begin = 0; begin < bytes.size() && !texts.is_full();) {
        const std::size_t end = bytes.find('\n', begin);
        if (end == std::string::npos && static_cast<std::int64_t>(bytes.size()) < file.num_bytes()) return;  // cut
        const std::string_view line = std::string_view(bytes).substr(begin, end - begin);
        begin = end == std::string::npos ? bytes.size() : end + 1;
        ++number;
        if (line.find_first_not_of(" \r\t") == std::string_view::npos) continue;
        const nlohmann::json json = engine::try_parse_json(line);
        if (!json.is_object() || !json.contains("text") || !json["text"].is_string())
            throw InputError(path.string() + ":" + std::to_string(number), "text", "an object with a text",
                             engine::printable(line, 40));
        texts.add(json["text"].get<std::string>());
    }
}

void add_books(const std::filesystem::path& path, Collector& texts) {
    const std::unique_ptr<BookSource> source = open_books(path, 0);
    for (std::int64_t i = 0; i < source->size() && !texts.is_full(); ++i) {
        const ItemText item = source->read(i, texts.max_bytes());
        if (!item.error.empty()) throw Error(item.error);
        texts.add(item.text);
    }
}

}  // namespace

engine::DraftCorpus read_draft_corpus(const std::filesystem::path& path, const engine::Tokenizer& tokenizer,
                                      std::int64_t max_tokens) {
    Collector texts(tokenizer, max_tokens);
    if (num_shards(path) > 0 || RunFolder{path}.is_begun()) {
        add_results(path, texts);
    } else if (path.extension() == ".jsonl" || path.extension() == ".json") {
        add_lines(path, texts);
    } else {
        add_books(path, texts);
    }
    if (texts.corpus.empty()) throw InputError(path.string(), "", "texts for draft-corpus", "none");
    return std::move(texts.corpus);
}

}  // namespace longhaul::runner
