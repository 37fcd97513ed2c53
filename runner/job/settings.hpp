// How a job is read, checked and written, and which of its keys decide its results.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runner/job/job.hpp"

namespace longhaul::runner {

/// Hears what is wrong with a job: a whole line, and the key it is about ("" where it is about none; of an unknown key
/// the nearest known one). One that throws ends the reading there.
using FaultSink = std::function<void(const std::string& key, const std::string& line)>;

/// The sink of whoever needs a good job or none: throws UsageError.
void throw_fault(const std::string& key, const std::string& line);

/// Reads a job file: lines `key = value`; `#` at the start of a line or after a blank begins a comment, except inside
/// double quotes. UTF-8; BOM and CRLF are accepted. Faults name file and line. Relative paths stay as they
/// are: `parse_settings` resolves them. Throws UsageError where the file cannot be read.
std::vector<Assignment> read_job_file(const std::filesystem::path& path, const FaultSink& fault = throw_fault);

/// Checks and types assignments; those of the command line override the file's (a repeatable key: all of them). Unknown
/// keys name the nearest known one; duplicate keys in one place, bad values, overflow and contradictory options are
/// refused; values of the vocabulary that this version does not do are refused with "not in this version". Paths of the
/// file are relative to `job_folder`, those of the command line to the current folder. Keys in `required` must be
/// given. A key with a fault keeps its default.
Settings parse_settings(const std::vector<Assignment>& file, const std::vector<Assignment>& command_line,
                        const std::filesystem::path& job_folder,
                        const std::vector<std::string>& required = {"task", "data", "model", "output"},
                        const FaultSink& fault = throw_fault);

/// Assignments of one place (a file, the command line) checked one by one for unknown keys, repeated keys and bad
/// values, and given back with values as format_settings writes them: paths absolute, numbers in their shortest form.
/// What contradicts what is left to parse_settings. Throws UsageError.
std::vector<Assignment> resolve_assignments(const std::vector<Assignment>& assignments,
                                            const std::filesystem::path& folder);

/// read_job_file and parse_settings in one.
Settings load_settings(const std::filesystem::path& job_file, const std::vector<Assignment>& command_line);

/// The resolved job as a job file: every key, in the order of the table (keys without a value as a comment). Parses
/// back to the same settings from any folder.
std::string format_settings(const Settings& settings);

/// `draft-tree` of a job that names none; not given for a method without trees.
engine::TreeSpec own_tree(const Settings& settings);

/// Whether items run on the data's own continuation.
bool wants_continuation(const Settings& settings);

/// Draft models that this job loads.
std::vector<std::filesystem::path> wanted_draft_models(const Settings& settings);
/// Folders of all that this job drafts with.
std::vector<std::filesystem::path> draft_folders(const Settings& settings);
/// Folder of the heads that this job drafts with: `draft-model`, or the target's own; "" where it needs none.
std::filesystem::path heads_folder(const Settings& settings);

/// Whether a key may change between launches of one run folder (design.md, "Two kinds of keys").
enum class KeyKind {
    identity,   ///< decides the result: a resume with another value is refused
    extension,  ///< `limit`, `samples`, `max-tokens`: may be raised, which extends a run; lowering is refused
    execution,  ///< free to change
};

/// The kind of `key` under these settings: draft keys are execution under `coupled`, `max-tokens` is identity where
/// prompts are truncated. `data`, `model`, templates and references are execution, since their fingerprints
/// are compared, not their paths.
KeyKind kind_of(const std::string& key, const Settings& settings);

/// kind_of(key, settings) == KeyKind::execution.
bool is_execution_key(const std::string& key, const Settings& settings);

/// Keys of kind identity with their values, in the order of the table: what a resume must agree with, next to the
/// fingerprints of data, model and tokenizer, which the caller knows. `extensions`: also those of kind extension
/// (to compare them; leave them out of a fingerprint that must survive an extension).
std::vector<Assignment> identity_of(const Settings& settings, bool extensions = false);

}  // namespace longhaul::runner
