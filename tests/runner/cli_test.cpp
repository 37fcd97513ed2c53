// The real program, run from outside: its output, its exit code and its files. Each row runs it once.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "engine/json.hpp"
#include "runner/job/command_line.hpp"
#include "tests/runner/key_values.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

struct Ended {
    int exit_code = -1;  ///< -1: a signal, or timed out
    std::string out, err;
};

std::string slurp(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}

/// Runs the program in a temporary folder, for at most 30 seconds. A file `stdin` there is its input.
class Cli : public testing::Test {
  protected:
    void SetUp() override {
        fs::create_directories(folder_);
        write("job.cfg", "task = prompts\ndata = p.jsonl\nmodel = m\noutput = out\n");
        write("p.jsonl", "{\"prompt\": \"x\"}\n");
    }
    void TearDown() override { fs::remove_all(folder_); }

    void write(const std::string& name, const std::string& text) {
        std::ofstream(folder_ / name, std::ios::binary) << text;
    }

    Ended run(const std::vector<std::string>& arguments) {
        const pid_t child = ::fork();
        if (child == 0) start(arguments);
        Ended ended;
        ended.exit_code = wait_for(child);
        ended.out = slurp(folder_ / "stdout");
        ended.err = slurp(folder_ / "stderr");
        return ended;
    }

