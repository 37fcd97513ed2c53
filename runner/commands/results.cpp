// `longhaul results RUN`: the results so far, in the order of the input. Needs no MPI and, but for --partial, no model.
#include <cstdio>
#include <string>

#include "engine/error.hpp"
#include "engine/model/config.hpp"
#include "engine/sequence.hpp"
#include "runner/command_line.hpp"
#include "runner/commands/commands.hpp"
#include "runner/dataset.hpp"
#include "runner/job_run.hpp"
#include "runner/machine.hpp"
#include "runner/replica_driver.hpp"
#include "runner/results.hpp"
#include "runner/run_folder.hpp"

namespace longhaul::runner {
namespace {

void print(const std::string& line) {
    if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size() || std::fputc('\n', stdout) == EOF) {
        throw StorageError("standard output: expected to write the results, got an error");
    }
}

/// What checkpoints have of unfinished items.
class PartialResults {
  public:
    PartialResults(const RunFolder& folder, const Settings& settings)

        : data_(DataSet::open(settings)) {
        const engine::ModelConfig config = engine::ModelConfig::load(settings.model);
        tokenizer_ = load_tokenizer(settings.model, config);
        max_positions_ = most_positions(settings, config);
        scores_ = settings.mode == "perplexity";
        store_ = std::make_unique<engine::CheckpointStore>(
            folder.checkpoints(), checkpoint_identity(settings, read_fingerprints(folder), config), INT64_MAX);
    }

    [[nodiscard]] std::int64_t num_inputs() const { return data_->size(); }

    /// nullopt where there is nothing yet.
    std::optional<ResultRecord> find(const ItemKey& key) {
        const std::string id = data_->id(key.index);
        const auto restored = store_->restore(checkpoint_key(id, key.sample));
        if (!restored || restored->tokens.empty()) return std::nullopt;
        ResultRecord record;
        record.key = key;
        record.id = id;
        record.loss = engine::statistics_from_json(restored->statistics).loss;
        record.num_tokens = scores_ ? record.loss.num_tokens() : static_cast<std::int64_t>(restored->tokens.size());
        record.finish_reason = "partial";
        record.token_ids = restored->tokens;
        record.logprobs = logprobs_text(restored->tokens, restored->logprobs);
        if (scores_) return record;
        // Text after its prompt: a tokenizer may join or drop a blank at the beginning of a text.
        const Prompt prompt = data_->prompt(key.index, *tokenizer_, max_positions_);
        engine::Detokenizer stream(*tokenizer_);
        for (const std::int32_t token : prompt.tokens) stream.push(token);
        for (const std::int32_t token : restored->tokens) record.text += stream.push(token);
        return record;
    }

  private:
    std::unique_ptr<DataSet> data_;
    std::unique_ptr<engine::Tokenizer> tokenizer_;
    std::int64_t max_positions_ = 0;
    bool scores_ = false;
    std::unique_ptr<engine::CheckpointStore> store_;
};

}  // namespace

int results_command(const std::vector<std::string>& arguments) {
    const CommandLine line = parse_command_line(arguments, syntax_of("results"));
    const RunFolder folder{line.places.front()};
    folder.must_exist();
    const Settings settings = folder.settings();
    const ResultFormat format = result_format(settings);
    const ResultIndex results = ResultIndex::read(folder.root);
    if (!line.has("partial")) {
        for (const ResultIndex::Entry& entry : results.entries()) print(format_result(results.load(entry), format));
        return static_cast<int>(ExitCode::done);
    }
    PartialResults partial(folder, settings);
    for (std::int64_t index = 0; index < partial.num_inputs(); ++index) {
        for (std::int64_t sample = 0; sample < settings.samples; ++sample) {
            const ResultIndex::Entry* entry = results.find({index, sample});
            if (entry != nullptr) {
                print(format_result(results.load(*entry), format));
            } else if (const auto record = partial.find({index, sample})) {
                print(format_result(*record, format));
            }
        }
    }
    return static_cast<int>(ExitCode::done);
}

}  // namespace longhaul::runner
