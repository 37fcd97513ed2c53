// A rank of a tensor-parallel group that has no memory, while the others wait for it in a collective: the launch must
// end with its error line. `mpirun -n 2 agree_test`
#include <mpi.h>

#include <new>

#include "runner/host/world.hpp"

int main() {
    using namespace longhaul::runner;
    World world;
    world.split(world.size());
    return exit_code_of_ranks([&] {
        world.agree_on_collective([&] {
            if (world.rank() == 1) throw std::bad_alloc();
            MPI_Barrier(world.replica_comm());
        });
        return 0;
    });
}
