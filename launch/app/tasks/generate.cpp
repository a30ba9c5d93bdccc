#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "launch/app/job/job.h"
#include "launch/app/job/program.h"
#include "launch/app/job/rank_device.h"
#include "launch/app/job/replica_ranks.h"
#include "launch/app/job/same_on_all_ranks.h"
#include "launch/app/plan/prompts.h"
#include "launch/app/plan/run_plan.h"
#include "launch/app/tasks/resume.h"
#include "launch/app/tasks/run_info.h"
#include "launch/app/tasks/tasks.h"
#include "models/generation/text_generator.h"
#include "runtime/comm/mesh.h"
#include "runtime/core/error.h"
#include "runtime/core/log.h"
#include "runtime/core/text.h"
#include "runtime/train/checkpoint/checkpoint.h"
#include "runtime/train/replica/replica.h"

namespace ddptrain {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// --- the model ----------------------------------------------------------------------------------------------------

/// The checkpoint of --resume, whose sizes the workload takes. Nothing without --resume. Collective.
std::optional<Checkpoint> open_checkpoint(const World& world, const Options& options, Workload& workload) {
  if (options.resume.empty()) return std::nullopt;
  const std::string from = named_checkpoint(options);
  std::optional<Checkpoint> checkpoint = find_checkpoint(world, from);
  world.agree([&] {
    if (!checkpoint) usage_error("--resume {}: there is no checkpoint", from);
    const RunIdentity& run = checkpoint->manifest.run;
    require_model(run, options.model, from);
    workload.take_sizes(run.sizes);
    workload.take_special_tokens(run.special_tokens);
  });
  return checkpoint;
}

/// Masters and weights of another precision are other arrays.
void require_precision(const Checkpoint& checkpoint, const RunPlan& plan, const Options& options) {
  const std::string& saved = checkpoint.manifest.run.precision;
  if (saved == name_of(plan.format)) return;
  usage_error(
      "--resume {}: it was trained in {}, and text is generated in {}. Write its weights with --resume PATH --export "
      "DIR, then use --init DIR.",
      named_checkpoint(options), saved, name_of(plan.format));
}

// --- texts and speeds ---------------------------------------------------------------------------------------------

/// What was generated after a prompt, for reports.
struct TextTimes {
  std::int64_t prompt = 0;  ///< Its tokens.
  std::int64_t tokens = 0;
  double first_seconds = 0.0;
  double other_seconds = 0.0;
};

/// Writes texts to standard output: tokens as bytes, or as ids in a line. A terminal gets no characters that control
/// it, and each character when its last byte is known.
class TextOutput {
 public:
  explicit TextOutput(bool bytes) : bytes_(bytes), is_filtered_(bytes && output_is_on_terminal()) {}

  void begin(const std::string& prompt) {
    for (const char byte : prompt) add_byte(byte);
    std::fflush(stdout);
  }
  void add(std::uint32_t token) {
    if (bytes_) {
      add_byte(static_cast<char>(token));
    } else {
      std::fputs(fmt::format("{}{}", std::exchange(is_first_, false) ? "" : " ", token).c_str(), stdout);
    }
    std::fflush(stdout);
  }
  void end() {
    write_character();
    std::fputc('\n', stdout);
    is_first_ = true;
  }

