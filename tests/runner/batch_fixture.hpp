// Batch files of OpenAI's API, and answers of runs whose results are written by hand.
#pragma once

#include <string>
#include <vector>

#include "runner/data/batch_requests.hpp"
#include "runner/run/batch_answers.hpp"
#include "runner/run/lease.hpp"
#include "runner/run/run_folder.hpp"
#include "tests/runner/dataset_fixture.hpp"

namespace longhaul::runner {

/// A line of the batch file; `fields` follow the model in the body.
inline std::string request(const std::string& id, const std::string& url, const std::string& fields) {
    return R"({"custom_id": ")" + id + R"(", "method": "POST", "url": "/v1/)" + url + R"(", "body": {"model": "m")" +
           fields + "}}\n";
}
inline std::string completion(const std::string& id, const std::string& fields = "") {
    return request(id, "completions", R"(, "prompt": "x")" + fields);
}
inline std::string chat(const std::string& id, const std::string& fields = "") {
    return request(id, "chat/completions", R"(, "messages": [{"role": "user", "content": "Hi"}])" + fields);
}

class BatchTest : public DataSetTest {
  protected:
    Settings job(const std::string& lines) {
        Settings job = settings("openai-batch", write("b.jsonl", lines));
        job.model = folder_ / "model";
        job.chat_template = "qwen2.5";
        fs::create_directories(job.model);
        return job;
    }
};

/// Answers of a run whose results are written here by hand.
class BatchAnswersTest : public BatchTest {
  protected:
    fs::path run_ = folder_ / "run";

    void record(const std::vector<ResultRecord>& records) {
        RunFolder{run_}.create();
        const Lease lease = Lease::take(run_, 30);
        ResultWriter writer(run_, 0, lease.epoch(), {}, {});
        for (const ResultRecord& of : records) writer.append(of, {}, of.key.index);
        writer.sync();
        lease.end({{"state", "stopped"}});
    }

    std::vector<nlohmann::json> answers(const Settings& settings) {
        std::vector<nlohmann::json> lines;
        each_batch_answer(ResultIndex::read(run_), settings,
                          [&](const std::string& line) { lines.push_back(nlohmann::json::parse(line)); });
        return lines;
    }
};

}  // namespace longhaul::runner
