#pragma once

#include <filesystem>
#include <optional>

#include "data/images/images.h"

namespace ddptrain {

/// The four files of a data set of images in IDX, such as MNIST.
struct IdxSet {
  std::filesystem::path train_images;
  std::filesystem::path train_labels;
  std::filesystem::path test_images;
  std::filesystem::path test_labels;
};

/// Finds the set in `path`: a folder, or a folder and a prefix of file names (emnist/emnist-balanced). The names are
/// those of MNIST, Fashion-MNIST, KMNIST and EMNIST: [PREFIX-]train-images-idx3-ubyte, train-labels-idx1-ubyte, and
/// t10k- or test- instead of train-. Each may end in .gz, and may have "." instead of "-" before idx. Nothing if no
/// file has such a name. UsageError if files of a set are missing, or if there are several sets.
std::optional<IdxSet> find_idx_set(const std::filesystem::path& path);

/// Reads a set of at most 1,000,000 images of one size. Labels are classes. UsageError, naming the file, if files are
/// damaged or do not belong together.
ImageData load_idx_set(const IdxSet& set);

}  // namespace ddptrain