 private:
  void add_byte(char byte) {
    if (!is_filtered_) {
      std::fputc(byte, stdout);
      return;
    }
    const bool continues = (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
    if (!continues) write_character();
    character_ += byte;
    const int length = std::countl_one(static_cast<unsigned char>(character_.front()));  // in UTF-8
    if (std::ssize(character_) >= length) write_character();
  }
  void write_character() { std::fputs(without_controls(std::exchange(character_, "")).c_str(), stdout); }

  const bool bytes_;
  const bool is_filtered_;
  bool is_first_ = true;   ///< The next token of the text.
  std::string character_;  ///< Its bytes so far.
};

/// Generates all texts and prints them on rank 0. Returns the times of each, there. Collective.
std::vector<TextTimes> generate_all(const World& world, const Mesh& mesh, const Options& options,
                                    const std::vector<TokenIds>& prompts, std::int64_t max_tokens,
                                    const TokenIds& end_tokens, TextGenerator& generator, TextOutput& output) {
  const auto replicas = static_cast<std::size_t>(mesh.shape().replicas);
  const auto mine = static_cast<std::size_t>(mesh.replicas().rank());
  const bool speaks = mesh.stage() == 0 && mesh.tensor_rank() == 0;  // for its replica
  const Sampling sampling{options.generate.temperature, options.generate.top_k, options.generate.top_p,
                          options.trainer.seed};
  std::vector<TextTimes> times;
  for (std::size_t first = 0; first < prompts.size(); first += replicas) {
    const std::size_t number = first + mine;
    GeneratedText text;
    std::vector<TextTimes> mine_times;
    if (number < prompts.size()) {
      text = generator.run({prompts[number], static_cast<std::uint32_t>(number), max_tokens, sampling, end_tokens},
                           [&](std::uint32_t token) {
                             if (world.rank() == 0) output.add(token);
                           });
      mine_times = {{std::ssize(prompts[number]), std::ssize(text.tokens), text.first_seconds, text.other_seconds}};
    }
    world.agree([&] {
      if (!text.finite) {
        fail("--generate: a logit after prompt {} is NaN or infinite; look for such values in the weights", number + 1);
      }
    });
    if (!speaks) {
      text = {};
      mine_times = {};
    }
    const std::vector<TextTimes> round = world.all_gather(mine_times);
    const TokenIds of_round = world.all_gather(text.tokens);
    if (world.rank() != 0) continue;
    times.insert(times.end(), round.begin(), round.end());
    output.end();
    auto next = of_round.begin() + std::ssize(text.tokens);
    for (std::size_t i = 1; i < round.size(); ++i) {
      for (std::int64_t token = 0; token < round[i].tokens; ++token) output.add(*next++);
      output.end();
    }
  }
  return times;
}

struct Speeds {
  std::size_t texts = 0;
  double seconds = 0.0;  ///< For all.
  std::int64_t prompt_tokens = 0;
  std::int64_t tokens = 0;
  double first_seconds = 0.0;       ///< The mean over the texts.
  double prefill_per_second = 0.0;  ///< Tokens of prompts, on one replica.
  double decode_per_second = 0.0;   ///< Tokens after the first, on one replica. 0: no text has any.

