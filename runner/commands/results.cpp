// `longhaul results RUN`: prints the results so far, in the order of the input. Needs no MPI, and no model except with
// --partial. Joins the shards of a job if all are done.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/checkpoint/store.hpp"
#include "engine/error.hpp"
#include "engine/model/config.hpp"
#include "engine/replica/sequence.hpp"
#include "runner/commands/commands.hpp"
#include "runner/data/dataset.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/command_line.hpp"
#include "runner/job/value_text.hpp"
#include "runner/launch/engine_options.hpp"
#include "runner/launch/job_run.hpp"
#include "runner/run/batch_answers.hpp"
#include "runner/run/results.hpp"
#include "runner/run/run_folder.hpp"
#include "runner/run/shard_folder.hpp"

namespace longhaul::runner {
namespace {

void print(const std::string& line) {
    if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size() || std::fputc('\n', stdout) == EOF) {
        throw StorageError("standard output: expected to write the results, got an error");
    }
}

/// Partial results of unfinished items, from their checkpoints.
class PartialResults {
  public:
    /// `runs`: a run folder, or the started shards of a job.
    explicit PartialResults(const std::vector<RunFolder>& runs) {
        const Settings settings = runs.front().settings();
        data_ = DataSet::open(settings);
        const engine::ModelConfig config = engine::ModelConfig::load(settings.model);
        tokenizer_ = load_tokenizer(settings.model, config);
        max_positions_ = max_item_positions(settings, config);
        scores_ = only_scores(settings);
        for (const RunFolder& run : runs) {
            const Settings own = run.settings();
            stores_.push_back(
                {own, {run.checkpoints(), checkpoint_identity(own, read_fingerprints(run), config), INT64_MAX}});
        }
    }

    [[nodiscard]] std::int64_t num_inputs() const { return data_->size(); }

    /// Returns nullopt if there is no checkpoint of the item with more tokens than its result (null: none).
    std::optional<ResultRecord> find(const ItemKey& key, const ResultIndex::Entry* entry) {
        const auto of = std::find_if(stores_.begin(), stores_.end(),
                                     [&](const ShardStore& store) { return store.settings.shard.has(key.index); });
        if (of == stores_.end()) return std::nullopt;
        if (entry != nullptr && ResultIndex::is_done(*entry, of->settings)) return std::nullopt;
        const std::string id = data_->id(key.index);
        const auto restored = of->store.restore(checkpoint_key(id, key.sample));
        const std::int64_t least = entry != nullptr ? entry->num_tokens : 0;
        if (!restored || std::ssize(restored->tokens) <= least) return std::nullopt;
        ResultRecord record;
        record.key = key;
        record.id = id;
        record.loss = engine::statistics_from_json(restored->statistics).loss;
        record.num_tokens = scores_ ? record.loss.num_tokens() : static_cast<std::int64_t>(restored->tokens.size());
        record.finish_reason = "partial";
        record.token_ids = restored->tokens;
        record.logprobs = logprobs_text(restored->tokens, restored->logprobs);
        if (scores_) return record;
        // Decode after the prompt, since a tokenizer may add or drop a blank at the start of a text.
        const Prompt prompt = data_->prompt(key.index, *tokenizer_, max_positions_);
        engine::Detokenizer stream(*tokenizer_);
        for (const std::int32_t token : prompt.tokens) stream.push(token);
        for (const std::int32_t token : restored->tokens) record.text += stream.push(token);
        const std::string& end = (prompt.settings ? *prompt.settings : of->settings).reasoning_end;
        record.has_reasoning = !end.empty() && prompt.continuation.empty();
        if (record.has_reasoning)
            record.answer = engine::answer_in(record.text, end, *tokenizer_, prompt.tokens, restored->tokens);
        return record;
    }

