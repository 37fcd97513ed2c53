// The record that a launch writes when it takes a run folder: RUN/launches/EPOCH.json (lease.hpp).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runner/host/process.hpp"
#include "runner/run/slurm.hpp"

namespace longhaul::runner {

struct LeaseRecord {
    std::int64_t epoch = 0;
    ProcessId holder;
    std::string started;  ///< UTC, ISO 8601
    double lease_seconds = 30;
    SlurmRecord slurm;  ///< the Slurm job it runs under; empty outside Slurm
    /// result file of an earlier launch -> number of its bytes that count
    std::map<std::string, std::int64_t> accepted;
};

}  // namespace longhaul::runner
