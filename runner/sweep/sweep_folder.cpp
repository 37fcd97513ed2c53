#include "runner/sweep/sweep_folder.hpp"

#include <algorithm>

#include "engine/error.hpp"
#include "runner/host/files.hpp"
#include "runner/job/vocabulary.hpp"
#include "runner/run/run_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

/// Whether the folder is empty, or has only what a launch leaves that died before it wrote sweep.cfg.
bool is_empty_but_for_launches(const fs::path& root) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(root, error)) {
        if (entry.path().filename() != "launches" || !fs::is_empty(entry.path(), error)) return false;
    }
    return true;
}

}  // namespace

bool is_sweep_folder(const fs::path& root) {
    std::error_code error;
    return fs::is_regular_file(root / sweep_marker, error);
}

void create_sweep_folder(const Sweep& sweep) {
    const fs::path& root = sweep.output;
    if (is_sweep_folder(root)) return;
    std::error_code error;
    if (fs::exists(root, error) && !is_empty_but_for_launches(root)) {
        throw UsageError(root.string() +
                         ": output: expected the folder of a sweep or an empty one, got something else");
    }
    make_folder(root);
    write_sweep(sweep);
}

void write_sweep(const Sweep& sweep) {
    const std::string text =
        "# Resolved: `longhaul sweep` with this file resumes in this folder.\n" + format_sweep(sweep);
    if (read_if_there(sweep.output / sweep_marker) != text)
        replace_file(sweep.output / sweep_marker, text, Durable::yes, "own");
}

void check_point(const SweepPoint& point, const std::vector<std::string>& keys) {
    const RunFolder folder{point.settings.output};
    check_identity(folder, point.settings, {});
    std::error_code error;
    if (!fs::exists(folder.root / "job.cfg", error)) return;
    SweepPoint before = point;
    before.settings = folder.settings();
    for (const Key& key : key_table()) {
        const std::string& name = key.info.key;
        const bool in_table = std::find(keys.begin(), keys.end(), name) != keys.end();
        if (key.kind != Key::Kind::draft && !in_table) continue;
        if (kind_of(name, point.settings) == KeyKind::extension) continue;
        if (key.of_copies && !point.settings.draft->copies_target) continue;
        const std::string was = shown_value(before, name), now = shown_value(point, name);
        if (was == now) continue;
        throw UsageError(folder.root.string() + ": " + name + ": expected " + (was.empty() ? "nothing" : was) +
                         " (this point was measured with it), got " + (now.empty() ? "nothing" : now) +
                         "; change it back, give the variant another name, or take another output");
    }
}

}  // namespace longhaul::runner