  private:
    [[noreturn]] void start(const std::vector<std::string>& arguments) {
        std::vector<char*> argv{const_cast<char*>(LONGHAUL_PROGRAM)};
        for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
        argv.push_back(nullptr);
        const auto redirect = [&](const char* name, int to) {
            const int file = ::open((folder_ / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
            if (file < 0 || ::dup2(file, to) < 0) ::_exit(126);
        };
        if (const int input = ::open((folder_ / "stdin").c_str(), O_RDONLY); input >= 0) ::dup2(input, STDIN_FILENO);
        redirect("stdout", STDOUT_FILENO);
        redirect("stderr", STDERR_FILENO);
        if (::chdir(folder_.c_str()) == 0) ::execv(LONGHAUL_PROGRAM, argv.data());
        ::_exit(127);
    }

    static int wait_for(pid_t child) {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        int status = 0;
        while (::waitpid(child, &status, WNOHANG) == 0) {
            if (std::chrono::steady_clock::now() > deadline) {
                ::kill(child, SIGKILL);
                ::waitpid(child, &status, 0);
                return -1;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

  protected:
    fs::path folder_ = fs::temp_directory_path() / ("longhaul-cli-" + std::to_string(::getpid()));
};

TEST_F(Cli, BadCommandLinesEndInOneLineAndCode2) {
    struct Case {
        std::vector<std::string> arguments;
        std::string message;  // after "error: command line: "
    };
    const Case cases[] = {
        {{}, "expected a command, got nothing; see `longhaul --help`"},
        {{"rnu"},
         "expected run, sweep, generate, status, results, verify, inspect, check or bench, got 'rnu'; did you mean "
         "'run'?"},
        {{"--seed=1"},
         "expected run, sweep, generate, status, results, verify, inspect, check or bench, got '--seed=1'; see "
         "`longhaul "
         "--help`"},
        {{"plan", "x"},
         "expected a command, got 'plan'; `longhaul check` shows the memory, disk space and time that a job needs"},
        {{"verify"}, "expected longhaul verify RUN, got no RUN; see `longhaul verify --help`"},
        {{"run"}, "expected longhaul run JOB.cfg, got no JOB.cfg; see `longhaul run --help`"},
        {{"run", "job.cfg", "other.cfg"},
         "expected longhaul run JOB.cfg, got one more argument, 'other.cfg'; see `longhaul run --help`"},
        {{"run", "job.cfg", "-n", "2"},
         "expected longhaul run JOB.cfg, got one more argument, '-n'; options begin with --"},
        {{"run", "--baseline", "job.cfg", "extra"},
         "expected longhaul run JOB.cfg, got one more argument, 'extra'; see `longhaul run --help`"},
        {{"run", "--baseline=perhaps", "job.cfg"}, "baseline: expected true or false, got 'perhaps'"},
        {{"run", "--baseline", "false", "--baseline", "job.cfg"},
         "baseline: expected every key once, got this key again"},
        {{"run", "job.cfg", "--shard=1"},
         "shard: expected off, or I/K with I from 0 to K - 1 and K at most 10000, got '1'; 0/8 to 7/8 are the eight "
         "shards of a job"},
        {{"generate", "m", "--prompt=a", "--shard=0/2"},
         "shard: expected a key that `longhaul generate` uses, got '--shard'; see `longhaul generate --help`"},
        {{"status", "out", "--json", "--progress"}, "expected one of --json and --progress, got both"},
        {{"inspect", "m", "--json=no"}, "json: expected no value, got 'no'"},
        {{"run", "job.cfg", "--temprature=0.8"}, "unknown key 'temprature'; did you mean 'temperature'?"},
        {{"run", "job.cfg", "--temp=0.8"}, "unknown key 'temp'; see `longhaul run --help`"},
        {{"run", "job.cfg", "--seed"}, "seed: expected a value, got nothing; write --seed=VALUE"},
        {{"run", "job.cfg", "--seed="}, "seed: expected a value, got nothing; write --seed=VALUE"},
        {{"run", "job.cfg", "--seed", "--limit=1"}, "seed: expected a value, got nothing; write --seed=VALUE"},
        {{"run", "job.cfg", "--seed=1", "--seed=1"}, "seed: expected every key once, got this key again"},
        {{"run", "job.cfg", "--seed=-1"}, "seed: expected an integer from 0 to 18446744073709551615, got '-1'"},
        {{"run", "job.cfg", "--temperature", "-1"}, "temperature: expected a number from 0 to 1e+06, got '-1'"},
        {{"run", "job.cfg", "--top-p=1.5"}, "top-p: expected a number above 0 and at most 1, got '1.5'"},
        {{"run", "job.cfg", "--verify=tokenswift"},
         "verify: expected coupled, rejection, multi-round, k-seq, recursive or tokenswift-paper, got 'tokenswift'"},
        {{"generate", "m"}, "prompt: expected one of --prompt and --prompt-file, got none"},
        {{"generate", "m", "--prompt=a", "--prompt-file=b"},
         "prompt: expected one of --prompt and --prompt-file, got both"},
        {{"generate", "m", "--prompt=a", "--prompt=b"}, "prompt: expected every option once, got this option again"},
        {{"generate", "m", "--prompt=\xFF"}, "prompt@0: expected UTF-8 text, got another encoding"},
        {{"generate", "m", "--prompt=a", "--data=x"},
         "data: expected a key that `longhaul generate` uses, got '--data'; see `longhaul generate --help`"},
        {{"bench", "nothing"},
         "bench: expected decode, verify, prefill, passes, attention, sampling, drafts, self, layers, speculation or "
         "all-reduce, got 'nothing'"},
        {{"bench", "all-reduce"}, "bench all-reduce: expected 2, 4 or 8 ranks, got 1; start it with `mpirun -n 2`"},
        {{"bench", "speculation", "--rounds=0"}, "rounds: expected a number from 1 to 1000, got '0'"},
        {{"bench", "verify", "--rows=0"}, "rows: expected a number from 1 to 65536, got '0'"},
        {{"bench", "decode", "--shape=2b"},
         "shape: expected 1.1b, 1.1b-window, 115m, 135m, 3b, 7b, 8b, deepseek-v2-lite, gemma3-1b, gpt-oss-20b, "
         "granite-4-h-micro, mistral-7b, nemotron-3-nano, qwen3-30b-a3b or "
         "qwen3.5-4b, got '2b'"},
        {{"bench", "speculation", "--acceptance=0.5,1.5"},
         "acceptance: expected numbers from 0 to 1, such as 0.5,0.7, got '0.5,1.5'"},
        {{"bench", "speculation", "--draft-shape=115m", "--draft=medusa"},
         "draft: expected a method over language models with a fixed draft-tree, got medusa with 3,3,3"},
        {{"bench", "speculation", "--draft=sd"},
         "draft: expected --draft-shape with it, got none; it names the draft model's shape"},
        {{"bench", "decode", "--draft-shape=115m"},
         "acceptance, draft-shape, draft: expected with bench speculation alone, got them with decode"},
        {{"inspect", "m", "--jsn"}, "unknown option '--jsn'; did you mean '--json'?"},
    };
    for (const Case& row : cases) {
        std::string shown;
        for (const std::string& argument : row.arguments) shown += argument + " ";
        const Ended ended = run(row.arguments);
        EXPECT_EQ(ended.err, "error: command line: " + row.message + "\n") << shown;
        EXPECT_EQ(ended.exit_code, 2) << shown;
        EXPECT_EQ(ended.out, "") << shown;
    }
}

TEST_F(Cli, BadJobFilesEndInOneLineAndCode2) {
    struct Case {
        std::string added;    // appended to a good job file of four lines
        std::string message;  // after "error: "
    };
    const Case cases[] = {
        {"temprature = 1", "job.cfg:5: unknown key 'temprature'; did you mean 'temperature'?"},
        {"seed = 1\nseed = 2",
         "job.cfg:6: seed: expected every key once, got this key again; it is at job.cfg:5 already"},
        {"seed =", "job.cfg:5: seed: expected a value, got nothing"},
        {"seed 7", "job.cfg:5: expected 'key = value', got 'seed 7'; a comment begins with #"},
        {"max-tokens = 99999999999",
         "job.cfg:5: max-tokens: expected an integer from 1 to 2147483647, got '99999999999'"},
        {"draft = lyana", "job.cfg:5: draft: expected " + values_of("draft") + ", got 'lyana'; did you mean 'lyanna'?"},
    };
    for (const Case& row : cases) {
        write("job.cfg", "task = prompts\ndata = p.jsonl\nmodel = m\noutput = out\n" + row.added + "\n");
        const Ended ended = run({"run", "job.cfg"});
        EXPECT_EQ(ended.err, "error: " + row.message + "\n") << row.added;
        EXPECT_EQ(ended.exit_code, 2) << row.added;
    }
    EXPECT_EQ(run({"run", "none.cfg"}).err,
              "error: none.cfg: expected a readable file, got No such file or directory\n");
    EXPECT_EQ(run({"run", "."}).err, "error: .: expected a file, got a folder\n");
    EXPECT_FALSE(fs::exists(folder_ / "out")) << "a job that is refused leaves nothing behind";
}

TEST_F(Cli, BadFilesEndInOneLineAndCode1) {
    fs::create_directories(folder_ / "m");
    const std::string at = folder_.string();
    struct Case {
        std::vector<std::string> arguments;
        std::string message;
    };
    write("not.h5", "no HDF5 at all");
    const Case cases[] = {
        {{"generate", "m", "--prompt=a"},
         "command line: model: expected the folder of a Hugging Face model, got '" + at +
             "/m', which has no config.json"},
        {{"generate", "m", "--prompt-file=none.txt"},
         "none.txt: expected a readable file, got No such file or directory"},
        {{"inspect", "m"}, "m/config.json: expected a readable file, got No such file or directory"},
    };
    for (const Case& row : cases) {
        const Ended ended = run(row.arguments);
        EXPECT_EQ(ended.err, "error: " + row.message + "\n");
        EXPECT_EQ(ended.exit_code, 1);
    }
    for (const auto& [path, got] :
         {std::pair{"nothere.h5", "a path that does not exist"}, {"p.jsonl", "another file"}}) {
        write("p.jsonl", "");
        const Ended none = run({"inspect", path});
        EXPECT_EQ(none.err, "error: " + std::string(path) +
                                ": expected a model folder, the folder of a draft layer, or a checkpoint file (.h5), "
                                "got " +
                                got + "\n");
    }
    const Ended checkpoint = run({"inspect", "not.h5"});
    EXPECT_EQ(checkpoint.exit_code, 1);
    EXPECT_TRUE(checkpoint.err.starts_with("error: not.h5: expected ")) << checkpoint.err;
    EXPECT_EQ(std::count(checkpoint.err.begin(), checkpoint.err.end(), '\n'), 1);
    fs::create_directories(folder_ / "run");
    write("run/job.cfg", "");
    const Ended run_folder = run({"inspect", "run"});
    EXPECT_EQ(run_folder.exit_code, 2);
    EXPECT_EQ(
        run_folder.err,
        "error: run: expected a model folder or a checkpoint file, got a run folder; `longhaul status` shows it\n");
}

TEST_F(Cli, HelpIsForNewcomers) {
    const Ended help = run({"--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_EQ(help.err, "");
    for (const CommandSyntax& command : command_table()) {
        EXPECT_NE(help.out.find("  " + command.name + " "), std::string::npos) << command.name;
        const Ended own = run({command.name, "--help"});
        EXPECT_EQ(own.exit_code, 0);
        EXPECT_TRUE(own.out.starts_with("longhaul " + command.name)) << own.out;
        EXPECT_NE(own.out.find(command.example), std::string::npos) << command.name;
        EXPECT_TRUE(run({"help", command.name}).out.ends_with(own.out)) << command.name;
        for (const CommandOption& option : command.options)
            EXPECT_NE(own.out.find("--" + option.name), std::string::npos);
    }
    EXPECT_LE(std::count(help.out.begin(), help.out.end(), '\n'), 75) << "a screen and a half";
    std::istringstream lines(help.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 130U) << line;
}

TEST_F(Cli, HelpExplainsEveryKeyAloneAndInItsSubject) {
    const std::string all = run({"help", "all"}).out;
    for (const KeyInfo& key : vocabulary()) {
        const Ended own = run({"help", key.key});
        EXPECT_EQ(own.exit_code, 0);
        EXPECT_TRUE(own.out.starts_with("  --" + key.key + "=")) << own.out;
        const std::string entry = own.out.substr(0, own.out.find("\nlonghaul "));  // `verify` is also a command
        EXPECT_NE(all.find(entry), std::string::npos) << key.key;
        const std::set<std::string> needed{"task", "data", "model", "output"};
        EXPECT_EQ(own.out.find("[must be given]") != std::string::npos, needed.contains(key.key)) << own.out;
    }
    const Ended drafting = run({"help", "drafting"});
    EXPECT_NE(drafting.out.find("  --draft-tree="), std::string::npos);
    EXPECT_EQ(drafting.out.find("  --temperature="), std::string::npos);
    const Ended two = run({"help", "temperature", "seed"});
    EXPECT_EQ(two.out, run({"help", "temperature"}).out + run({"help", "seed"}).out);
    EXPECT_NE(run({"--verson"}).err.find("; did you mean '--version'?\n"), std::string::npos);
    const Ended unknown = run({"help", "temprature"});
    EXPECT_EQ(unknown.exit_code, 2);
    EXPECT_NE(unknown.err.find("did you mean 'temperature'?"), std::string::npos) << unknown.err;
}

TEST_F(Cli, VersionSaysWhatThisIs) {
    const Ended version = run({"--version"});
    EXPECT_EQ(version.exit_code, 0);
    for (const char* part :
         {"longhaul ", "compiler: ", "build: ", "MPI: Open MPI", "HDF5: 1.", "reference", "CUDA: not built"}) {
        EXPECT_NE(version.out.find(part), std::string::npos) << part << " in " << version.out;
    }
}

TEST_F(Cli, InspectTellsAModelsShape) {
    const Ended table = run({"inspect", LONGHAUL_DEMO_MODEL});
    EXPECT_EQ(table.exit_code, 0) << table.err;
    for (const char* line : {"layers              8\n", "query heads         8\n", "kv heads            4\n",
                             "kv bytes per token  bf16 4096, fp32 8192\n", "scaling yarn"}) {
        EXPECT_NE(table.out.find(line), std::string::npos) << line << " in " << table.out;
    }
    const Ended json = run({"inspect", "--json", LONGHAUL_DEMO_MODEL});
    EXPECT_EQ(json.exit_code, 0) << json.err;
    EXPECT_NE(json.out.find("\"kv_heads\": 4"), std::string::npos) << json.out;
}

TEST_F(Cli, InspectTellsWhatIsSpecialAboutAModel) {
    const fs::path folder = folder_ / "model";
    fs::copy(LONGHAUL_DEMO_MODEL, folder);
    auto config = engine::read_json(folder / "config.json");
    const auto inspect = [&](const char* model_type, const char* class_name) {
        config["model_type"] = model_type;
        config["architectures"] = {class_name};
        fs::remove(folder / "config.json");
        std::ofstream(folder / "config.json") << config;
        return run({"inspect", folder.string()}).out;
    };
    config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
    const std::string nope = inspect("smollm3", "SmolLM3ForCausalLM");
    for (const char* row : {"\nquantization        gptq\n", "\nunrotated layers    2\n"})
        EXPECT_NE(nope.find(row), std::string::npos) << nope;
    config.update({{"hidden_size_per_layer_input", 0},
                   {"global_head_dim", 48},
                   {"num_global_key_value_heads", 2},
                   {"attention_k_eq_v", true}});
    const std::string heads = inspect("gemma4_text", "Gemma4ForCausalLM");
    EXPECT_NE(heads.find("kv_heads 2, head_dim 48"), std::string::npos) << heads;
    config["num_kv_shared_layers"] = 2;
    const std::string sharing = inspect("gemma4_text", "Gemma4ForCausalLM");
    for (const char* row : {"head_dim 48, sharing_kv 1", "\nkv bytes per token  bf16 2944, "})
        EXPECT_NE(sharing.find(row), std::string::npos) << sharing;
    config["num_kv_shared_layers"] = 0;
    config["kv_lora_rank"] = 64;
    config["first_k_dense_replace"] = 1;
    const std::string latent = inspect("deepseek_v3", "DeepseekV3ForCausalLM");
    for (const char* row : {"\nhead dim            128\n", "kv_rank 64", "best_groups 4"})
        EXPECT_NE(latent.find(row), std::string::npos) << latent;
}

TEST_F(Cli, InspectTellsADraftLayersShape) {
    const std::string demo = std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path().string();
    const std::pair<std::string, std::vector<const char*>> folders[] = {
        {demo + "/eagle", {"draft               eagle\n", "layout              EAGLE 1 and 2\n"}},
        {demo + "/lyanna", {"layout              lyanna\n", "token info rank     64\n", "hot tokens          all\n"}},
        {LONGHAUL_TEST_DATA "/eagle/eagle3-llama", {"layout              EAGLE-3\n", "draft vocab size    "}},
        {LONGHAUL_TEST_DATA "/eagle/speculators-qwen3", {"layout              EAGLE-3\n", "draft vocab size    "}}};
    for (const auto& [folder, lines] : folders) {
        const Ended table = run({"inspect", folder});
        EXPECT_EQ(table.exit_code, 0) << table.err;
        EXPECT_EQ(table.out.rfind("kind                draft layer\n", 0), 0U) << table.out;
        for (const char* line : lines)
            EXPECT_NE(table.out.find(line), std::string::npos) << line << " in " << table.out;
    }
    EXPECT_NE(run({"inspect", demo + "/lyanna"}).out.find("kv bytes per token  bf16 512, fp32 1024\n"),
              std::string::npos);
}

TEST_F(Cli, InspectTellsOfALayerForMultiTokenPrediction) {
    const fs::path folder = folder_ / "model";
    fs::copy(LONGHAUL_TEST_DATA "/mtp/qwen3-next", folder);
    fs::copy(fs::path(LONGHAUL_DEMO_MODEL) / "tokenizer.json", folder);
    auto config = engine::read_json(folder / "config.json");
    config["vocab_size"] = 4096;  // the tokenizer's
    fs::remove(folder / "config.json");
    std::ofstream(folder / "config.json") << config;
    EXPECT_NE(run({"inspect", "--json", folder}).out.find("\"mtp_layer\": true"), std::string::npos);
    EXPECT_EQ(run({"inspect", "--json", LONGHAUL_DEMO_MODEL}).out.find("mtp_layer"), std::string::npos);
}

TEST_F(Cli, InspectTellsWhatHeadsAre) {
    const std::string demo = std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path().string();
    for (const auto& [method, chained] : {std::pair{"medusa", "false"}, std::pair{"tokenswift", "true"}}) {
        const Ended table = run({"inspect", demo + "/" + method});
        EXPECT_EQ(table.exit_code, 0) << table.err;
        EXPECT_EQ(table.out.rfind("kind                draft heads\n", 0), 0U) << table.out;
        for (const std::string& line :
             {std::string("draft               ") + method + "\n", std::string("chained             ") + chained + "\n",
              std::string("heads               3\n"), std::string("hidden size         256\n"),
              "parameters          " + std::to_string(3 * (256 * 256 + 2 * 256)) + "\n"})
            EXPECT_NE(table.out.find(line), std::string::npos) << line << " in " << table.out;
    }
    EXPECT_NE(run({"inspect", "--json", demo + "/medusa"}).out.find("\"heads\": 3"), std::string::npos);
}

TEST_F(Cli, CheckTellsScriptsTheRunFolder) {
    const Ended own = run({"check", "job.cfg", "--print=output"});
    EXPECT_EQ(own.exit_code, 0) << own.err;
    EXPECT_TRUE(own.out.starts_with("/") && own.out.ends_with("/out\n")) << own.out;
    EXPECT_EQ(run({"check", "job.cfg", "--print", "output", "--output=/a/./it's b"}).out, "/a/it's b\n");
    EXPECT_EQ(run({"check", "job.cfg", "--print=tensor-parallel", "--tensor-parallel=4"}).out, "4\n");
    const Ended wrong = run({"check", "job.cfg", "--print=model"});
    EXPECT_EQ(wrong.exit_code, 2);
    EXPECT_EQ(wrong.err, "error: command line: print: expected output or tensor-parallel, got 'model'\n");
    EXPECT_EQ(run({"check", "job.cfg", "--print=output", "--sed=1"}).exit_code, 2);
}

TEST_F(Cli, CheckListsEverythingAndItsCodeIsTheGravest) {
    write("job.cfg", "task = prompts\ndata = p.jsonl\nmodel = " LONGHAUL_DEMO_MODEL "\noutput = out\nmax-tokens = 5\n");
    const Ended good = run({"check", "job.cfg"});
    EXPECT_EQ(good.exit_code, 0) << good.out << good.err;
    EXPECT_EQ(good.err, "");
    EXPECT_TRUE(good.out.ends_with("all good\n")) << good.out;
    for (const char* row :
         {"  model ", "  items ", "  prompt tokens ", "  new tokens ", "  memory per rank ", "  disk "})
        EXPECT_NE(good.out.find(row), std::string::npos) << row << good.out;
    const Ended many = run({"check", "job.cfg", "--batch=5000"});
    EXPECT_NE(many.out.find(" for the 1 longest item"), std::string::npos) << many.out;
    EXPECT_NE(many.out.find("  at 7 tokens "), std::string::npos) << many.out;
    EXPECT_EQ(many.out.find("  at 4,096 tokens "), std::string::npos) << many.out;
    EXPECT_NE(many.out.find(" for 1 item of up to 7 tokens, 1 at a time "), std::string::npos) << many.out;
    const Ended short_of_memory = run({"check", "job.cfg", "--memory=1000"});
    EXPECT_EQ(short_of_memory.exit_code, 0);
    EXPECT_TRUE(short_of_memory.out.ends_with("kv-precision = int8\ncan run, with 1 warning\n")) << short_of_memory.out;
    const Ended gpu = run({"check", "job.cfg", "--device=gpu"});
    EXPECT_TRUE(gpu.out.find("got 'gpu'; did you mean 'cuda'?") != std::string::npos) << gpu.out << gpu.err;
    const Ended wmt = run({"check", "job.cfg", "--task=wmt"});
    EXPECT_NE(wmt.out.find("got nothing, the line has 'prompt'; column = source=NAME names another"), std::string::npos)
        << wmt.out << wmt.err;
    write("p.jsonl", "{\"prompt\": \"a\\u001b[31mb\"}\n");
    EXPECT_NE(run({"check", "job.cfg"}).out.find("a\\x1b[31mb"), std::string::npos)
        << "not as the terminal would read it";
    std::string data;
    for (int i = 0; i < 30; ++i) data += "{\"prompt\": " + std::to_string(i) + "}\n";
    write("p.jsonl", data + "{\"prompt\": \"x\"}\n");
    const Ended some = run({"check", "job.cfg"});
    EXPECT_EQ(some.exit_code, 3);
    EXPECT_NE(some.out.find("p.jsonl:20: prompt: expected a string, got 19\nand 10 more: --json has all\n"),
              std::string::npos)
        << some.out;
    const Ended json = run({"check", "--json", "job.cfg"});
    EXPECT_EQ(json.exit_code, 3);
    EXPECT_NE(json.out.find("p.jsonl:30: prompt"), std::string::npos) << json.out;
    const Ended worse = run({"check", "job.cfg", "--seed=x", "--data=none"});
    EXPECT_EQ(worse.exit_code, 2);
    EXPECT_NE(worse.out.find("none: expected a readable file"), std::string::npos) << worse.out;
    EXPECT_NE(worse.out.find("cannot run: 2 faults\n"), std::string::npos) << worse.out;
    EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(Cli, GenerateStreamsOneTextAndKeepsStatisticsApart) {
    const std::vector<std::string> arguments{
        "generate",        LONGHAUL_DEMO_MODEL, "--prompt",    "It was a dark night",
        "--max-tokens=12", "--threads=1",       "--ignore-eos"};
    const Ended first = run(arguments);
    ASSERT_EQ(first.exit_code, 0) << first.err;
    EXPECT_GT(first.out.size(), 12U);
    EXPECT_NE(first.err.find("longhaul: 12 tokens in "), std::string::npos) << first.err;
    EXPECT_EQ(run(arguments).out, first.out) << "one seed, one text";
    auto other = arguments;
    other.push_back("--draft=ar");
    EXPECT_EQ(run(other).out, first.out) << "whatever the draft";
    other.back() = "--chat-template=llama2";
    EXPECT_NE(run(other).err.find("note: chat-template has no effect: "), std::string::npos);
    other.back() = "--seed=2";
    EXPECT_NE(run(other).out, first.out) << "the seed must matter, or the two above show nothing";
}

TEST_F(Cli, GenerateReadsAPromptFromStandardInput) {
    std::vector<std::string> arguments{"generate",       LONGHAUL_DEMO_MODEL, "--prompt=It was a dark night",
                                       "--max-tokens=8", "--threads=1",       "--ignore-eos"};
    const Ended given = run(arguments);
    ASSERT_EQ(given.exit_code, 0) << given.err;
    for (const char* name : {"-", "/dev/stdin"}) {
        arguments[2] = std::string("--prompt-file=") + name;
        write("stdin", "It was a dark night");
        const Ended read = run(arguments);
        EXPECT_EQ(read.out, given.out) << name << read.err;
        write("stdin", "caf\xE9");
        EXPECT_EQ(run(arguments).err, "error: standard input: @3: expected UTF-8 text, got byte \\xe9\n") << name;
    }
}

TEST_F(Cli, BenchExplainsAPassByItsParts) {
    const Ended ended = run({"bench", "prefill", "--rows=64", std::string("--model=") + LONGHAUL_DEMO_MODEL,
                             "--explain", "--json", "--threads=1"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const auto json = nlohmann::json::parse(ended.out);
    const auto& pass = json.at("lines").at(0);
    double bytes = 0, shares = 0;
    for (const auto& part : json.at("parts").at(0)) {
        if (part.at("part") == "pass") continue;
        bytes += part.at("bytes_per_second").get<double>() * part.at("seconds").get<double>();
        shares += part.at("of_pass").get<double>();
    }
    const double passed = pass.at("bytes_per_second").get<double>() * pass.at("seconds").get<double>();
    EXPECT_NEAR(bytes / passed, 1, 0.02) << "the parts read what the pass reads";
    EXPECT_NEAR(shares, 1, 0.01) << "and take the time it takes";
}

TEST_F(Cli, BenchVerifyTakesRounds) {
    const Ended ended = run({"bench", "verify", std::string("--model=") + LONGHAUL_DEMO_MODEL, "--rows=2", "--rounds=2",
                             "--threads=1", "--json"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const auto lines = nlohmann::json::parse(ended.out).at("lines");
    ASSERT_EQ(lines.size(), 2U);
    for (const auto& line : lines) EXPECT_EQ(line.at("rows"), 2);
}

TEST_F(Cli, BenchSpeculationTakesRoundsAndATree) {
    std::vector<std::string> arguments{"bench",      "speculation",    std::string("--model=") + LONGHAUL_DEMO_MODEL,
                                       "--rounds=1", "--draft-tree=3", "--threads=1"};
    const Ended table = run(arguments);
    ASSERT_EQ(table.exit_code, 0) << table.err;
    EXPECT_EQ(std::count(table.out.begin(), table.out.end(), '\n'), 2 + 4) << table.out;
    EXPECT_EQ(table.out.find("speculation, shape "), 0U) << table.out;
    EXPECT_NE(table.out.find("medians of 1 rounds"), std::string::npos) << table.out;
    arguments.emplace_back("--json");
    const Ended json = run(arguments);
    ASSERT_EQ(json.exit_code, 0) << json.err;
    double before = 0;
    const auto lines = nlohmann::json::parse(json.out).at("lines");
    ASSERT_EQ(lines.size(), 4U);
    for (const auto& line : lines) {
        EXPECT_EQ(line.at("tree"), "3");
        EXPECT_EQ(line.at("same_text"), true);
        EXPECT_GE(line.at("block_efficiency"), before) << "more accepted, more tokens per call";
        before = line.at("block_efficiency").get<double>();
    }
    EXPECT_GT(before, 2);
}

TEST_F(Cli, BenchSpeculationTimesADraftModel) {
    const Ended ended =
        run({"bench", "speculation", std::string("--model=") + LONGHAUL_DEMO_MODEL, "--draft-shape=115m",
             "--draft=rsd-s", "--draft-tree=2x3", "--acceptance=0,0.9", "--rounds=1", "--threads=1", "--json"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const auto lines = nlohmann::json::parse(ended.out).at("lines");
    ASSERT_EQ(lines.size(), 2U);
    EXPECT_EQ(lines.at(0).at("block_efficiency"), 1) << "nothing is accepted";
    EXPECT_GT(lines.at(1).at("block_efficiency"), 2.5) << "3.44 in the mean";
    EXPECT_LE(lines.at(1).at("block_efficiency"), 4);
    for (const auto& line : lines) {
        EXPECT_GT(line.at("ratio"), 1) << "this draft model is larger than its target";
        EXPECT_GT(line.at("draft_seconds"), line.at("target_seconds")) << "three passes of it";
    }
}

// An error that only the model can reveal is reported before the run folder is bound to the job, and `check` finds it,
// too.
TEST_F(Cli, ARefusedWindowLeavesTheRunFolderFree) {
    write("c.jsonl", "{\"prompt\": \"It was\", \"continuation\": \" a dark night\"}\n");
    std::vector<std::string> arguments{
        "check",          "job.cfg",           std::string("--model=") + LONGHAUL_DEMO_MODEL,
        "--data=c.jsonl", "--mode=perplexity", "--window=200000"};
    EXPECT_EQ(run(arguments).exit_code, 2);
    arguments[0] = "run";
    const Ended refused = run(arguments);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_NE(refused.err.find("window: expected at most 131072 tokens, got 200000"), std::string::npos) << refused.err;
    arguments.back() = "--window=64";
    const Ended done = run(arguments);
    EXPECT_EQ(done.exit_code, 0) << done.err;
    EXPECT_NE(done.out.find("bits per byte"), std::string::npos) << done.out;
}

TEST_F(Cli, StatusSaysWhyALaunchFailed) {
    const Ended failed = run({"run", "job.cfg"});
    EXPECT_EQ(failed.exit_code, 1);
    const std::string why = failed.err.substr(0, failed.err.find('\n')).substr(std::string("error: ").size());
    EXPECT_TRUE(why.starts_with("job.cfg:3: model: expected the folder of a Hugging Face model, got ")) << failed.err;
    EXPECT_NE(slurp(folder_ / "out/log/1.log").find(" error: " + why + "\n"), std::string::npos);
    const Ended table = run({"status", "out"});
    EXPECT_NE(table.out.find("\nprogress  0 items done\nerror     " + why +
                             "\nnext      fix this, then run the same command again\n"),
              std::string::npos)
        << table.out;
    const auto json = nlohmann::json::parse(run({"status", "out", "--json"}).out);
    EXPECT_EQ(json.at("ending"), nlohmann::json({{"state", "failed"}, {"exit_code", 1}, {"error", why}}));
}

TEST_F(Cli, OutputsHaveTheirFormat) {
    write("answer.json",
          R"({"properties": {"b": {"type": "boolean"}, "a": {"enum": ["x", "y"]}}, "required": ["b", "a"]})");
    write("p.jsonl", "{\"prompt\": \"x\"}\n{\"prompt\": \"y\", \"options\": {\"choice\": [\"left\", \"right\"]}}\n");
    const std::string model = std::string("--model=") + LONGHAUL_DEMO_MODEL;
    ASSERT_EQ(run({"run", "job.cfg", model, "--json-schema=answer.json", "--max-tokens=400", "--threads=1"}).exit_code,
              0);
    std::istringstream results(slurp(folder_ / "out/results.jsonl"));
    std::string first, second;
    std::getline(results, first);
    std::getline(results, second);
    const auto answer = nlohmann::json::parse(nlohmann::json::parse(first).at("text").get<std::string>());
    EXPECT_TRUE(answer.at("b").is_boolean());
    EXPECT_TRUE(answer.at("a") == "x" || answer.at("a") == "y");
    EXPECT_EQ(nlohmann::json::parse(first).at("finish_reason"), "stop");
    const std::string choice = nlohmann::json::parse(second).at("text");
    EXPECT_TRUE(choice == "left" || choice == "right") << choice;
    const Ended text =
        run({"generate", LONGHAUL_DEMO_MODEL, "--prompt=x", "--regex=[a-z]{4}( [a-z]{2}){3}", "--threads=1"});
    EXPECT_EQ(text.exit_code, 0) << text.err;
    EXPECT_EQ(text.out.size(), 4U + 9 + 1) << text.out;
}

TEST_F(Cli, AnswersFollowTheReasoning) {
    write("p.jsonl", "{\"prompt\": \"Once\"}\n{\"prompt\": \"He said so:\"}\n");
    const std::string model = std::string("--model=") + LONGHAUL_DEMO_MODEL;
    const std::vector<std::string> arguments{
        "run",           "job.cfg",        model,        "--reasoning-end= so:", "--max-reasoning-tokens=30",
        "--choice=left", "--choice=right", "--threads=1"};
    const auto with = [&](std::vector<std::string> more) {
        more.insert(more.begin(), arguments.begin(), arguments.end());
        return run(more);
    };
    ASSERT_EQ(with({"--max-tokens=50"}).exit_code, 0);
    std::istringstream results(slurp(folder_ / "out/results.jsonl"));
    for (const bool reasons : {true, false}) {
        std::string line;
        std::getline(results, line);
        const auto result = nlohmann::json::parse(line);
        const std::string answer = result.at("answer"), text = result.at("text");
        EXPECT_TRUE(answer == "left" || answer == "right") << answer;
        EXPECT_TRUE(text.ends_with(answer));
        EXPECT_EQ(text.find(" so:") != std::string::npos, reasons) << text << ": the second prompt ends with it";
        EXPECT_EQ(text.size() > 40, reasons) << text;
        EXPECT_EQ(result.at("finish_reason"), "stop");
    }
    const Ended ended = with({"--max-tokens=1", "--output=short"});
    ASSERT_EQ(ended.exit_code, 0);
    EXPECT_NE((ended.out + ended.err).find("without answer    1 item: the reasoning has no end"), std::string::npos)
        << ended.out << ended.err;
    EXPECT_NE(slurp(folder_ / "short/results.jsonl").find("\"answer\":null,"), std::string::npos);
}

TEST_F(Cli, OneItemIsNotSeveral) {
    const std::vector<std::string> arguments{"run", "job.cfg", std::string("--model=") + LONGHAUL_DEMO_MODEL,
                                             "--max-tokens=2", "--threads=1"};
    ASSERT_EQ(run(arguments).exit_code, 0);
    EXPECT_NE(run(arguments).err.find("longhaul: the one item is done already\n"), std::string::npos);
    auto part = arguments;
    part.insert(part.end(), {"--shard=0/2", "--output=parts"});
    write("p.jsonl", "{\"prompt\": \"x\"}\n{\"prompt\": \"y\"}\n");
    ASSERT_EQ(run(part).exit_code, 0);
    const std::string status = run({"status", "parts"}).out;
    EXPECT_NE(status.find("progress  1 item, "), std::string::npos) << status;
    EXPECT_NE(status.find("finished 1 of 1 item\n"), std::string::npos) << status;
}

}  // namespace
}  // namespace longhaul::runner
