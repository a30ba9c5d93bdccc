#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/step.h"
#include "runtime/device/device.h"
#include "runtime/ops/image_batch.h"
#include "runtime/train/dataset.h"

/// Data sets of images, in host memory and on the device.

namespace ddptrain {

/// Labelled grey-scale images in host memory.
struct ImageDataset {
  std::int64_t count = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t classes = 0;
  std::vector<std::uint8_t> images;  ///< [count, height, width]
  std::vector<std::uint8_t> labels;  ///< [count], each below `classes`
};

struct ImageData final : public Dataset {
  ImageDataset train;
  ImageDataset test;
  std::string source = "synthetic";  ///< The folder of files.

  ImageData() = default;
  /// The number of classes follows from the labels of both parts.
  ImageData(ImageDataset train_images, ImageDataset test_images);
  std::int64_t train_count() const override { return train.count; }
  std::int64_t test_count() const override { return test.count; }
  DataContent content() const override;

  /// Hashes the share of `reader` among the `readers` of this host, for content().
  void hash_share(int reader, int readers);

 private:
  SharedHash hash_;
};

/// Finds the images that `name` names: synthetic[:COUNT], or a path for find_idx_set(). An empty name means
/// $DDPTRAIN_DATA if it is set, otherwise Fashion-MNIST in data/downloads/fashion-mnist below the current folder, or in
/// /usr/share/datasets/fashion-mnist (of the package dataset-fashion-mnist). Returns a function that reads them on any
/// thread. Both may throw a UsageError. `readers`: processes of this host that do the same.
std::function<ImageData()> find_images(const std::string& name, std::uint64_t seed, int readers = 1);

/// Makes random 28x28 images of ten classes for measurements without files. Each class has a smooth pattern under
/// noise, which a network can learn. There are `train_count` training images, and a tenth as many test images, but at
/// least 10. The images depend only on count and seed. UsageError unless `train_count` is in [1, 2^32), or if this
/// process cannot take the memory for them; `readers`: see require_host_memory().
ImageData make_synthetic(std::int64_t train_count, std::uint64_t seed, int readers = 1);

/// The images of a model. `memory` owns the memory behind the views, if nobody else does.
struct ResidentImages {
  ImageSource train;
  ImageSource test;
  std::vector<Buffer> memory = {};
};

/// Copies the images to the device, which outlives them.
ResidentImages make_resident(const ImageData& data, Device& device);

}  // namespace ddptrain
