#include "launch/memory_advice.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/describe.h"
#include "runtime/core/host_memory.h"
#include "runtime/core/out_of_memory.h"
#include "runtime/device/free_memory.h"
#include "runtime/ops/paper_device.h"

namespace ddptrain {

namespace {

constexpr double kForLibraries = 0.1;  // of what is there: workspaces, communicators, graphs

/// What one rank has.
struct Room {
  std::size_t bytes;
  std::string text;
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

bool can_divide_state(const Options& options, int world_size) {
  const TrainerOptions& trainer = options.trainer;
  return !trainer.zero && world_size > 1 && !rule_of(trainer.optimizer.kind).whole_parameters;
}

/// Runs as they would be, on paper.
class Paper {
 public:
  Paper(const Options& options, const World& world, DeviceKind device)
      : options_(options), world_(world), device_(device) {}

  /// Nothing where there is not even address space.
  std::optional<Description> describe(std::int64_t batch, bool zero, const ModelMaker& make_model) const {
    Options options = options_;
    options.trainer.batch = batch;
    options.trainer.zero = zero;
    try {
      return describe_on_paper(options, {}, make_model, world_.rank(), world_.size(), device_);
    } catch (const UsageError&) {
      throw;
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }
  std::size_t bytes(std::int64_t batch, bool zero, const ModelMaker& make_model) const {
    const auto description = describe(batch, zero, make_model);
    return description ? bytes_of(*description) : std::numeric_limits<std::size_t>::max();
  }
  static std::size_t bytes_of(const Description& description) {
    std::size_t bytes = 0;
    for (const MemoryUse& use : description.memory) bytes += use.bytes;
    return bytes;
  }

 private:
  const Options& options_;
  const World& world_;
  DeviceKind device_;
};

/// What of a run that does not fit would fit.
class Advice {
 public:
  Advice(const Options& options, Workload& workload, const World& world, DeviceKind device, std::size_t room)
      : options_(options),
        paper_(options, world, device),
        make_model_(maker_of(workload)),
        savings_(workload.memory_savings()),
        zero_(can_divide_state(options, world.size())),
        room_(room) {}

  std::string text() const {
    std::vector<std::string> ways;
    const TrainerOptions& trainer = options_.trainer;
    if (const std::int64_t batch = largest_batch(trainer.zero, make_model_)) ways.push_back(batch_text(batch));
    for (const MemorySaving& saving : savings_) {
      if (!fits(trainer.batch, trainer.zero, saving.make_model)) continue;
      ways.push_back(saving.flag);
      break;
    }
    if (zero_ && fits(trainer.batch, true, make_model_)) {
      ways.push_back("--zero 1 (master weights and moments divided among the ranks)");
    }
    return ways.empty() ? all_together() : fmt::format("What fits: {}.", fmt::join(ways, "; or "));
  }

 private:
  bool fits(std::int64_t batch, bool zero, const ModelMaker& make_model) const {
    return paper_.bytes(batch, zero, make_model) <= room_;
  }

  /// Below --batch; 0: none.
  std::int64_t largest_batch(bool zero, const ModelMaker& make_model) const {
    std::int64_t fitting = 0, beyond = options_.trainer.batch;
    while (beyond - fitting > 1) {
      const std::int64_t middle = fitting + (beyond - fitting) / 2;
      (fits(middle, zero, make_model) ? fitting : beyond) = middle;
    }
    return fitting;
  }

  /// With the micro-steps that keep the samples of a step.
  std::string batch_text(std::int64_t largest) const {
    const std::int64_t batch = options_.trainer.batch;
    std::int64_t divisor = largest;
    while (batch % divisor != 0) --divisor;
    const std::string others = divisor == largest ? "" : fmt::format("; the largest batch is {}", largest);
    return fmt::format("--batch {} --grad-accum {} (the same samples per step{})", divisor,
                       options_.trainer.grad_accum * (batch / divisor), others);
  }

  std::string all_together() const {
    const bool zero = zero_ || options_.trainer.zero;
    const ModelMaker& make_model = savings_.empty() ? make_model_ : savings_.back().make_model;
    std::string flags = savings_.empty() ? "" : savings_.back().flag + " ";
    if (zero_) flags += "--zero 1 ";
    if (fits(options_.trainer.batch, zero, make_model)) return fmt::format("What fits: {}together.", flags);
    if (const std::int64_t batch = largest_batch(zero, make_model)) {
      return fmt::format("What fits: {}{}", flags, batch_text(batch));
    }
    return fmt::format("{}--batch 1 would still keep {}: use a smaller model{}.", flags,
                       size_text(paper_.bytes(1, zero, make_model)), zero ? ", or more ranks" : "");
  }

