#include <spdlog/spdlog.h>

#include <cstdio>
#include <exception>
#include <new>
#include <utility>

#include "benchmarks/ddpbench/options.h"
#include "benchmarks/ddpbench/session.h"
#include "launch/app/job/launchers.h"
#include "runtime/comm/world.h"
#include "runtime/core/error.h"
#include "runtime/core/files/writable.h"
#include "runtime/core/log.h"
#include "runtime/core/text.h"

using namespace ddptrain;

namespace {

std::pair<bench::CommandLine, std::exception_ptr> read_command_line(int argc, char** argv) {
  try {
    return {bench::parse_command_line(argc, argv), nullptr};
  } catch (...) {
    return {bench::CommandLine{}, std::current_exception()};
  }
}

/// UsageError or a warning about processes that MPI has not connected, if this one knows no other.
void check_launch(const Launch& launch, const bench::Task& task) {
  const bool is_mistake = !launch.mistake.empty();
  if (is_mistake && bench::needs_ranks(task)) usage_error("{}", launch.mistake);
  const std::string& text = is_mistake ? launch.mistake : launch.warning;
  if (!text.empty()) spdlog::warn("{}", text);
}

/// One subcommand for each kind of options.
struct Run {
  const World& world;
  const bench::CommonOptions& common;
  int& exit_code;

  void operator()(const bench::P2pOptions& options) const { bench::run_p2p(world, common, options); }
  void operator()(const bench::AllreduceOptions& options) const { bench::run_allreduce(world, common, options); }
  void operator()(const bench::SplitOptions& options) const { bench::run_split(world, common, options); }
  void operator()(const bench::OverlapOptions& options) const { bench::run_overlap(world, common, options); }
  void operator()(const bench::GemmOptions& options) const { bench::run_gemm(world, common, options); }
  void operator()(const bench::MemoryOptions& options) const { bench::run_memory(world, common, options); }
  void operator()(const bench::DoctorOptions& options) const { exit_code = bench::run_doctor(world, common, options); }
  void operator()(const bench::StepOptions& options) const { bench::run_step(world, common, options); }
};

}  // namespace

int main(int argc, char** argv) {
  shorten_mpi_start();
  const Launch launch = find_launch("ddpbench");
  const auto [command_line, mistake] = read_command_line(argc, argv);
  if (command_line.common.share_gpu) let_ranks_share_gpus();
  World world(&argc, &argv);
  int exit_code = 0;
  try {
    if (mistake) std::rethrow_exception(mistake);
    if (command_line.print) {
      bench::print(world, *command_line.print);
    } else {
      init_logging("warn", world.rank());
      if (world.size() == 1) check_launch(launch, command_line.task);
      std::visit(Run{world, command_line.common, exit_code}, command_line.task);
    }
    require_output_written();
  } catch (const UsageError& error) {  // the same on every rank
    if (world.rank() == 0) std::fprintf(stderr, "ddpbench: %s\n", without_controls(error.what()).c_str());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "ddpbench: not enough memory on %s: give smaller sizes\n", world.hostname().c_str());
    std::fflush(stderr);
    world.abort(2);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ddpbench: error on rank %d (%s): %s\n", world.rank(), world.hostname().c_str(),
                 without_controls(error.what()).c_str());
    std::fflush(stderr);
    world.abort(1);
  }
  return exit_code;
}
