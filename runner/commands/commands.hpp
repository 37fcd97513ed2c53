// Entry points of the commands `longhaul COMMAND …`, called by main.cpp. Each takes the arguments after the command
// name and returns the exit code. Expected errors are thrown as longhaul::Error, and main prints them once. main
// handles `--help` itself.
//
// Only `run`, `sweep` and, under a launcher, `bench` and `generate` start MPI, and they do so themselves: the other
// commands must work on a login node, where MPI cannot start.
#pragma once

#include <string>
#include <vector>

namespace longhaul::runner {

int run_command(const std::vector<std::string>& arguments);       // commands/run.cpp
int sweep_command(const std::vector<std::string>& arguments);     // commands/sweep.cpp
int status_command(const std::vector<std::string>& arguments);    // commands/status.cpp
int results_command(const std::vector<std::string>& arguments);   // commands/results.cpp
int generate_command(const std::vector<std::string>& arguments);  // commands/generate.cpp
int verify_command(const std::vector<std::string>& arguments);    // commands/verify.cpp
int inspect_command(const std::vector<std::string>& arguments);   // commands/inspect.cpp
int check_command(const std::vector<std::string>& arguments);     // commands/check.cpp
int bench_command(const std::vector<std::string>& arguments);     // commands/bench.cpp

}  // namespace longhaul::runner
