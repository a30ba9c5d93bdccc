#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/text/tokens.h"
#include "models/decoder/decoder.h"
#include "models/workload.h"

namespace ddptrain {

/// What the workloads of all families of decoders have in common: text, dropout, recomputation, stages and slices. A
/// family adds its table, the flags of its sizes, and its files of weights.
class DecoderWorkload : public Workload {
 public:
  bool supports_f32_gradients() const override { return true; }
  bool supports_stages() const override { return true; }
  bool continues_texts() const override { return true; }

  void note_given(const Flags& flags) override;
  void check_flags() const override;
  void check_given_sizes() override;
  void open(const RunFacts& run) override;
  void load() override;
  const Dataset& data() const override { return tokens_.value(); }
  std::unique_ptr<Model> make_model(Device& device, std::int64_t batch) override;
  std::unique_ptr<TextModel> make_text_model(Device& device) override;
  std::vector<std::uint32_t> first_tokens(std::int64_t most) const override;
  bool tokens_are_bytes() const override;
  std::vector<std::string> memory_flags() const override;

 protected:
  /// A vocabulary that is not given. load() replaces it by the data's.
  static constexpr std::int64_t kVocabularyOfData = 0;
  static constexpr const char* kAboutVocabulary =
      "Vocabulary size (0: as the data: 256 for text, 128256 for token files of Llama 3, 50257 for others)";

  /// `model` is the name of the model in messages.
  explicit DecoderWorkload(std::string model) : model_(std::move(model)) {}

  /// The table of the sizes that flags, files and data have given so far.
  virtual DecoderTable table() const = 0;
  virtual std::int64_t& vocabulary() = 0;
  virtual const SizeNames& size_flags() const = 0;
  /// Tokens of the longest text that the model was made for.
  virtual std::int64_t most_positions() const { return table().config.sequence; }
  /// Reads the sizes from the model of --init, which is given. The window is then window_within().
  virtual void open_init(const RunFacts& run) = 0;
  /// Writes config.json and the weights.
  virtual void save_model(const std::filesystem::path& folder, std::map<std::string, HostTensor> weights) const = 0;
  /// Returns the values of a parameter of the model of --init by its name. Null without --init.
  virtual std::function<std::vector<float>(const std::string& name)> pretrained() const = 0;

  /// `sizes` and all flags that families have in common. `init`: the meaning of --init.
  Flags with_common_flags(Flags sizes, const std::string& init);
  /// The model of --init, a folder or file that `Folder` reads. Rank 0 checks its values.
  template <class Folder>
  std::shared_ptr<const Folder> open_folder(const RunFacts& run) const {
    return about("--init", [&] {
      auto folder = std::make_shared<const Folder>(init_);
      if (run.rank == 0) folder->check_values();
      return folder;
    });
  }
  /// The window of a model of --init that has so many positions: all of them for texts, else `sequence`. UsageError if
  /// these are too many.
  std::int64_t window_within(std::int64_t positions, std::int64_t sequence, const RunFacts& run) const;

 private:
  void save(const std::filesystem::path& folder, std::map<std::string, HostTensor> weights) const final;
  std::string set_dropout(const std::string& text);
  void check_family() const;
  void check_text(std::int64_t tokens) const;
  void check_tokens() const;
  DecoderOptions options_of_rank() const;

  std::string model_;
  std::map<std::string, std::string> default_sizes_;  ///< By the names of all flags of sizes but --seq.
  std::map<std::string, std::string> given_sizes_;    ///< Those that were given.
  Recompute recompute_ = Recompute::none;
  float dropout_ = 0.0f;
  std::string data_;
  double val_fraction_ = 0.1;

  RunFacts run_;
  std::optional<TokenDataset> tokens_;
};

}  // namespace ddptrain
