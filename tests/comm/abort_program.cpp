// For the test `comm_abort`: the last rank throws while the others wait for it; main does as a program's main should.
#include <cstdio>
#include <exception>

#include "runtime/comm/world.h"
#include "runtime/core/error.h"

int main(int argc, char** argv) {
  ddptrain::shorten_mpi_start();
  ddptrain::World world(&argc, &argv);
  try {
    if (world.rank() == world.size() - 1) ddptrain::fail("the last rank has had enough");
    for (;;) world.quiet_barrier();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d (%s): %s\n", world.rank(), world.hostname().c_str(), error.what());
    world.abort(3);
  }
}