  private:
    struct ShardStore {
        Settings settings;
        engine::CheckpointStore store;
    };
    std::unique_ptr<DataSet> data_;
    std::unique_ptr<engine::Tokenizer> tokenizer_;
    std::int64_t max_positions_ = 0;
    bool scores_ = false;
    std::vector<ShardStore> stores_;
};

/// Whether unfinished items can be read; prints a note if not.
bool has_begun(const std::vector<RunFolder>& runs) {
    const std::filesystem::path& root = runs.front().root;
    std::error_code error;
    if (std::filesystem::exists(root / "identity.json", error) || error) return true;
    std::fprintf(stderr, "note: %s: no identity.json, which is written before the first item: none is unfinished\n",
                 root.c_str());
    return false;
}

/// The run folder itself, or its started shards. Joins the shards first if all are done.
std::vector<RunFolder> runs_of(const std::filesystem::path& root) {
    if (num_shards(root) == 0) {
        RunFolder{root}.must_exist();
        return {RunFolder{root}};
    }
    try {
        const JoinReport report = join_shards(root);
        if (report.state == Joining::joined) std::fprintf(stderr, "longhaul: joined in %s\n", root.c_str());
        if (report.state == Joining::differing) std::fprintf(stderr, "note: %s\n", report.why.c_str());
    } catch (const StorageError& error) {  // the folder of someone else, or a full disk: the shards can be read
        std::fprintf(stderr, "note: not joined: %s\n", error.what());
    }
    return begun_shards_of(root);
}

/// Throws UsageError unless the results of this job can be printed as asked.
void check_form(const CommandLine& line, const Settings& settings) {
    const auto refuse = [](const std::string& field, const std::string& expected, const std::string& got,
                           const std::string& fix) {
        throw UsageError(InputError::format("command line", field, expected, got, fix));
    };
    if (const std::string form = line.value("form"); form != "openai") refuse("form", "openai", in_quotes(form), "");
    if (settings.task != "openai-batch")
        refuse("form", "a run of task = openai-batch", "task = " + settings.task, "its requests say what to answer");
    if (line.has("partial")) refuse("partial", "none with --form", "it", "an answer is whole");
}

/// Items of a finished run; 0 if it is not finished.
std::int64_t finished_items(const std::vector<RunFolder>& folders) {
    std::int64_t items = 0;
    for (const RunFolder& folder : folders) {
        const std::optional<Finished> finished = read_last_finish(folder);
        if (!finished) return 0;
        items += finished->items;
    }
    return items;
}

/// Throws InputError if a finished run has lost results.
void check_complete(const std::string& place, std::int64_t items, const ResultIndex& results) {
    const std::int64_t there = std::ssize(results.entries());
    if (there >= items) return;
    throw InputError(place, "results/", counted(items, "result", "results") + " of a finished run", grouped(there),
                     "results.jsonl is still there: `longhaul verify` tells whether it is intact");
}

}  // namespace

int results_command(const std::vector<std::string>& arguments) {
    const CommandLine line = parse_command_line(arguments, syntax_of("results"));
    const std::vector<RunFolder> folders = runs_of(line.places.front());
    std::vector<std::filesystem::path> runs(folders.size());
    std::transform(folders.begin(), folders.end(), runs.begin(), [](const RunFolder& folder) { return folder.root; });
    const Settings settings = folders.front().settings();
    const ResultFormat format = result_format(settings);
    // In this order a run that goes on meanwhile hides nothing: finished.json is written after the last result, and a
    // checkpoint removed after the result of its item.
    const std::int64_t items = finished_items(folders);
    std::optional<PartialResults> partial;
    if (line.has("partial") && !line.has("form") && has_begun(folders)) partial.emplace(folders);
    const ResultIndex results = ResultIndex::read(runs);
    check_complete(line.places.front(), items, results);
    if (line.has("form")) {
        check_form(line, settings);
        each_batch_answer(results, settings, print);
        return static_cast<int>(ExitCode::done);
    }
    if (!partial) {
        for (const ResultIndex::Entry& entry : results.entries()) print(format_result(results.load(entry), format));
        return static_cast<int>(ExitCode::done);
    }
    for (std::int64_t index = 0; index < partial->num_inputs(); ++index) {
        for (std::int64_t sample = 0; sample < settings.samples; ++sample) {
            const ResultIndex::Entry* entry = results.find({index, sample});
            if (const auto record = partial->find({index, sample}, entry)) {
                print(format_result(*record, format));
            } else if (entry != nullptr) {
                print(format_result(results.load(*entry), format));
            }
        }
    }
    return static_cast<int>(ExitCode::done);
}

}  // namespace longhaul::runner
