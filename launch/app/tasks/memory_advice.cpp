#include "launch/app/tasks/memory_advice.h"

#include <spdlog/spdlog.h>

#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/app/tasks/describe.h"
#include "runtime/core/error.h"
#include "runtime/core/process/host_memory.h"
#include "runtime/core/text.h"
#include "runtime/device/free_memory.h"
#include "runtime/ops/paper_device.h"

namespace ddptrain {

namespace {

constexpr double kForLibraries = 0.1;  // of what is there: workspaces, communicators, graphs

std::string zero_text(Zero zero) {
  const char* what = zero == Zero::state       ? "master weights and moments"
                     : zero == Zero::gradients ? "master weights, moments and gradients"
                                               : "weights, moments and gradients";
  return fmt::format("--zero {} ({} divided among the ranks)", static_cast<int>(zero), what);
}

/// What one rank has.
struct Room {
  std::size_t bytes;
  std::string text;

  bool with_libraries(std::size_t kept) const {
    return static_cast<double>(kept) <= (1.0 - kForLibraries) * static_cast<double>(bytes);
  }
};

Room room_of(const World& world, DeviceKind device, int sharing) {
  if (device == DeviceKind::cuda) {
    const std::size_t bytes = free_gpu_memory();
    if (sharing == 1) return {bytes, fmt::format("{} are free on its GPU", size_text(bytes))};
    const std::size_t share = bytes / static_cast<std::size_t>(sharing);
    return {share, fmt::format("{} are free on the GPU of {} ranks, {} for each", size_text(bytes), sharing,
                               size_text(share))};
  }
  const std::size_t all = available_host_memory();
  const auto ranks = static_cast<std::size_t>(world.local_size());
  if (ranks == 1) return {all, fmt::format("{} are available on {}", size_text(all), world.hostname())};
  return {all / ranks, fmt::format("{} are available on {} for {} ranks, {} for each", size_text(all), world.hostname(),
                                   ranks, size_text(all / ranks))};
}

/// The result of work with a paper device; nothing where there is not even address space.
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

/// What decides the memory of a run.
struct Variant {
  std::int64_t batch;
  Zero zero;
  ModelMaker make_model;
};

/// The run as asked for, and variants of it, on paper.
class Paper {
 public:
  Paper(const Options& options, Workload& workload, const World& world, DeviceKind device)
      : options_(options),
        workload_(workload),
        world_(world),
        mesh_(mesh_of(world.size(), options.stages, options.tensor)),
        device_(device) {}

  Variant as_asked() const { return {options_.trainer.batch, options_.trainer.zero, maker_of(workload_)}; }
  std::optional<Description> describe(const Variant& variant) const {
    Options options = options_;
    options.trainer.batch = variant.batch;
    options.trainer.zero = variant.zero;
    return if_addressable(
        [&] { return describe_on_paper(options, variant.make_model, mesh_, world_.rank(), device_); });
  }
  std::size_t bytes(const Variant& variant) const {
    const auto description = describe(variant);
    return description ? bytes_of(*description) : std::numeric_limits<std::size_t>::max();
  }
  /// UsageError if weights and gradients alone do not fit, which no flag lessens. To be called first: the tables of
  /// much larger parameters would not find memory, either.
  void require_room_for_weights(const Room& room) const;
  /// Which variants fit.
  std::string advice(std::size_t room) const;
  /// Flags that lessen the memory. No promise that the run then fits: what libraries take is not known.
  std::string flags_that_help() const;

