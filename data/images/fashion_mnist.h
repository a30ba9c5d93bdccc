#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ddptrain {

/// The first of the usual folders that holds the four IDX files of Fashion-MNIST: data/downloads/fashion-mnist (below
/// the current folder) and /usr/share/datasets/fashion-mnist (the package dataset-fashion-mnist). UsageError, saying
/// where it looked and how to fetch them, where none does.
std::filesystem::path find_fashion_mnist();

/// What its labels mean.
std::vector<std::string> fashion_mnist_classes();

}  // namespace ddptrain
