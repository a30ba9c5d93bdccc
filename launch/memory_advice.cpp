#include "launch/memory_advice.h"

#include <new>
#include <string>
#include <vector>

#include "launch/describe.h"
#include "runtime/core/out_of_memory.h"

namespace ddptrain {

namespace {

/// The table of --dry-run; empty where not even that finds room.
std::string what_a_rank_keeps(const Options& options, Workload& workload, const World& world, DeviceKind device) {
  try {
    return describe_on_paper(options, {}, workload, world.rank(), world.size(), device).table();
  } catch (const std::exception&) {
    return {};
  }
}

std::string flags_that_help(const Options& options, const Workload& workload, int world_size) {
  const TrainerOptions& trainer = options.trainer;
  std::vector<std::string> flags;
  if (trainer.batch % 2 == 0) {
    flags.push_back(fmt::format("--batch {} --grad-accum {} (half the activations, the same samples per step)",
                                trainer.batch / 2, 2 * trainer.grad_accum));
  } else if (trainer.batch > 1) {
    flags.push_back("a smaller --batch with a larger --grad-accum");
  }
  if (const std::string of_model = workload.flags_that_save_memory(); !of_model.empty()) flags.push_back(of_model);
  if (!trainer.zero && world_size > 1 && !rule_of(trainer.optimizer.kind).whole_parameters) {
    flags.push_back("--zero 1 (master weights and moments divided among the ranks)");
  }
  if (flags.empty()) flags.push_back("a smaller model");
  return fmt::format("{}", fmt::join(flags, "; "));
}

}  // namespace

void explain_out_of_memory(const Options& options, Workload& workload, const World& world, DeviceKind device,
                           const std::function<void()>& work) {
  std::string what;
  try {
    return work();
  } catch (const OutOfMemory& error) {
    what = error.what();
  } catch (const std::bad_alloc&) {
    what = "the host is out of memory";
  }
  const std::string table = what_a_rank_keeps(options, workload, world, device);
  const std::string kept = table.empty() ? "" : "A rank keeps on its device, beside what libraries take:\n" + table;
  throw OutOfMemory(fmt::format("{}. {}Less memory is needed with {}.", what, kept,
                                flags_that_help(options, workload, world.size())));
}

}  // namespace ddptrain
