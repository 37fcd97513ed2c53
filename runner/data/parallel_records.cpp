// Parallel data of wmt and xsum (line i of one file with its reference in line i of another), and prompts that are
// lines of text.
#include <algorithm>
#include <utility>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "runner/data/dataset_lines.hpp"
#include "runner/data/dataset_records.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

/// Parallel data: line i of one file with its reference in line i of another, or the segments of two SGM files.
class ParallelRecords : public RecordSource {
  public:
    /// `settings` decide whether items need their references and whether the reference file was given explicitly.
    ParallelRecords(const ParallelFiles& files, std::string field, LineFormat format, const Settings& settings)
        : names_{std::move(field)},
          sources_(files.source, sgm_or(format, files.source), settings.limit),
          needs_references_(wants_continuation(settings)) {
        if (files.reference.empty()) return;
        // Labels use only the name, since results must not depend on the location of the file.
        references_.emplace(files.reference, sgm_or(format, files.reference), settings.limit,
                            files.reference.filename().string());
        const std::int64_t sources = sources_.num_in_file(), references = references_->num_in_file();
        if (sources == references) return;
        if (settings.reference.empty() && !needs_references_) {  // the file matched by name only
            references_.reset();
            return;
        }
        throw InputError(files.reference.string(), "",
                         std::to_string(sources) + " lines or segments as " + files.source.string() + " has",
                         std::to_string(references), "line i of one belongs to line i of the other");
    }

    const Strings& field_names() const override { return names_; }
    std::int64_t size() const override { return sources_.size(); }
    std::int64_t num_bytes(std::int64_t index) const override { return sources_.num_bytes(index); }
    std::string id(std::int64_t index) const override { return sources_.id(index); }
    std::string label(std::int64_t index) const override { return sources_.label(index); }

    Record read(std::int64_t index) const override {
        Record record;
        record.fields = {text_of(sources_, index)};
        try {
            if (references_) record.reference = reference_of(index);
        } catch (const InputError&) {
            if (needs_references_) throw;  // otherwise the prompt is complete without it and no result depends on it
        }
        return record;
    }

    void add_to(engine::Hash& hash, bool references) const override {
        sources_.add_to(hash);
        if (!references || !references_) return;
        hash.add("\nreferences\n");
        references_->add_to(hash);
    }

  private:
    static LineFormat sgm_or(LineFormat format, const fs::path& path) {
        return path.extension() == ".sgm" ? LineFormat::sgm : format;
    }

    [[nodiscard]] std::string reference_of(std::int64_t index) const {
        const bool both = sources_.format() == LineFormat::sgm && references_->format() == LineFormat::sgm;
        if (both && sources_.id(index) != references_->id(index)) {
            throw InputError(references_->label(index), "", "the segment of " + sources_.id(index),
                             references_->id(index), "both files must have the same segments in the same order");
        }
        return text_of(*references_, index);
    }

    static std::string text_of(const LineSource& lines, std::int64_t index) {
        std::string text = lines.text(index);
        if (text.find_first_not_of(" \t") == std::string::npos)
            throw InputError(lines.label(index), "", "a text", "an empty line");
        return text;
    }

    Strings names_;
    LineSource sources_;
    std::optional<LineSource> references_;
    bool needs_references_;
};

/// `name` with `ending` replaced by `other`; "" if it does not end so.
std::string with_ending(const std::string& name, const std::string& ending, const std::string& other) {
    return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) + other : "";
}

/// The files in `names` that may be the references of `name`.
Strings references_of(const std::string& name, const Strings& names, const std::string& task) {
    Strings wanted{with_ending(name, ".source", ".target")};
    if (task == "wmt") wanted.push_back(with_ending(name, ".de", ".en"));
    const std::size_t mark = name.rfind("-src.");
    const bool sgm = task == "wmt" && mark != std::string::npos && name.ends_with(".sgm");
    const std::string stem = sgm ? name.substr(0, mark) + "-ref." : "";
    Strings found;
    for (const std::string& other : names) {
        const bool named = std::find(wanted.begin(), wanted.end(), other) != wanted.end();
        if (named || (sgm && other.starts_with(stem) && other.ends_with(".sgm"))) found.push_back(other);
    }
    return found;
}

Strings names_in(const fs::path& folder) {
    Strings names;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        names.push_back(it->path().filename().string());
    if (error) throw InputError(folder.string(), "", "a readable folder", error.message());
    std::sort(names.begin(), names.end());
    return names;
}

/// The two-letter language code in the name of a wmt file; "" if there is none.
std::string language_of(const fs::path& path) {
    const fs::path name = path.extension() == ".sgm" ? path.stem() : path;
    const std::string code = name.extension().string();
    const bool letters =
        code.size() == 3 && std::all_of(code.begin() + 1, code.end(), [](char c) { return c >= 'a' && c <= 'z'; });
    return letters ? code.substr(1) : "";
}

/// The examples in the built-in wmt template are German and English.
void check_languages(const Settings& settings, const ParallelFiles& files) {
    if (!settings.prompt_template.empty()) return;
    const auto check = [](const fs::path& path, const std::string& expected) {
        const std::string language = language_of(path);
        if (language.empty() || language == expected || path.empty()) return;
        throw InputError(path.string(), "",
                         "a file ." + expected + ", as the template of task wmt is German to English", "." + language,
                         "write a template for these languages and name it as `template`");
    };
    check(files.source, "de");
    check(files.reference, "en");
}

}  // namespace

ParallelFiles find_parallel_files(const Settings& settings) {
    std::error_code error;
    if (!fs::is_directory(settings.data, error)) {
        ParallelFiles files{settings.data, settings.reference};
        const fs::path folder = settings.data.parent_path();
        if (!files.reference.empty() || !fs::exists(settings.data, error)) return files;
        Strings names;
        try {
            names = names_in(folder.empty() ? "." : folder);
        } catch (const InputError&) {
            return files;  // the folder may be entered but not listed
        }
        const Strings found = references_of(settings.data.filename().string(), names, settings.task);
        if (found.size() == 1) files.reference = folder / found.front();
        return files;
    }
    const Strings names = names_in(settings.data);
    std::vector<ParallelFiles> pairs;
    for (const std::string& name : names) {
        for (const std::string& other : references_of(name, names, settings.task))
            pairs.push_back({settings.data / name, settings.data / other});
    }
    if (pairs.size() == 1) {
        if (!settings.reference.empty()) pairs.front().reference = settings.reference;
        return pairs.front();
    }
    const std::string wmt = settings.task == "wmt" ? "X-src.L1.sgm and X-ref.L2.sgm, X.de and X.en, or " : "";
    throw InputError(settings.data.string(), "", "one pair of files (" + wmt + "X.source and X.target)",
                     pairs.empty() ? "none" : std::to_string(pairs.size()),
                     "name the files themselves as data and reference");
}

std::unique_ptr<RecordSource> open_parallel(const Settings& settings, const std::string& field) {
    const ParallelFiles files = find_parallel_files(settings);
    if (settings.task == "wmt") check_languages(settings, files);
    return std::make_unique<ParallelRecords>(files, field, LineFormat::parallel, settings);
}

std::unique_ptr<RecordSource> open_prompt_lines(const Settings& settings) {
    return std::make_unique<ParallelRecords>(ParallelFiles{settings.data, {}}, "prompt", LineFormat::plain, settings);
}

}  // namespace longhaul::runner
