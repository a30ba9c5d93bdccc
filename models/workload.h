#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/generation/text_model.h"
#include "runtime/comm/mesh_shape.h"
#include "runtime/comm/world.h"
#include "runtime/core/files/outputs.h"
#include "runtime/core/files/writable.h"
#include "runtime/core/flags.h"
#include "runtime/device/device.h"
#include "runtime/train/dataset.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// Ids of tokens with a meaning, by their names in config.json of Hugging Face's models. They do not change what the
/// network computes.
using SpecialTokens = std::map<std::string, std::vector<std::uint32_t>>;
inline constexpr const char* kBeginToken = "bos_token_id";
inline constexpr const char* kEndToken = "eos_token_id";
inline constexpr const char* kPaddingToken = "pad_token_id";

/// Values in host memory.
struct HostTensor {
  Shape shape;
  std::vector<float> values;  ///< Row-major.
};

/// Values [outer, rows, columns] as [outer, columns, rows].
std::vector<float> transposed(const std::vector<float>& values, std::int64_t outer, std::int64_t rows,
                              std::int64_t columns);
/// Writes tensors, by name, to model.safetensors in a folder that is made if there is none. UsageError if that fails.
void write_weights(const std::filesystem::path& folder, const std::map<std::string, HostTensor>& tensors);
/// The file of write_weights() in the folder that `flag` names, for check_outputs().
OutputFile saved_weights(const std::string& flag, const std::filesystem::path& folder);

/// Facts about the run that the program tells a workload.
struct RunFacts {
  int rank = 0;
  int local_rank = 0;
  int local_size = 1;
  std::uint64_t seed = 0;
  MeshShape mesh = {};  ///< make_model() makes the model of the rank's stage and part.
  bool trains = true;   ///< Otherwise it continues texts only: it has no data, and load() is not called.
  /// Tokens of the longest text that the run continues, with the prompt. 0: it continues none.
  std::int64_t longest_text = 0;
  /// If the model has fewer positions than longest_text, it continues texts up to its positions. open() refuses a model
  /// with fewer positions than this.
  std::int64_t least_text = 0;
};

/// All that the program needs of a model besides the network: its flags, its data, pretrained weights to start from,
/// what it writes. A model is a folder below models/ that implements this, and a line in registry.cpp.
///
/// The program calls in this order, on every rank: flags, note_given, check_flags; open, load, make_model; finish. To
/// make the models of several stages, it opens the workload again for each. To continue texts only: flags, note_given,
/// check_flags, take_sizes if there is a checkpoint; open, make_text_model. What is wrong is a UsageError that names
/// the flag; the program has all ranks agree on it.
class Workload {
 public:
  virtual ~Workload() = default;

  /// The model's flags, --data among them, in no group. They set variables of this object, which does not move.
  virtual Flags flags() = 0;
  /// `flags` are all of the program, with the values that command line and --config have given. For what open() has to
  /// compare with files.
  virtual void note_given(const Flags& /*flags*/) {}
  /// Finds values that do not go with each other, without looking at files and devices.
  virtual void check_flags() const {}

  virtual bool supports_fp8() const { return false; }            ///< Linear layers that multiply in FP8.
  virtual bool supports_f32_gradients() const { return false; }  ///< Gradients in f32, weights in bf16.
  /// The model can be cut into stages, and its layers into parts.
  virtual bool supports_stages() const { return false; }
  virtual bool continues_texts() const { return false; }  ///< make_text_model() makes a model.
  /// Values of model_type in config.json of the models that --init reads.
  virtual std::vector<std::string> model_types() const { return {}; }
  bool saves() const { return !save_.empty(); }  ///< finish() can write something.
  bool starts_from_weights() const { return !init_.empty(); }

  /// Looks for the files that flags name, and reads those that the shape of the model depends on.
  virtual void open(const RunFacts& run) = 0;
  /// Reads the data; may take long, and may run in any thread.
  virtual void load() = 0;
  virtual const Dataset& data() const = 0;  ///< After load().
  /// Finds out, on rank 0, whether finish() will be able to write.
  void check_outputs() const {
    if (!save_.empty()) require_writable_folder("--save", save_);
  }

  /// The model, bound to the data, for `batch` samples per micro-step. The device and this object outlive it.
  virtual std::unique_ptr<Model> make_model(Device& device, std::int64_t batch) = 0;
  /// Flags with which the model keeps less in memory. Those that save more come later.
  virtual std::vector<std::string> memory_flags() const { return {}; }
  /// All that decides what the network is, as numbers: layers, width, 1 for a kind of layer that it has. Checkpoints
  /// keep them: --resume compares them, --generate and --export make the model from them. Reports have them, too.
  virtual std::map<std::string, std::int64_t> sizes() const { return {}; }
  /// Sets the sizes to those of a checkpoint, as sizes() gave them.
  virtual void take_sizes(const std::map<std::string, std::int64_t>& /*sizes*/) {}
  /// Those of the weights to start from. Checkpoints keep them.
  virtual SpecialTokens special_tokens() const { return {}; }
  /// Sets them to those of a checkpoint.
  virtual void take_special_tokens(const SpecialTokens& /*tokens*/) {}
  /// After take_sizes(). UsageError if a flag has given another size.
  virtual void check_given_sizes() {}

  /// The model, without data, for texts. The device and this object outlive it. Null if the run continues none.
  virtual std::unique_ptr<TextModel> make_text_model(Device& /*device*/) { return nullptr; }
  /// The first tokens of the data for validation, at most `most`. After load().
  virtual std::vector<std::uint32_t> first_tokens(std::int64_t /*most*/) const { return {}; }
  virtual bool tokens_are_bytes() const { return false; }  ///< All tokens of the data and the model. After load().
  /// Tokens after which a text ends: by default those of special_tokens().
  virtual std::vector<std::uint32_t> end_tokens() const;

  /// Writes the f32 values of all parameters, by name, of a model of these sizes(), into a folder that is made where
  /// there is none: by default as model.safetensors, with the names and shapes of the model, and special_tokens() where
  /// the format has a place for them. Needs no open().
  virtual void export_weights(const std::filesystem::path& folder, const std::map<std::string, std::int64_t>&,
                              const std::map<std::string, HostTensor>& weights) const {
    write_weights(folder, weights);
  }
  /// Rank 0 writes the trained weights, the f32 values of all parameters by name, to the folder of --save. Collective.
  void finish(std::map<std::string, HostTensor> weights, const World& world) const {
    world.agree([&] {
      if (world.rank() == 0) save(save_, std::move(weights));
    });
  }

 protected:
  /// export_weights() of this object's model.
  virtual void save(const std::filesystem::path& folder, std::map<std::string, HostTensor> weights) const {
    export_weights(folder, sizes(), weights);
  }

  std::string init_;  ///< --init: weights to start from.
  std::string save_;  ///< --save: folder for trained weights.
};

}  // namespace ddptrain