 private:
  /// Stages of ZeRO that divide more among the ranks than the one asked for.
  std::vector<Zero> further_stages() const {
    std::vector<Zero> stages;
    const TrainerOptions& trainer = options_.trainer;
    const bool sends_as_kept = !sends_bf16_between_hosts(options_, device_);
    if (mesh_.replicas == 1 || rule_of(trainer.optimizer.kind).whole_parameters || !sends_as_kept) return stages;
    for (const Zero stage : {Zero::state, Zero::gradients, Zero::weights}) {
      if (stage > trainer.zero && may_use(stage)) stages.push_back(stage);
    }
    return stages;
  }
  /// What check_flags() and check_precision() refuse.
  bool may_use(Zero stage) const {
    const TrainerOptions& trainer = options_.trainer;
    if (stage == Zero::weights && workload_.samples_during_training()) return false;
    if (stage < Zero::gradients) return true;
    return device_ == DeviceKind::cpu && trainer.overlap < OverlapMode::off && !sums_virtual_ranks_of_micro_steps();
  }
  bool sums_virtual_ranks_of_micro_steps() const {
    return options_.trainer.virtual_ranks > 0 && options_.trainer.grad_accum > 1;
  }
  /// Below --batch; 0: none.
  std::int64_t largest_batch(Variant variant, std::size_t room) const;
  std::string batch_text(std::int64_t largest) const;
  std::string more_parts(std::int64_t times) const;
  std::string all_together(std::size_t room) const;

