#include "models/decoder/decoder_workload.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "models/hugging_face/model_config.h"
#include "models/hugging_face/tokenizer_files.h"
#include "models/registry.h"
#include "runtime/core/text.h"

namespace ddptrain {

Flags DecoderWorkload::with_common_flags(Flags sizes, const std::string& init) {
  const Names<Recompute> recomputes = {{"none", Recompute::none},
                                       {"gelu", Recompute::gelu},
                                       {"selective", Recompute::selective},
                                       {"block", Recompute::block}};
  Flags common = {
      {"--dropout",
       {"on|off|RATE", "auto", [this](const std::string& text) { return set_dropout(text); }},
       "Dropout rate; on: 0.1; auto: off"},
      {"--data", text(data_, "PATH"),
       "Text file, token files (.bin), a folder or pattern of them, or synthetic[:COUNT[:VOCAB]]"},
      {"--val-fraction", number(val_fraction_, {"above 0 and below 1", kLeastAboveZero, kMostBelowOne}),
       "Fraction at the end of the text for validation, without val shards"},
      {"--init", text(init_, "PATH"), init},
      {"--recompute", choice(recompute_, recomputes),
       "Activations that backward recomputes instead of keeping them in memory", Effect::speed},
      {"--save", text(save_, "DIR"),
       "Write the trained model to this folder: model.safetensors and config.json of transformers, and the tokenizer's "
       "files of --init",
       Effect::output}};
  for (const Flag& flag : sizes) {
    if (flag.name() != "seq") default_sizes_.try_emplace(flag.name(), flag.value.text);
  }
  for (Flag& flag : common) sizes.push_back(std::move(flag));
  return sizes;
}

/// A file of --print-config gives all flags: a default there is not meant.
void DecoderWorkload::note_given(const Flags& flags) {
  for (const Flag& flag : flags) {
    const auto size = default_sizes_.find(flag.name());
    if (size == default_sizes_.end()) continue;
    if (flag.given || flag.value.text != size->second) given_sizes_[flag.name()] = flag.value.text;
  }
}

void DecoderWorkload::check_flags() const {
  if (!init_.empty()) return;  // its model decides the sizes: see check_given_sizes()
  DecoderConfig config = table().config;
  if (config.vocabulary == kVocabularyOfData) config.vocabulary = 1;
  check_config(config, size_flags());
}

std::int64_t DecoderWorkload::window_within(std::int64_t positions, std::int64_t sequence, const RunFacts& run) const {
  if (!run.trains) return positions;
  if (sequence > positions) {
    usage_error("--seq {}: {} has {} positions. Give --seq {} or less.", sequence, init_, positions, positions);
  }
  return sequence;
}

/// Returns as FlagValue::set.
std::string DecoderWorkload::set_dropout(const std::string& text) {
  dropout_ = text == "on" ? 0.1f : 0.0f;
  if (text == "on" || text == "off" || text == "auto") return {};
  std::string rate = text;
  const std::string advice = number(dropout_, kBelowOne).set(rate);
  return advice.empty() ? "" : "on, off, or a rate of at least 0 and below 1";
}

void DecoderWorkload::open(const RunFacts& run) {
  run_ = run;
  if (data_.empty() && run.trains) {
    usage_error("--model {} needs --data: a text file, token files (.bin) or their folder, or synthetic", model_);
  }
  if (!init_.empty()) {
    check_family();
    open_init(run);
  }
  check_given_sizes();
  const std::int64_t layers = table().config.layers;
  if (run.mesh.stages > layers) {
    usage_error("--pp {}: the model has {}, and a stage has one at least. Give --pp {}{}.", run.mesh.stages,
                counted(layers, "block"), layers, layers == 1 ? "" : " or less");
  }
  if (!run.trains) check_slices(table().config, run.mesh.tensor, size_flags());  // else load() does so
  check_text(run.least_text);
  run_.longest_text = std::min(run.longest_text, most_positions());
}

/// The model of --init may be one that only another --model reads.
void DecoderWorkload::check_family() const {
  const std::optional<std::filesystem::path> config = about("--init", [&] { return find_model_config(init_); });
  if (!config) return;
  const std::optional<std::string> type = about("--init", [&] { return model_type_in(*config); });
  if (!type || std::ranges::count(model_types(), *type) > 0) return;
  if (const auto other = model_that_reads(*type)) {
    usage_error("--init {}: {} has model_type \"{}\". Use --model {}.", init_, config->string(), *type, *other);
  }
}

/// The sizes come from the model of --init, or from a checkpoint.
void DecoderWorkload::check_given_sizes() {
  const std::string source =
      init_.empty() ? "the model of the checkpoint" : fmt::format("the model of --init {}", init_);
  for (const Flag& flag : flags()) {
    const auto given = given_sizes_.find(flag.name());
    if (given == given_sizes_.end() || given->second == flag.value.text) continue;
    if (given->second == "0" && default_sizes_.at(flag.name()) == "0") continue;  // as the model has it
    usage_error("--{} {}: {} has {}. Leave --{} out: the model decides it.", given->first, given->second, source,
                flag.value.text, given->first);
  }
}

void DecoderWorkload::check_text(std::int64_t tokens) const {
  if (tokens > most_positions()) {
    usage_error(
        "the longest prompt and its continuation (--max-tokens) have {} tokens together, and the model has "
        "{} positions. Shorten the prompt, or give a smaller --max-tokens.",
        tokens, most_positions());
  }
}

void DecoderWorkload::load() {
  TokenOptions options;
  options.vocabulary = vocabulary();
  options.validation_fraction = val_fraction_;
  options.seed = run_.seed;
  options.reader = run_.local_rank;
  options.readers = run_.local_size;
  about("--data", [&] {
    tokens_.emplace(load_tokens(data_, options), table().config.sequence);
    if (!init_.empty()) check_tokens();
  });
  if (vocabulary() == kVocabularyOfData) vocabulary() = tokens_->text().vocabulary;
  check_slices(table().config, run_.mesh.tensor, size_flags());
}

/// The bytes of a text are no tokens of a tokenizer, which the model has if its folder has one, if it is GPT-2, or if
/// its config.json names tokens, which it does not for a model that was trained with bytes.
void DecoderWorkload::check_tokens() const {
  constexpr std::int64_t kGpt2Vocabulary = 50257;
  const std::int64_t size = table().config.vocabulary;
  const bool has_others = size == kGpt2Vocabulary || has_tokenizer(init_) || !special_tokens().empty();
  if (!tokens_->text().are_bytes() || size <= kByteTokens || !has_others) return;
  usage_error(
      "{}: the bytes of a text are its tokens, and the model of --init {} has other ones. "
      "`data/tokens-from-text TEXT OUT.bin --tokenizer FOLDER` writes tokens of its tokenizer.",
      data_, init_);
}

void DecoderWorkload::save(const std::filesystem::path& folder, std::map<std::string, HostTensor> weights) const {
  save_model(folder, std::move(weights));
  if (!init_.empty()) copy_tokenizer_files(init_, folder);
}

DecoderOptions DecoderWorkload::options_of_rank() const {
  const MeshShape& mesh = run_.mesh;
  DecoderOptions options;
  options.table = table();
  options.blocks = stage_blocks(options.table.config, mesh.stages, mesh.stage_of(run_.rank));
  options.stages = mesh.stages;
  options.slice = {mesh.tensor, mesh.tensor_rank_of(run_.rank)};
  options.seed = run_.seed;
  options.pretrained = pretrained();
  return options;
}

std::unique_ptr<Model> DecoderWorkload::make_model(Device& device, std::int64_t batch) {
  const MeshShape& mesh = run_.mesh;
  if (dropout_ > 0.0f && batch % mesh.tensor != 0 && mesh.tensor % batch != 0) {
    usage_error("--dropout with --tp {0}: give a --batch that it divides, such as {0}, or --dropout 0.", mesh.tensor);
  }
  DecoderOptions options = options_of_rank();
  options.max_batch = batch;
  options.dropout = dropout_;
  options.recompute = recompute_;
  return make_decoder(device, options, about("--data", [&] { return make_resident(*tokens_, device); }));
}

std::unique_ptr<TextModel> DecoderWorkload::make_text_model(Device& device) {
  if (run_.longest_text == 0) return nullptr;
  DecoderOptions options = options_of_rank();
  options.max_batch = 1;
  options.longest_text = run_.longest_text;
  return make_decoder(device, options, {});
}

std::vector<std::uint32_t> DecoderWorkload::first_tokens(std::int64_t most) const {
  return tokens_->text().validation.first(most);
}

bool DecoderWorkload::tokens_are_bytes() const {
  return tokens_->text().are_bytes() && table().config.vocabulary <= kByteTokens;
}

std::vector<std::string> DecoderWorkload::memory_flags() const {
  std::vector<std::string> flags;
  if (recompute_ < Recompute::gelu) flags.emplace_back("--recompute gelu");
  if (recompute_ < Recompute::selective) flags.emplace_back("--recompute selective");
  if (recompute_ < Recompute::block) flags.emplace_back("--recompute block");
  return flags;
}

}  // namespace ddptrain