  const Options& options_;
  Paper paper_;
  ModelMaker make_model_;
  std::vector<MemorySaving> savings_;
  bool zero_;
  std::size_t room_;
};

std::int64_t samples_for(const World& world, const Options& options, const Workload& workload) {
  const TrainerOptions& trainer = options.trainer;
  const std::int64_t ranks = trainer.virtual_ranks > 0 ? trainer.virtual_ranks : world.size();
  return workload.data().train_count() / (ranks * trainer.grad_accum);
}

/// Of run-time errors: what takes memory beside the known is not known, so these are no promises.
std::string flags_that_help(const Options& options, Workload& workload, int world_size) {
  const TrainerOptions& trainer = options.trainer;
  std::vector<std::string> flags;
  if (trainer.batch % 2 == 0) {
    flags.push_back(fmt::format("--batch {} --grad-accum {} (half the activations, the same samples per step)",
                                trainer.batch / 2, 2 * trainer.grad_accum));
  } else if (trainer.batch > 1) {
    flags.push_back("a smaller --batch with a larger --grad-accum");
  }
  for (const MemorySaving& saving : workload.memory_savings()) flags.push_back(saving.flag);
  if (can_divide_state(options, world_size)) {
    flags.push_back("--zero 1 (master weights and moments divided among the ranks)");
  }
  if (flags.empty()) flags.push_back("a smaller model");
  return fmt::format("{}", fmt::join(flags, "; "));
}

}  // namespace

namespace {

/// Of all parameters; 0 where there is not even address space.
std::size_t elements_of(const Options& options, DeviceKind device, Workload& workload) {
  const std::unique_ptr<Device> paper = make_paper_device(device_options(options, device), device);
  std::size_t elements = 0;
  try {
    const std::unique_ptr<Model> model = workload.make_model(*paper, 1);
    for (const ParameterSpec& spec : model->parameters()) {
      elements += static_cast<std::size_t>(spec.padded_size());
    }
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception&) {
    return 0;
  }
  return elements;
}

/// What no flag lessens. Looked at first: the tables of much larger parameters would not find memory, either.
void require_memory_for_weights(const Options& options, DeviceKind device, Workload& workload, const Room& room) {
  const std::size_t elements = elements_of(options, device, workload);
  const std::size_t bytes = 2 * elements * size_of(compute_dtype(device_options(options, device).precision));
  if (bytes <= room.bytes) return;
  usage_error(
      "there is too little memory: {} parameters and their gradients alone would take {} of a rank, and {}. Use a "
      "smaller model.",
      elements, size_text(bytes), room.text);
}

}  // namespace

void choose_batch(const World& world, DeviceKind device, int sharing, Options& options, Workload& workload) {
  const Room room = room_of(world, device, sharing);
  const auto usable = static_cast<std::size_t>((1.0 - kForLibraries) * static_cast<double>(room.bytes));
  const Paper paper(options, world, device);
  const std::int64_t most = samples_for(world, options, workload);
  std::int64_t batch = 1;
  world.agree([&] {
    require_memory_for_weights(options, device, workload, room);
    while (2 * batch <= most && paper.bytes(2 * batch, options.trainer.zero, maker_of(workload)) <= usable) batch *= 2;
  });
  options.trainer.batch = static_cast<std::int64_t>(world.min(static_cast<double>(batch)));
  spdlog::info("--batch auto: {} ({})", options.trainer.batch, room.text);
}

void require_memory(const World& world, DeviceKind device, int sharing, const Options& options, Workload& workload) {
  const Room room = room_of(world, device, sharing);
  world.agree([&] {
    require_memory_for_weights(options, device, workload, room);
    const TrainerOptions& trainer = options.trainer;
    const auto kept = Paper(options, world, device).describe(trainer.batch, trainer.zero, maker_of(workload));
    if (!kept) return;
    const std::size_t bytes = Paper::bytes_of(*kept);
    if (bytes > room.bytes) {
      usage_error("there is too little memory: a rank would keep {}, and {}. A rank keeps on its device:\n{}{}",
                  size_text(bytes), room.text, kept->table(),
                  Advice(options, workload, world, device, room.bytes).text());
    }
    if (static_cast<double>(bytes) <= (1.0 - kForLibraries) * static_cast<double>(room.bytes)) return;
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
  const auto kept =
      Paper(options, world, device).describe(options.trainer.batch, options.trainer.zero, maker_of(workload));
  const std::string table = kept ? "A rank keeps on its device, beside what libraries take:\n" + kept->table() : "";
  throw OutOfMemory(fmt::format("{}. {}Less memory is needed with {}.", what, table,
                                flags_that_help(options, workload, world.size())));
}

}  // namespace ddptrain