  double per_second() const { return static_cast<double>(tokens) / seconds; }  ///< Of all replicas.
};

Speeds speeds_of(const std::vector<TextTimes>& times, double seconds) {
  Speeds speeds;
  speeds.texts = times.size();
  speeds.seconds = seconds;
  double first = 0.0;
  double other = 0.0;
  std::int64_t others = 0;  // tokens
  for (const TextTimes& text : times) {
    speeds.prompt_tokens += text.prompt;
    speeds.tokens += text.tokens;
    first += text.first_seconds;
    other += text.other_seconds;
    others += std::max<std::int64_t>(0, text.tokens - 1);
  }
  speeds.first_seconds = first / static_cast<double>(times.size());
  speeds.prefill_per_second = static_cast<double>(speeds.prompt_tokens) / first;
  if (others > 0) speeds.decode_per_second = static_cast<double>(others) / other;
  return speeds;
}

void print_speeds(const Speeds& speeds, int replicas) {
  std::string text =
      fmt::format("\nTexts    {}: {} of prompts, {} generated in {:.2f} s\n",
                  counted(static_cast<std::int64_t>(speeds.texts), "prompt"), counted(speeds.prompt_tokens, "token"),
                  counted(speeds.tokens, "token"), speeds.seconds);
  text += fmt::format("Prefill  {:.1f} tokens/s; the first token after {:.3f} s\n", speeds.prefill_per_second,
                      speeds.first_seconds);
  if (speeds.decode_per_second > 0.0) {
    text += fmt::format("Decode   {:.1f} tokens/s, {:.2f} ms for a token\n", speeds.decode_per_second,
                        1e3 / speeds.decode_per_second);
  }
  if (replicas > 1) {
    text += fmt::format("In all   {:.1f} generated tokens/s from {} replicas, in the time of prefill and decoding\n",
                        speeds.per_second(), replicas);
  }
  std::fputs(text.c_str(), stdout);
}

void add_speeds(Json& line, const Speeds& speeds) {
  line["prompts"] = speeds.texts;
  line["prompt_tokens"] = speeds.prompt_tokens;
  line["generated_tokens"] = speeds.tokens;
  line["seconds"] = speeds.seconds;
  line["seconds_to_first_token"] = speeds.first_seconds;
  line["prefill_tokens_per_second"] = speeds.prefill_per_second;
  line["decode_tokens_per_second"] = speeds.decode_per_second;
  line["generated_tokens_per_second"] = speeds.per_second();
}

}  // namespace

void generate_text(Job job) {
  const World& world = job.world;
  const Options& options = job.options();
  Workload& workload = job.workload();
  const Mesh& mesh = job.mesh;
  const MeshShape& shape = mesh.shape();
  std::vector<TokenIds>& prompts = job.prompts;
  world.agree([&] { prompts = prompts_of(options.generate); });
  require_same_values(world, {{"the prompts", hash_of(prompts)}});
  const std::optional<Checkpoint> checkpoint = open_checkpoint(world, options, workload);
  RunFacts facts = facts_of(world, options, shape);
  facts.trains = false;
  set_lengths(facts, options.generate, prompts);
  world.agree([&] {
    workload.open(facts);
    check_sequence(job.command_line, workload.sizes());
    check_prompts(prompts, options.generate, workload.sizes().at("vocabulary"));
  });
  const RankDevice rank(job);
  Device& device = *rank.device;
  std::optional<RunPlan> plan;
  std::unique_ptr<MetricsFile> metrics;
  world.agree([&] {
    plan.emplace(plan_run(options, workload, rank.machine(job), 1));
    if (checkpoint) require_precision(*checkpoint, *plan, options);
    if (world.rank() == 0 && !options.metrics.empty()) metrics = std::make_unique<MetricsFile>(options.metrics, true);
  });
  run_or_end_job("ddptrain", world, [&] {
    const ReplicaRanks ranks(mesh, device, *plan, false);
    const auto replicas = make_communicator(mesh.replicas(), device, replica_communicator_options(*plan, world));
    std::unique_ptr<TextModel> made = workload.make_text_model(device);
    const std::int64_t max_tokens = made->longest_text() - longest_of(prompts);
    TextGenerator generator(*made, ranks.stages(), device);
    Replica replica(plan->trainer, ReplicaUse::evaluation, std::move(made), device, *replicas, ranks.stages());
    replica.initialise(options.trainer.seed, mesh.replicas().rank());
    if (checkpoint) restore_arrays(*checkpoint, replica.state(), world, device, false);
    const Watch::Phase phase(*world.watch(), "generation");
    const Clock::time_point start = Clock::now();
    TextOutput output(options.generate.prompts.empty());
    if (world.rank() == 0) output.begin(options.generate.prompt);
    const std::vector<TextTimes> times =
        generate_all(world, mesh, options, prompts, max_tokens, workload.end_tokens(), generator, output);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (world.rank() != 0) return;
    const Speeds speeds = speeds_of(times, seconds);
    print_speeds(speeds, shape.replicas);
    if (metrics == nullptr) return;
    Json line = task_line("generated", *plan, workload, device, replica.model());
    line["stages"] = shape.stages;
    line["tensor"] = shape.tensor;
    add_speeds(line, speeds);
    metrics->write(std::move(line));
  });
}

}  // namespace ddptrain
