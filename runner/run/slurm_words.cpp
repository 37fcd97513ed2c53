// Slurm's job states and pending reasons, as listed in squeue's manual, with their meanings (slurm.hpp).
#include <algorithm>

#include "runner/run/slurm.hpp"

namespace longhaul::runner {

const std::vector<SlurmWord>& slurm_states() {
    static const std::vector<SlurmWord> states{
        {"BOOT_FAIL", "BF", "its nodes could not be started"},
        {"CANCELLED", "CA", "cancelled by its user or an administrator"},
        {"COMPLETED", "CD", "ended with exit code 0"},
        {"CONFIGURING", "CF", "has nodes, which are being made ready"},
        {"COMPLETING", "CG", "ends just now"},
        {"DEADLINE", "DL", "ended at its deadline"},
        {"FAILED", "F", "ended with an exit code other than 0"},
        {"LAUNCH_FAILED", "LF", "could not be started on its nodes"},
        {"NODE_FAIL", "NF", "one of its nodes failed"},
        {"OUT_OF_MEMORY", "OOM", "took more memory than it requested"},
        {"PENDING", "PD", "waits in the queue"},
        {"POWER_UP_NODE", "PU", "has nodes, which are being switched on"},
        {"PREEMPTED", "PR", "gave way to a job of higher priority"},
        {"RECONFIG_FAIL", "RC", "its nodes could not be set up as it wants them"},
        {"REQUEUED", "RQ", "goes back into the queue"},
        {"REQUEUE_FED", "RF", "goes back into the queue of another cluster"},
        {"REQUEUE_HOLD", "RH", "goes back into the queue and is held there: scontrol release JOB"},
        {"RESIZING", "RS", "changes its size"},
        {"RESV_DEL_HOLD", "RD", "held, since its reservation was deleted"},
        {"REVOKED", "RV", "started on another cluster"},
        {"RUNNING", "R", "has its nodes"},
        {"SIGNALING", "SI", "is sent a signal"},
        {"SPECIAL_EXIT", "SE", "held for its exit code: scontrol release JOB"},
        {"STAGE_OUT", "SO", "its files are copied out"},
        {"STOPPED", "ST", "stopped by a signal; keeps its processors"},
        {"SUSPENDED", "S", "suspended; its processors are lent to others"},
        {"TIMEOUT", "TO", "ended at its time limit"},
    };
    return states;
}

const std::vector<SlurmWord>& slurm_reasons() {
    static const std::vector<SlurmWord> reasons{
        {"AccountNotAllowed", "", "its account may not use this partition"},
        {"AssocGrp*", "", "its account is at a limit for all of its jobs"},
        {"AssocMax*", "", "requests more than its account allows per job"},
        {"AssociationJobLimit", "", "its account has as many jobs as it may"},
        {"AssociationResourceLimit", "", "its account is at a limit"},
        {"AssociationTimeLimit", "", "its account has no time left"},
        {"BadConstraints", "", "no node can satisfy its request"},
        {"BeginTime", "", "not to start yet; after a requeue that takes two minutes"},
        {"BurstBufferOperation", "", "a burst buffer operation failed"},
        {"BurstBufferResources", "", "waits for room in a burst buffer"},
        {"BurstBufferStageIn", "", "its files are copied in"},
        {"Cleaning", "", "requeued, and its last attempt is being cleaned up"},
        {"DeadLine", "", "cannot end before its deadline"},
        {"Dependency", "", "waits for another job"},
        {"DependencyNeverSatisfied", "", "waits for a job that will not end as it must: cancel it"},
        {"FedJobLock", "", "another cluster decides on it"},
        {"FrontEndDown", "", "no front-end node works"},
        {"InactiveLimit", "", "was idle for too long"},
        {"InvalidAccount", "", "its account does not exist"},
        {"InvalidQOS", "", "its quality of service does not exist"},
        {"JobArrayTaskLimit", "", "as many tasks of the array run as may at a time"},
        {"JobHeldAdmin", "", "held by an administrator"},
        {"JobHeldUser", "", "held by its user: scontrol release JOB"},
        {"JobLaunchFailure", "", "could not be started: see the log of the node"},
        {"JobHoldMaxRequeue", "", "held: requeued as often as the site allows: scontrol release JOB"},
        {"Licenses", "", "waits for a license"},
        {"MaxMemPerLimit", "", "requests more memory than the site allows"},
        {"NodeDown", "", "a node it needs is down"},
        {"NonZeroExitCode", "", "ended with an exit code other than 0"},
        {"OutOfMemory", "", "took more memory than it requested"},
        {"PartitionConfig", "", "requests what the partition does not have"},
        {"PartitionDown", "", "the partition takes no jobs at the moment"},
        {"PartitionInactive", "", "the partition starts no jobs at the moment"},
        {"PartitionNodeLimit", "", "requests more nodes than the partition gives, or some are down"},
        {"PartitionTimeLimit", "", "requests more time than the partition gives"},
        {"Priority", "", "jobs of higher priority come first"},
        {"Prolog", "", "the site's preparations are not done"},
        {"QOSGrp*", "", "its quality of service is at a limit for all of its jobs"},
        {"QOSJobLimit", "", "its quality of service has as many jobs as it may"},
        {"QOSMax*", "", "requests more than its quality of service allows"},
        {"QOSMin*", "", "requests less than its quality of service demands"},
        {"QOSNotAllowed", "", "its quality of service may not be used here"},
        {"QOSResourceLimit", "", "its quality of service is at a limit"},
        {"QOSTimeLimit", "", "its quality of service has no time left"},
        {"QOSUsageThreshold", "", "its use is above what its quality of service starts jobs at"},
        {"RaisedSignal", "", "ended by a signal"},
        {"ReqNodeNotAvail", "", "a node it needs is busy, reserved or down"},
        {"Reservation", "", "waits for its reservation to begin"},
        {"Resources", "", "waits for nodes that are free: it is next"},
        {"SchedDefer", "", "the scheduler has not looked at it yet"},
        {"SystemFailure", "", "Slurm, a file system or the network failed"},
        {"TimeLimit", "", "ended at its time limit"},
    };
    return reasons;
}

const SlurmWord* find_state(std::string_view word) {
    const auto& states = slurm_states();
    const auto at = std::find_if(states.begin(), states.end(),
                                 [&](const SlurmWord& state) { return state.name == word || state.compact == word; });
    return at == states.end() ? nullptr : &*at;
}

const SlurmWord* find_reason(std::string_view word) {
    const auto is = [&](const SlurmWord& reason) {
        const bool family = reason.name.ends_with('*');
        return family ? word.starts_with(reason.name.substr(0, reason.name.size() - 1)) : reason.name == word;
    };
    const auto& reasons = slurm_reasons();
    const auto at = std::find_if(reasons.begin(), reasons.end(), is);
    return at == reasons.end() ? nullptr : &*at;
}

}  // namespace longhaul::runner
