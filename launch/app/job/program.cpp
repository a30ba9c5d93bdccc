#include "launch/app/job/program.h"

#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>
#include <utility>

#include "launch/app/job/launchers.h"
#include "runtime/core/error.h"
#include "runtime/core/files/writable.h"
#include "runtime/core/process/signal_requests.h"
#include "runtime/core/text.h"

namespace ddptrain {

namespace {

/// A rank that has died makes others fail at once. In this time mpirun sees it, ends the others, and names it.
constexpr std::chrono::seconds kLauncherTellsFirst{1};

}  // namespace

int run_program(const char* name, int* argc, char*** argv, const std::function<void()>& prepare,
                const std::function<void(const World&)>& work, std::shared_ptr<Watch> watch,
                const std::function<bool()>& needs_ranks) {
  shorten_mpi_start();
  const Launch launch = find_launch(name);
  std::exception_ptr mistake;
  try {
    prepare();
  } catch (...) {
    mistake = std::current_exception();
  }
  const bool with_mpi = launch.by_launcher || (!mistake && needs_ranks());
  try {
    const World world = with_mpi ? World(argc, argv, std::move(watch)) : World(std::move(watch));
    try {
      run_or_end_job(name, world, [&] {
        world.agree([&] {
          if (mistake) std::rethrow_exception(mistake);
          if (world.size() == 1 && !launch.mistake.empty() && needs_ranks()) usage_error("{}", launch.mistake);
        });
        work(world);
        world.agree(require_output_written);
      });
      return 0;
    } catch (const Error& error) {  // agreed
      if (world.rank() == 0) std::fprintf(stderr, "%s: %s\n", name, without_controls(error.what()).c_str());
      if (const auto* ended = dynamic_cast<const EndedBySignal*>(&error)) return ended->exit_code();
      return dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: MPI does not start: %s\n", name, one_line(error.what()).c_str());
    return 1;
  }
}

void run_or_end_job(const char* name, const World& world, const std::function<void()>& part) {
  try {
    part();
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    if (known != nullptr && known->agreed()) throw;
    std::fprintf(stderr, "%s: error on rank %d (%s): %s\n", name, world.rank(), world.hostname().c_str(),
                 without_controls(error.what()).c_str());
    std::fflush(stderr);
    if (world.size() > 1) std::this_thread::sleep_for(kLauncherTellsFirst);
    world.abort(1);
  }
}

}  // namespace ddptrain