  const Options& options_;
  Workload& workload_;
  const World& world_;
  MeshShape mesh_;
  DeviceKind device_;
};

void Paper::require_room_for_weights(const Room& room) const {
  const DeviceOptions compute = device_options(options_, device_);
  const auto elements = if_addressable([&] {
    const std::unique_ptr<Device> paper = make_paper_device(compute, device_);
    const std::unique_ptr<Model> model = workload_.make_model(*paper, 1);
    std::size_t sum = 0;
    for (const ParameterSpec& spec : model->parameters()) sum += static_cast<std::size_t>(spec.padded_size());
    return sum;
  });
  const std::size_t bytes = 2 * elements.value_or(0) * size_of(compute_dtype(compute.precision));
  const std::vector<Zero> stages = further_stages();
  const bool divide = options_.trainer.zero == Zero::weights || (!stages.empty() && stages.back() == Zero::weights);
  const std::size_t part = bytes / (divide ? static_cast<std::size_t>(mesh_.replicas) : 1);
  if (part <= room.bytes) return;
  usage_error(
      "there is too little memory: {} parameters and their gradients alone would take {} of a rank, and {}. Use a "
      "smaller model.",
      *elements, size_text(part), room.text);
}

std::int64_t Paper::largest_batch(Variant variant, std::size_t room) const {
  std::int64_t fitting = 0, beyond = variant.batch;
  while (beyond - fitting > 1) {
    variant.batch = fitting + (beyond - fitting) / 2;
    (bytes(variant) <= room ? fitting : beyond) = variant.batch;
  }
  return fitting;
}

/// With the micro-steps that keep the samples of a step.
std::string Paper::batch_text(std::int64_t largest) const {
  const std::int64_t batch = options_.trainer.batch;
  std::int64_t divisor = largest;
  while (batch % divisor != 0) --divisor;
  const std::string others = divisor == largest ? "" : fmt::format("; the largest batch is {}", largest);
  return fmt::format("--batch {} {} (the same samples per step{})", divisor, more_parts(batch / divisor), others);
}

/// Flags with which a step has so many times as many batches.
std::string Paper::more_parts(std::int64_t times) const {
  const TrainerOptions& trainer = options_.trainer;
  if (trainer.virtual_ranks > 0 && trainer.zero >= Zero::gradients) {
    return fmt::format("--virtual-ranks {}", trainer.virtual_ranks * times);
  }
  return fmt::format("--grad-accum {}", trainer.grad_accum * times);
}

std::string Paper::advice(std::size_t room) const {
  const Variant asked = as_asked();
  std::vector<std::string> ways;
  if (const std::int64_t batch = largest_batch(asked, room)) ways.push_back(batch_text(batch));
  for (const MemorySaving& saving : workload_.memory_savings()) {
    if (bytes({asked.batch, asked.zero, saving.make_model}) > room) continue;
    ways.push_back(saving.flag);
    break;
  }
  for (const Zero stage : further_stages()) {
    if (bytes({asked.batch, stage, asked.make_model}) > room) continue;
    ways.push_back(zero_text(stage));
    break;
  }
  return ways.empty() ? all_together(room) : fmt::format("What fits: {}.", fmt::join(ways, "; or "));
}

std::string Paper::all_together(std::size_t room) const {
  Variant variant = as_asked();
  std::string flags;
  if (const auto savings = workload_.memory_savings(); !savings.empty()) {
    variant.make_model = savings.back().make_model;
    flags = savings.back().flag + " ";
  }
  if (const std::vector<Zero> stages = further_stages(); !stages.empty()) {
    variant.zero = stages.back();
    flags += fmt::format("--zero {} ", static_cast<int>(variant.zero));
  }
  if (bytes(variant) <= room) return fmt::format("What fits: {}together.", flags);
  if (const std::int64_t batch = largest_batch(variant, room)) {
    return fmt::format("What fits: {}{}", flags, batch_text(batch));
  }
  variant.batch = 1;
  return fmt::format("{}--batch 1 would still keep {}: use a smaller model{}.", flags, size_text(bytes(variant)),
                     variant.zero > Zero::nothing ? ", or more ranks" : "");
}

std::string Paper::flags_that_help() const {
  const TrainerOptions& trainer = options_.trainer;
  std::vector<std::string> flags;
  if (trainer.batch % 2 == 0) {
    flags.push_back(fmt::format("--batch {} {} (half the activations, the same samples per step)", trainer.batch / 2,
                                more_parts(2)));
  } else if (trainer.batch > 1) {
    flags.emplace_back("a smaller --batch with a larger --grad-accum");
  }
  for (const MemorySaving& saving : workload_.memory_savings()) flags.push_back(saving.flag);
  if (const std::vector<Zero> stages = further_stages(); !stages.empty()) flags.push_back(zero_text(stages.front()));
  if (flags.empty()) flags.emplace_back("a smaller model");
  return fmt::format("{}", fmt::join(flags, "; "));
}

/// Of a micro-step of one rank, at most.
std::int64_t samples_for(const World& world, const Options& options, const Workload& workload) {
  const TrainerOptions& trainer = options.trainer;
  const std::int64_t ranks = trainer.virtual_ranks > 0 ? trainer.virtual_ranks
                                                       : mesh_of(world.size(), options.stages, options.tensor).replicas;
  return workload.data().train_count() / (ranks * trainer.grad_accum);
}

}  // namespace

std::int64_t largest_batch_that_fits(const World& world, DeviceKind device, int sharing, const Options& options,
                                     Workload& workload) {
  const Room room = room_of(world, device, sharing);
  const Paper paper(options, workload, world, device);
  const std::int64_t most = samples_for(world, options, workload);
  Variant variant = paper.as_asked();
  std::int64_t fitting = 1;
  world.agree([&] {
    paper.require_room_for_weights(room);
    for (variant.batch = 2; variant.batch <= most && room.with_libraries(paper.bytes(variant)); variant.batch *= 2) {
      fitting = variant.batch;
    }
  });
  fitting = static_cast<std::int64_t>(world.min(static_cast<double>(fitting)));
  spdlog::info("--batch auto: {} ({})", fitting, room.text);
  return fitting;
}

void require_memory(const World& world, DeviceKind device, int sharing, const Options& options, Workload& workload) {
  const Room room = room_of(world, device, sharing);
  world.agree([&] {
    const Paper paper(options, workload, world, device);
    paper.require_room_for_weights(room);
    const auto kept = paper.describe(paper.as_asked());
    if (!kept) return;
    const std::size_t bytes = bytes_of(*kept);
    if (bytes > room.bytes) {
      usage_error("there is too little memory: a rank would keep {}, and {}. A rank keeps on its device:\n{}{}",
                  size_text(bytes), room.text, kept->table(), paper.advice(room.bytes));
    }
    if (room.with_libraries(bytes)) return;
    spdlog::warn("A rank keeps {}, and {}: libraries need some, too, so that memory may run out", size_text(bytes),
                 room.text);
  });
}

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
  const Paper paper(options, workload, world, device);
  const auto kept = paper.describe(paper.as_asked());
  const std::string table = kept ? "A rank keeps on its device, beside what libraries take:\n" + kept->table() : "";
  throw OutOfMemory(fmt::format("{}. {}Less memory is needed with {}.", what, table, paper.flags_that_help()));
}

}  // namespace ddptrain
