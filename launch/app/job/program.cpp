#include "launch/app/job/program.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/process/signal_requests.h"

namespace ddptrain {

namespace {

/// A rank that has died makes others fail at once. In this time mpirun sees it, ends the others, and names it.
constexpr std::chrono::seconds kLauncherTellsFirst{1};

/// For a job of one rank. The mpirun of another MPI makes each rank such a job, and all of them train the same.
void check_that_no_more_were_started() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* ranks = std::getenv(name);
    if (ranks == nullptr || std::atoi(ranks) <= 1) continue;
    usage_error("{}={}, but {} knows one rank: mpirun belongs to another MPI. Use the mpirun of the program's MPI",
                name, ranks, mpi_version());
  }
}

}  // namespace

int run_program(const char* name, int* argc, char*** argv, const std::function<void()>& prepare,
                const std::function<void(const World&)>& work, std::shared_ptr<Watch> watch) {
  shorten_mpi_start();
  std::exception_ptr mistake;
  try {
    prepare();
  } catch (...) {
    mistake = std::current_exception();
  }
  try {
    const World world(argc, argv, std::move(watch));
    try {
      run_or_end_job(name, world, [&] {
        world.agree([&] {
          if (world.size() == 1) check_that_no_more_were_started();
          if (mistake) std::rethrow_exception(mistake);
        });
        work(world);
      });
      return 0;
    } catch (const Error& error) {  // agreed
      if (world.rank() == 0) std::fprintf(stderr, "%s: %s\n", name, error.what());
      if (const auto* ended = dynamic_cast<const EndedBySignal*>(&error)) return ended->exit_code();
      return dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: MPI does not start: %s\n", name, error.what());
    return 1;
  }
}

void run_or_end_job(const char* name, const World& world, const std::function<void()>& part) {
  try {
    part();
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    if (known != nullptr && known->agreed()) throw;
    std::fprintf(stderr, "%s: error on rank %d (%s): %s\n", name, world.rank(), world.hostname().c_str(), error.what());
    std::fflush(stderr);
    if (world.size() > 1) std::this_thread::sleep_for(kLauncherTellsFirst);
    world.abort(1);
  }
}

}  // namespace ddptrain
