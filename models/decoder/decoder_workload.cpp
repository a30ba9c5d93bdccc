#include "models/decoder/decoder_workload.h"

#include <utility>

#include "runtime/core/text.h"

namespace ddptrain {

Flags DecoderWorkload::common_flags(const std::string& init, const std::string& save) {
  const Names<Recompute> recomputes = {
      {"none", Recompute::none}, {"gelu", Recompute::gelu}, {"block", Recompute::block}};
  return {{"--dropout",
           {"on|off|RATE", "auto", [this](const std::string& text) { return set_dropout(text); }},
           "Dropout rate; on: 0.1; auto: off"},
          {"--data", text(data_, "PATH"),
           "Text file, token files (.bin), a folder or pattern of them, or synthetic[:COUNT[:VOCAB]]"},
          {"--val-fraction", number(val_fraction_, {"above 0 and below 1", kLeastAboveZero, kMostBelowOne}),
           "Fraction at the end of the text for validation, without val shards"},
          {"--init", text(init_, "PATH"), init},
          {"--recompute", choice(recompute_, recomputes),
           "Activations that backward recomputes instead of keeping them in memory", Effect::speed},
          {"--save", text(save_, "DIR"), save, Effect::output}};
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
  if (data_.empty()) {
    usage_error("--model {} needs --data: a text file, token files (.bin) or their folder, or synthetic", model_);
  }
  if (!init_.empty()) open_init(run);
  const std::int64_t layers = table().config.layers;
  if (run.mesh.stages > layers) {
    usage_error("--pp {}: the model has {}, and a stage has one at least. Give --pp {}{}.", run.mesh.stages,
                counted(layers, "block"), layers, layers == 1 ? "" : " or less");
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
    if (!init_.empty()) check_tokens(tokens_->text(), data_);
  });
  if (vocabulary() == kVocabularyOfData) vocabulary() = tokens_->text().vocabulary;
  check_slices(table().config, run_.mesh.tensor, size_flags());
}

std::unique_ptr<Model> DecoderWorkload::make_model(Device& device, std::int64_t batch) {
  const MeshShape& mesh = run_.mesh;
  if (dropout_ > 0.0f && batch % mesh.tensor != 0 && mesh.tensor % batch != 0) {
    usage_error("--dropout with --tp {0}: give a --batch that it divides, such as {0}, or --dropout 0.", mesh.tensor);
  }
  DecoderOptions options;
  options.table = table();
  options.blocks = stage_blocks(options.table.config, mesh.stages, mesh.stage_of(run_.rank));
  options.slice = {mesh.tensor, mesh.tensor_rank_of(run_.rank)};
  options.max_batch = batch;
  options.seed = run_.seed;
  options.dropout = dropout_;
  options.recompute = recompute_;
  options.pretrained = pretrained();
  return make_decoder(device, options, about("--data", [&] { return make_resident(*tokens_, device); }));
}

std::vector<std::string> DecoderWorkload::memory_flags() const {
  std::vector<std::string> flags;
  if (recompute_ < Recompute::gelu) flags.emplace_back("--recompute gelu");
  if (recompute_ < Recompute::block) flags.emplace_back("--recompute block");
  return flags;
}

}  // namespace ddptrain
