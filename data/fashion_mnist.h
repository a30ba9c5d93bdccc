#pragma once

#include <filesystem>
#include <string>

#include "data/images.h"

namespace ddptrain {

/// The folder that holds the four IDX files of Fashion-MNIST, plain or gzip. `dir` if it is not empty, else
/// $DDPTRAIN_DATA if that is set; else the first that has them of data/downloads/fashion-mnist (below the current
/// folder) and /usr/share/datasets/fashion-mnist (the package dataset-fashion-mnist).
/// UsageError, saying where it looked and how to fetch them, where a file is missing.
std::filesystem::path find_fashion_mnist(const std::string& dir);

/// Reads the four files of `dir`, in parallel. UsageError where read_idx finds a fault, an image is not 28x28, a label
/// is above 9, there are not as many labels as images, or more than a million.
ImageData load_fashion_mnist(const std::filesystem::path& dir);

}  // namespace ddptrain
