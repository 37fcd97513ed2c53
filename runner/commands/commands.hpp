// What `longhaul COMMAND …` runs. Each function gets the arguments after the command's name and returns the exit code;
// expected errors are thrown (longhaul::Error) and printed once by main. `--help` never reaches them.
//
// Only `run`, `sweep` and, under a launcher, `bench` start MPI, and they do so themselves: the others must work on a
// login node (style.md 5).
#pragma once

#include <string>
#include <vector>

namespace longhaul::runner {

int run_command(const std::vector<std::string>& arguments);       // commands/run.cpp
int sweep_command(const std::vector<std::string>& arguments);     // commands/sweep.cpp
int status_command(const std::vector<std::string>& arguments);    // commands/status.cpp
int results_command(const std::vector<std::string>& arguments);   // commands/results.cpp
int generate_command(const std::vector<std::string>& arguments);  // commands/generate.cpp
int inspect_command(const std::vector<std::string>& arguments);   // commands/inspect.cpp
int check_command(const std::vector<std::string>& arguments);     // commands/check.cpp
int bench_command(const std::vector<std::string>& arguments);     // commands/bench.cpp

}  // namespace longhaul::runner
