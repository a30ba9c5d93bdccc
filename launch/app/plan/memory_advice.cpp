#include "launch/app/plan/memory_advice.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "launch/app/flags/flag_table.h"
#include "launch/app/plan/description.h"
#include "launch/app/plan/resolve.h"
#include "runtime/core/error.h"
#include "runtime/core/process/host.h"
#include "runtime/core/text.h"
#include "runtime/device/device.h"
#include "runtime/ops/meta_device.h"

namespace ddptrain {
namespace {

constexpr double kMargin = 0.05;  // of what is free

/// What only libraries allocate, by measurements on other machines, and by the sources of cudnn-frontend.
std::size_t estimated_of(const Description& kept) {
  std::size_t bytes = 0;
  for (const MemoryUse& use : kept.memory) {
    const std::string_view purpose = use.purpose;
    if (purpose == "libraries" || purpose == "messages" || purpose == "cuDNN") bytes += use.bytes;
  }
  return bytes;
}

/// Memory that one rank can take.
struct Room {
  std::size_t bytes;
  std::string text;

  bool fits(std::size_t kept) const {
    return static_cast<double>(kept) <= (1.0 - kMargin) * static_cast<double>(bytes);
  }
  /// A part of the libraries' memory is taken already.
  bool lacks(const Description& kept) const { return kept.device_bytes() - estimated_of(kept) > bytes; }
};

Room room_of(const World& world, DeviceKind device, int sharing) {
  const bool cuda = device == DeviceKind::cuda;
  const std::size_t all = cuda ? free_gpu_memory() : available_host_memory();
  const int ranks = cuda ? sharing : world.local_size();
  const std::size_t each = all / static_cast<std::size_t>(ranks);
  const std::string shares = ranks > 1 ? fmt::format(" for {} ranks, {} for each", ranks, size_text(each)) : "";
  return {each,
          fmt::format("{} are free on {}{}", size_text(all), cuda ? "its GPU" : world.hostname().c_str(), shares)};
}

/// The result of `work`, which uses a meta device. Nothing if even the address space is too small.
template <class Work>
auto if_addressable(const Work& work) -> std::optional<decltype(work())> {
  try {
    return work();
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::optional<Description> describe(const RunPlan& plan, int rank, Workload& workload) {
  return if_addressable([&] { return describe_on_meta(plan, workload, rank); });
}

/// Empty if weights and gradients alone fit, if all replicas divide them; otherwise what they would take, and what to
/// do.
std::string lack_for_weights(const Room& room, const RunPlan& plan, Workload& workload) {
  const auto elements = if_addressable([&] {
    const std::unique_ptr<Device> meta = make_meta_device(plan.compute, plan.device);
    return static_cast<std::size_t>(element_count(workload.make_model(*meta, 1)->parameters()));
  });
  const std::size_t bytes = 2 * elements.value_or(0) * size_of(compute_dtype(plan.compute.precision));
  const std::size_t part = bytes / static_cast<std::size_t>(plan.mesh.replicas);
  if (part <= room.bytes) return {};
  return fmt::format(
      "{} parameters and their gradients alone would take {} of a rank, and {}. Use more GPUs or hosts with --zero 3, "
      "or "
      "a smaller model.",
      *elements, size_text(part), room.text);
}

/// To be called first: the tables of much larger parameters would not fit either.
void require_room_for_weights(const Room& room, const RunPlan& plan, Workload& workload) {
  const std::string lack = lack_for_weights(room, plan, workload);
  if (!lack.empty()) usage_error("there is too little memory: {}", lack);
}

/// Whether a run of this mesh takes these flags, and --zero has something to divide.
bool is_taken(const Options& options, const Workload& workload, const RunPlan& plan) {
  try {
    check_training_flags(options, workload);
    check_precision(options, workload, plan.device);
    virtual_ranks(options.trainer, 0, plan.mesh.replicas);
  } catch (const UsageError&) {
    return false;
  }
  return plan.mesh.replicas > 1;
}

/// The sum of `bytes` over the ranks of this host. Collective.
std::size_t bytes_on_this_host(const World& world, std::size_t bytes) {
  struct Kept {
    int node;
    std::size_t bytes;
  };
  std::size_t all = 0;
  for (const Kept& kept : world.all_gather(std::vector{Kept{world.node(), bytes}})) {
    if (kept.node == world.node()) all += kept.bytes;
  }
  return all;
}

Zero next(Zero zero) { return static_cast<Zero>(static_cast<int>(zero) + 1); }

void add_smaller_state(std::vector<std::string>& flags, const RunPlan& plan, const Options& options) {
  const bool keeps_fp32 = plan.trainer.has_masters || !plan.trainer.bf16_moments;
  if (!keeps_fp32 || plan.compute.precision != Precision::bf16 || !options.outer.address.empty()) return;
  flags.emplace_back("--moments bf16 --master off (8 bytes per parameter with Adam in place of 16)");
}

/// If the run takes `zero`, which divides more than its own.
void add_zero(std::vector<std::string>& flags, Zero zero, const RunPlan& plan, const Options& options,
              const Workload& workload) {
  Options more = options;
  more.trainer.zero = zero;
  if (plan.trainer.zero >= Zero::weights || !is_taken(more, workload, plan)) return;
  flags.push_back(fmt::format("--zero {} (divides more among the replicas)", static_cast<int>(zero)));
}

std::string needs_less(std::vector<std::string> flags) {
  if (flags.empty()) flags.emplace_back("a smaller model");
  return fmt::format("Less memory is needed with {}.", fmt::join(flags, "; "));
}

/// Flags that lessen the state, which the host keeps.
std::string flags_for_host(const RunPlan& plan, const Options& options, const Workload& workload) {
  std::vector<std::string> flags;
  add_smaller_state(flags, plan, options);
  if (plan.trainer.zero == Zero::nothing) add_zero(flags, Zero::state, plan, options, workload);
  return needs_less(std::move(flags));
}

/// Flags that lessen what the device keeps.
std::string flags_for_device(const RunPlan& plan, const Options& options, const Workload& workload) {
  const TrainerOptions& trainer = plan.trainer;
  std::vector<std::string> flags;
  if (trainer.batch > 1) {
    const bool sums_every_pass = trainer.virtual_ranks > 0 && trainer.zero >= Zero::gradients;  // no --grad-accum then
    flags.push_back(fmt::format("a smaller --batch and a larger {} (fewer activations)",
                                sums_every_pass ? "--virtual-ranks" : "--grad-accum"));
    flags.emplace_back("--batch auto (the largest that fits)");
  }
  for (const std::string& flag : workload.memory_flags()) flags.push_back(flag);
  if (!trainer.state_on_host) {
    add_smaller_state(flags, plan, options);
    if (plan.device == DeviceKind::cuda) {
      flags.emplace_back("--offload optimizer (master weights and moments in the host's memory)");
    }
  }
  const Zero divides = trainer.state_on_host ? Zero::gradients : Zero::state;
  add_zero(flags, std::max(divides, next(trainer.zero)), plan, options, workload);
  return needs_less(std::move(flags));
}

/// UsageError if the ranks of a host would pin more memory than it has. The system would end them without a message.
/// Collective.
void require_host_memory(const World& world, const RunPlan& plan, const std::optional<Description>& kept,
                         const Options& options, const Workload& workload) {
  if (!plan.trainer.state_on_host) return;
  const std::size_t all = bytes_on_this_host(world, kept ? kept->host_bytes() : 0);
  const Room room = {pinnable_host_memory(), {}};
  world.agree([&] {
    if (!kept || room.fits(all)) return;
    const std::string text = fmt::format("its {} would keep {} there, and {} are free",
                                         counted(world.local_size(), "rank"), size_text(all), size_text(room.bytes));
    if (all <= room.bytes) {
      spdlog::warn("--offload optimizer: memory of {} may run out: {}", world.hostname(), text);
      return;
    }
    usage_error("--offload optimizer: there is too little memory on {}: {}. A rank keeps:\n{}{}", world.hostname(),
                text, Lines{kept->table()}, flags_for_host(plan, options, workload));
  });
}

}  // namespace

std::int64_t largest_batch_that_fits(const World& world, const PlannedMachine& machine, const Options& options,
                                     Workload& workload) {
  const Room room = room_of(world, machine.device, machine.ranks_per_gpu);
  const auto plan_of = [&](std::int64_t batch) { return plan_run(options, workload, machine, batch); };
  const std::int64_t ranks = dealt_ranks(options.trainer, machine.mesh.replicas);
  const std::int64_t most = workload.data().train_count() / (ranks * options.trainer.grad_accum);
  const auto fits = [&](std::int64_t batch) {
    const auto kept = describe(plan_of(batch), world.rank(), workload);
    return kept && room.fits(kept->device_bytes());
  };
  std::int64_t fitting = 1;
  world.agree([&] {
    require_room_for_weights(room, plan_of(1), workload);
    while (2 * fitting <= most && fits(2 * fitting)) fitting *= 2;
  });
  fitting = static_cast<std::int64_t>(world.min(static_cast<double>(fitting)));
  spdlog::info("--batch auto: {} ({})", fitting, room.text);
  return fitting;
}

void require_memory(const World& world, const RunPlan& plan, const Options& options, Workload& workload) {
  const Room room = room_of(world, plan.device, plan.compute.ranks);
  std::optional<Description> kept;
  world.agree([&] {
    require_room_for_weights(room, plan, workload);
    kept = describe(plan, world.rank(), workload);
    if (!kept) return;
    const std::size_t bytes = kept->device_bytes();
    if (room.lacks(*kept)) {
      usage_error("there is too little memory: a rank would keep {}, and {}. A rank keeps:\n{}{}", size_text(bytes),
                  room.text, Lines{kept->table()}, flags_for_device(plan, options, workload));
    }
    if (room.fits(bytes)) return;
    spdlog::warn("A rank keeps {}, and {}: memory may run out", size_text(bytes), room.text);
  });
  require_host_memory(world, plan, kept, options, workload);
}

std::string cpu_memory_text(const World& world, const RunPlan& plan, const Description& kept, const Options& options,
                            Workload& workload) {
  const Room room = room_of(world, DeviceKind::cpu, 1);
  if (!room.lacks(kept)) {
    return fmt::format("{}: {}\n", room.text, room.fits(kept.device_bytes()) ? "it fits." : "memory may run out.");
  }
  const std::string lack = lack_for_weights(room, plan, workload);
  if (!lack.empty()) return fmt::format("It does not fit: {}\n", lack);
  return fmt::format("{}: it does not fit. {}\n", room.text, flags_for_device(plan, options, workload));
}

std::string host_memory_text(const World& world, std::size_t bytes) {
  const std::size_t free = pinnable_host_memory();
  return fmt::format("{} would keep {} in the memory of {}, where {} are free{}\n", counted(world.local_size(), "rank"),
                     size_text(bytes), world.hostname(), size_text(free), bytes > free ? ": too little" : "");
}

std::string out_of_memory_text(const std::string& what, const RunPlan& plan, int rank, const Options& options,
                               Workload& workload) {
  const auto kept = describe(plan, rank, workload);
  const std::string table = kept ? "A rank keeps:\n" + kept->table() : "";
  const std::string of_host =
      plan.trainer.state_on_host ? " On the host: " + flags_for_host(plan, options, workload) : "";
  return fmt::format("{}. {}{}{}", what, table, flags_for_device(plan, options, workload), of_host);
}

}  // namespace ddptrain
