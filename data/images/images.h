#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/step.h"
#include "runtime/device/device.h"
#include "runtime/train/dataset.h"

/// Data sets of images: in host memory, and where the device computes.

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
  std::vector<std::string> class_names;  ///< Numbers, except of Fashion-MNIST.

  ImageData() = default;
  /// As many classes as the images of both parts have.
  ImageData(ImageDataset train_images, ImageDataset test_images);
  std::int64_t train_count() const override { return train.count; }
  std::int64_t test_count() const override { return test.count; }
  DataContent content() const override;

  /// Hashes the share of `reader`, of `readers` on this host, for content().
  void hash_share(int reader, int readers);

 private:
  SharedHash hash_;
};

/// Looks for the images that `name` names: synthetic[:COUNT], or where find_idx_set() finds some; empty:
/// $DDPTRAIN_DATA, else Fashion-MNIST. Returns what reads them, from any thread. UsageError from either.
std::function<ImageData()> find_images(const std::string& name, std::uint64_t seed);

/// The first of the usual folders that holds the four IDX files of Fashion-MNIST: data/downloads/fashion-mnist (below
/// the current folder) and /usr/share/datasets/fashion-mnist (the package dataset-fashion-mnist). UsageError, saying
/// where it looked and how to fetch them, if none does.
std::filesystem::path find_fashion_mnist();
/// The meaning of its labels.
std::vector<std::string> fashion_mnist_classes();

/// Where a model finds its images: views, and the memory behind them where it is not somebody else's.
struct ResidentImages {
  ImageSource train;
  ImageSource test;
  std::vector<Buffer> memory = {};
};

/// Copies the images to the device, which outlives them. Error where sizes do not fit together.
ResidentImages make_resident(const ImageData& data, Device& device);

}  // namespace ddptrain
