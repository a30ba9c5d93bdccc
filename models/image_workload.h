#pragma once

#include <functional>
#include <string>

#include "data/images.h"
#include "models/workload.h"

namespace ddptrain {

/// What workloads of images share: --data names Fashion-MNIST or synthetic images.
class ImageWorkload : public Workload {
 public:
  void add_flags(CLI::App& app) override;
  void open(const RunFacts& run) override;
  void load() override;
  const Dataset& data() const override { return images_; }

 protected:
  const RunFacts& run() const { return run_; }
  const ImageData& images() const { return images_; }

 private:
  std::string data_;
  RunFacts run_;
  std::function<ImageData()> read_;
  ImageData images_;
};

}  // namespace ddptrain
