// Reads, checks and writes a job, and defines which keys decide its results. Used by all commands that take a job.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/tokenizer/chat_template.hpp"
#include "runner/job/job.hpp"
#include "runner/job/vocabulary.hpp"

namespace longhaul::runner {

/// Receives the faults of a job. `line` is the complete message. `key` is the key that it concerns: "" if none, for an
/// unknown key the nearest known one. A sink that throws stops the reading.
using FaultSink = std::function<void(const std::string& key, const std::string& line)>;

/// The default sink: throws UsageError at the first fault.
void throw_fault(const std::string& key, const std::string& line);

/// Reads a job file of lines `key = value`. `#` at the start of a line or after a blank starts a comment, except inside
/// double quotes; a value that is only a comment is refused, and one in single quotes. UTF-8; accepts BOM and CRLF.
/// Faults name file and line. Relative paths are left as they are; `parse_settings` resolves them. Throws UsageError if
/// the file cannot be read.
std::vector<Assignment> read_job_file(const std::filesystem::path& path, const FaultSink& fault = throw_fault);

/// Checks assignments and converts them to settings. The command line overrides the file; for a repeatable key it
/// replaces all values. Paths in the file are relative to the folder of `job_file` ("": there is none), those on the
/// command line to the current folder. Keys in `required` must be given.
///
/// Faults: unknown keys (the message names the nearest known one), duplicate keys in one place, bad values, overflow,
/// contradictory options, and known values that this version does not support ("not in this version"). A key with a
/// fault keeps its default.
Settings parse_settings(const std::vector<Assignment>& file, const std::vector<Assignment>& command_line,
                        const std::filesystem::path& job_file,
                        const std::vector<std::string>& required = required_keys(),
                        const FaultSink& fault = throw_fault);

/// Checks the assignments of one place (a file or the command line) one by one: unknown keys, duplicate keys, bad
/// values. Returns them with values as format_settings writes them: absolute paths, numbers in their shortest form.
/// Contradictions between keys are left to parse_settings. Throws UsageError.
std::vector<Assignment> resolve_assignments(const std::vector<Assignment>& assignments,
                                            const std::filesystem::path& folder);

/// read_job_file followed by parse_settings.
Settings load_settings(const std::filesystem::path& job_file, const std::vector<Assignment>& command_line);

/// The resolved job as a job file: every key in the order of the table; a key without a value is a comment. Parses back
/// to the same settings from any folder.
std::string format_settings(const Settings& settings);

/// `draft-tree` of a job that gives none. Not given (TreeSpec::is_given) for a method without trees.
engine::TreeSpec own_tree(const Settings& settings);

/// Warning of a job whose verification rule does not preserve the model's distribution; "" for any other.
std::string lossy_rule_warning(const Settings& settings);

/// What the keys template-variable and template-date say to chat templates.
engine::ChatOptions chat_options(const Settings& settings);

/// Whether the job generates nothing but scores texts of the data (mode = perplexity or multiple-choice).
bool only_scores(const Settings& settings);
/// Whether the job uses the data's own continuations (teacher-forced or mode = perplexity).
bool wants_continuation(const Settings& settings);
/// Whether the data determines every token: then nothing is sampled, and no rule ends an item.
bool has_given_texts(const Settings& settings);

/// Folders of the parts that the job drafts with.
struct DraftFolders {
    std::vector<std::filesystem::path> models;
    bool target_copy = false;      ///< the target drafts for itself
    std::filesystem::path layer;   ///< `draft-model`; "": no draft layer
    std::filesystem::path heads;   ///< `draft-model`, or the target's folder; "": no heads
    std::filesystem::path corpus;  ///< `draft-corpus`; not one of all()

    [[nodiscard]] std::vector<std::filesystem::path> all() const;
};
DraftFolders draft_folders(const Settings& settings);

/// Whether a key may change between launches of one run folder (runner/README.md, "Resume").
enum class KeyKind {
    identity,   ///< decides the result: a resume with another value is refused
    extension,  ///< `limit`, `samples`, `max-tokens`: raising it extends a run, lowering it is refused
    execution,  ///< free to change
};

/// The kind of `key` under these settings. Draft keys are execution under `coupled`, otherwise identity. `max-tokens`
/// is identity if prompts are truncated. `data`, `model`, `adapter`, `draft-model`, templates and references are
/// execution, because their fingerprints are compared, not their paths.
KeyKind kind_of(const std::string& key, const Settings& settings);

/// kind_of(key, settings) == KeyKind::execution.
bool is_execution_key(const std::string& key, const Settings& settings);

/// Keys of kind identity with their values, in the order of the table, and whether there is an `adapter`. A resume must
/// agree with them and with the fingerprints of data, model, adapter and tokenizer, which the caller knows.
/// `extensions` adds keys of kind extension: use it to compare them, not in a fingerprint that must survive an
/// extension.
std::vector<Assignment> identity_of(const Settings& settings, bool extensions = false);

}  // namespace longhaul::runner
