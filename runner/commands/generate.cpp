// `longhaul generate`: continues one prompt and streams the text to the terminal, in one process without MPI or in the
// ranks of a launch, which share the model.
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/parallel/group.hpp"
#include "engine/tokenizer/chat_template.hpp"
#include "runner/commands/commands.hpp"
#include "runner/commands/text_stream.hpp"
#include "runner/data/dataset.hpp"
#include "runner/host/message_text.hpp"
#include "runner/host/placement.hpp"
#include "runner/host/process.hpp"
#include "runner/host/resources.hpp"
#include "runner/host/world.hpp"
#include "runner/job/command_line.hpp"
#include "runner/job/device_choice.hpp"
#include "runner/job/value_text.hpp"
#include "runner/launch/draft_models.hpp"
#include "runner/launch/engine_options.hpp"
#include "runner/launch/loaded_job.hpp"
#include "runner/launch/memory_plan.hpp"
#include "runner/launch/model_folder.hpp"

namespace longhaul::runner {
namespace {

constexpr std::int64_t max_prompt_bytes = std::int64_t{1} << 30;
constexpr const char* standard_input = "standard input";
constexpr int interrupted = 128 + SIGINT;  // exit code that a shell expects after Ctrl-C

volatile std::sig_atomic_t stop_wanted = 0;

/// The first Ctrl-C ends the text after the current step; the second one ends the program.
void stop_on_interrupt() {
    struct sigaction action {};
    action.sa_handler = [](int) { stop_wanted = 1; };
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
}

void write_out(const std::string& text) {
    const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
    if (!written || std::fflush(stdout) != 0)
        throw StorageError("standard output: expected to write the text, got an error");
}

/// All of standard input.
std::string read_input() {
    std::string text;
    std::array<char, 1 << 16> block{};
    while (const std::size_t count = std::fread(block.data(), 1, block.size(), stdin)) {
        text.append(block.data(), count);
        if (static_cast<std::int64_t>(text.size()) > max_prompt_bytes)
            throw InputError(standard_input, "", "at most " + size_text(max_prompt_bytes), "more");
    }
    if (std::ferror(stdin) != 0) throw InputError(standard_input, "", "readable bytes", std::strerror(errno));
    return text;
}

std::string read_prompt(const CommandLine& line) {
    if (line.has("prompt") == line.has("prompt-file")) {
        throw UsageError(InputError::format("command line", "prompt", "one of --prompt and --prompt-file",
                                            line.has("prompt") ? "both" : "none", ""));
    }
    const std::string file = line.value("prompt-file");
    const bool is_input = file == "-" || file == "/dev/stdin";
    std::string text = is_input       ? read_input()
                       : file.empty() ? line.value("prompt")
                                      : engine::read_file(file, max_prompt_bytes);
    const std::size_t bad = first_bad_byte(text);
    if (bad == std::string::npos) return text;
    const std::string place = "@" + std::to_string(bad);
    if (!file.empty())
        throw InputError(is_input ? standard_input : file, place, "UTF-8 text",
                         "byte " + engine::printable(text.substr(bad, 1)));
    throw UsageError(InputError::format("command line", "prompt" + place, "UTF-8 text", "another encoding", ""));
}

std::string as_chat(std::string text, const Settings& settings) {
    const std::vector<engine::ChatMessage> messages{{"user", std::move(text)}};
    return engine::ChatTemplate::load(settings.chat_template, settings.model, chat_options(settings))
        .render(messages, "command line");
}

Settings read_settings(const CommandLine& line, int ranks) {
    std::vector<Assignment> keys = line.keys;
    keys.push_back({.key = "model", .value = line.places.front(), .origin = "command line"});
    keys.push_back({.key = "tensor-parallel", .value = std::to_string(ranks), .origin = "number of ranks"});
    return parse_settings({}, keys, {}, {"model"});
}

/// State that the hooks of the replica update.
struct Session {
    Session(const engine::Tokenizer& tokenizer, std::shared_ptr<const engine::GenerationOptions> wanted)
        : options(std::move(wanted)), characters(tokenizer), text(options->stop) {}

    std::shared_ptr<const engine::GenerationOptions> options;
    engine::Detokenizer characters;
    TextStream text;
    std::int64_t num_tokens = 0;
    std::string shown;  ///< all text printed so far
    std::optional<engine::FinishedItem> result;
    double first_token_seconds = 0;  ///< since the start of the program; 0: none yet

