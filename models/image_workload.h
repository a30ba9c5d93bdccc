#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/images/images.h"
#include "models/workload.h"
#include "runtime/core/files/safetensors.h"

namespace ddptrain {

/// Base class of workloads of images: --data names a data set or synthetic images, --init weights to start from, --save
/// a folder for trained weights. Files have the names and layouts of the same layers in PyTorch.
class ImageWorkload : public Workload {
 public:
  Flags flags() override;
  void open(const RunFacts& run) override;
  void load() override;
  const Dataset& data() const override { return images_; }
  std::map<std::string, std::int64_t> sizes() const override;
  void export_weights(const std::filesystem::path& folder, const std::map<std::string, std::int64_t>& sizes,
                      const std::map<std::string, HostTensor>& weights) const override;

 protected:
  const RunFacts& run() const { return run_; }
  const ImageData& images() const { return images_; }
  /// A function that reads the values that a parameter starts from; null without --init.
  std::function<std::vector<float>(const std::string& name)> pretrained() const;

  /// The parameters of a model of these sizes(), as they are in memory.
  virtual std::vector<ParameterSpec> parameters(const std::map<std::string, std::int64_t>& sizes) const = 0;
  /// UsageError if the model cannot be of these sizes().
  virtual void check_sizes() const {}
  /// How parameter `name` of a model of these sizes(), `tensor` in memory, is in a file; and back, from the values.
  virtual HostTensor for_file(const std::map<std::string, std::int64_t>&, const std::string&, HostTensor tensor) const {
    return tensor;
  }
  virtual std::vector<float> from_file(const std::string&, std::vector<float> values) const { return values; }

 private:
  void check_weights() const;

  std::string data_;
  RunFacts run_;
  std::function<ImageData()> read_;
  ImageData images_;
  std::shared_ptr<const SafetensorsFile> weights_;  ///< The file that --init names.
};

}  // namespace ddptrain