    void show(const std::string& more) {
        shown += more;
        write_out(more);
    }
    void emit(std::span<const std::int32_t> tokens) {
        if (first_token_seconds == 0) first_token_seconds = seconds_since_start();
        std::string more;
        for (const std::int32_t token : tokens) {
            if (options->is_end(token)) break;
            more += text.push(characters.push(token), ++num_tokens > options->sampling.min_tokens);
        }
        if (!more.empty()) show(more);
    }
    /// Prints the rest of the text. Uses the text of the finished item if there is one, so that the output equals what
    /// `run` would record.
    void end() {
        if (result && result->text.starts_with(shown)) {
            show(result->text.substr(shown.size()));
        } else if (!result) {
            show(text.push(characters.finish()) + text.finish());
        }
        write_out("\n");
    }
};

engine::ReplicaHooks hooks_of(Session& session, std::vector<std::int32_t> prompt) {
    engine::ReplicaHooks hooks;
    hooks.next_work = [options = session.options, prompt = std::move(prompt),
                       given = false]() mutable -> std::optional<engine::WorkItem> {
        if (std::exchange(given, true)) return std::nullopt;
        // Id 1 is the id of the first item in a data set without ids, so `run` gives the same random numbers and text.
        return engine::WorkItem{
            .number = 0, .id = "1", .sample = 0, .checkpoint_key = "1", .prompt = prompt, .options = options};
    };
    hooks.finished = [&session](engine::FinishedItem item) { session.result = std::move(item); };
    hooks.stop_requested = [] { return stop_wanted != 0; };
    hooks.progress = [](const engine::ReplicaProgress&) {};
    hooks.emitted = [&session](std::int64_t, std::span<const std::int32_t> tokens, std::int64_t) {
        session.emit(tokens);
    };
    hooks.poke = [] {};
    return hooks;
}

const char* reason_text(engine::FinishReason reason) {
    if (reason == engine::FinishReason::repetition) return "ended by stop-loops, in a loop";
    return reason == engine::FinishReason::length ? "ended at max-tokens" : "ended by the model or a stop text";
}

void print_start(const Session& session, const engine::LoadReport& load) {
    std::fprintf(stderr, "longhaul: model loaded in %.2f s, %s; first token after %.2f s\n", load.seconds,
                 load.how.c_str(), session.first_token_seconds);
}

void print_statistics(const Session& session, const engine::ReplicaOutcome& outcome, std::size_t prompt_tokens) {
    const engine::ReplicaProgress& progress = outcome.progress;
    const double seconds = outcome.decode_seconds;
    const auto tokens = static_cast<double>(progress.emitted_tokens);
    char efficiency[48] = "";
    if (progress.target_calls > 0) {
        std::snprintf(efficiency, sizeof efficiency, ", block efficiency %.2f",
                      static_cast<double>(progress.decode_tokens) / static_cast<double>(progress.target_calls));
    }
    std::fprintf(stderr, "longhaul: %lld tokens in %.2f s (%.1f tokens/s)%s; prompt of %zu tokens in %.2f s; %s\n",
                 static_cast<long long>(progress.emitted_tokens), seconds, seconds > 0 ? tokens / seconds : 0,
                 efficiency, prompt_tokens, outcome.prefill_seconds,
                 session.result ? reason_text(session.result->reason) : "interrupted");
}

/// What one text needs, parsed and checked before anything is loaded.
struct Request {
    Settings settings;
    engine::ModelConfig config;
    std::vector<std::int32_t> prompt;
};

/// `text`: of the prompt. `ranks`: of the launch; they form one tensor-parallel group.
Request read_request(const CommandLine& line, const std::string& text, int ranks, LoadedJob& loaded) {
    Request request{.settings = read_settings(line, ranks), .config = {}, .prompt = {}};
    const Settings& settings = request.settings;
    check_model_folders(settings);
    request.config = engine::ModelConfig::load(settings.model);
    loaded.tokenizer = load_tokenizer(settings.model, request.config);
    request.prompt = make_prompt(loaded.tokenizer->encode(settings.chat ? as_chat(text, settings) : text),
                                 {.label = "command line", .complete = settings.chat}, settings, *loaded.tokenizer,
                                 request.config.max_positions);
    return request;
}

/// load_engine without MPI, which takes a moment to start.
void load_alone(const Settings& settings, LoadedJob& loaded) {
    const int threads = settings.threads > 0 ? static_cast<int>(settings.threads) : usable_processors();
    loaded.device = make_device(settings, threads);
    check_memory(settings, *loaded.device, 1, 1);
    check_host_memory(settings, *loaded.device, 1);
    loaded.own_room = own_room(*loaded.device, 1);
    loaded.group = engine::make_local_group();
    loaded.model = engine::Model::load(settings.model, precision_of(settings), *loaded.device, *loaded.group,
                                       kv_dtype_of(settings), packed_folder(settings), settings.adapter);
    loaded.drafts.load(settings, *loaded.model, *loaded.tokenizer, *loaded.device, *loaded.group,
                       copy_fits(settings, *loaded.device, available_bytes(*loaded.device, 1)));
}

struct Ending {
    int code = 0;
    std::string error;  ///< of the item; "" if there is none
};

/// Streams the text; the group's first rank prints it and knows how it ended. Collective over the group.
Ending generate(Request request, LoadedJob& loaded) {
    const Settings& settings = request.settings;
    const bool shown = loaded.group->rank() == 0;
    if (shown) {
        for (const auto& notices : {unused_chat_keys(settings), loaded.model->notices()})
            for (const std::string& notice : notices) std::fprintf(stderr, "note: %s\n", notice.c_str());
        if (!loaded.drafts.notice().empty()) std::fprintf(stderr, "note: %s\n", loaded.drafts.notice().c_str());
    }
    engine::ReplicaOptions options = replica_options(settings, request.config);
    loaded.drafts.give_to(options.draft);
    options.batch = 1;
    options.kv_memory_bytes = loaded.kv_memory_bytes(settings);
    options.kv_host_bytes = host_bytes(settings, *loaded.device);
    const std::size_t prompt_tokens = request.prompt.size();
    Session session(*loaded.tokenizer, generation_options(settings, request.config));
    stop_on_interrupt();
    engine::Replica replica(*loaded.model, *loaded.group, *loaded.tokenizer, options,
                            hooks_of(session, std::move(request.prompt)));
    const engine::ReplicaOutcome outcome = replica.run();
    if (!shown) return {};
    session.end();
    if (session.result && session.result->reason == engine::FinishReason::error)
        return {.code = 1, .error = session.result->error};
    print_start(session, loaded.model->load_report());
    print_statistics(session, outcome, prompt_tokens);
    return {.code = session.result ? 0 : interrupted, .error = ""};
}

int code_of(const Ending& ending) {
    if (!ending.error.empty()) throw Error(ending.error);
    return ending.code;
}

int generate_alone(const std::vector<std::string>& arguments) {
    LoadedJob loaded;
    const CommandLine line = parse_command_line(arguments, syntax_of("generate"));
    Request request = read_request(line, read_prompt(line), 1, loaded);
    load_alone(request.settings, loaded);
    return code_of(generate(std::move(request), loaded));
}

/// All ranks of the launch as one tensor-parallel group. Collective.
int generate_together(World& world, const std::vector<std::string>& arguments, const Placement& placement) {
    LoadedJob loaded;
    loaded.placement = placement;
    CommandLine line;
    std::string text;
    world.agree([&] {
        line = parse_command_line(arguments, syntax_of("generate"));
        if (world.is_first()) text = read_prompt(line);  // only the first rank has standard input
    });
    world.broadcast(text);
    Request request;
    world.agree([&] { request = read_request(line, text, world.size(), loaded); });
    world.split(world.size());
    load_engine(world, request.settings, loaded);
    const Ending ending = generate(std::move(request), loaded);
    int code = 0;
    world.agree([&] { code = code_of(ending); });
    return code;
}

}  // namespace

int generate_command(const std::vector<std::string>& arguments) {
    if (!started_in_ranks()) return generate_alone(arguments);
    const Placement placement = place_this_rank(
        threads_of("generate", arguments, [](const CommandLine& line) { return read_settings(line, 1).threads; }));
    World world;
    return exit_code_of_ranks([&] { return generate_together(world, arguments, placement); });
}

}  // namespace longhaul::runner
