#pragma once

#include <filesystem>

namespace ddptrain {

/// How many GPUs CUDA would show this process, told without starting CUDA: the entries of CUDA_VISIBLE_DEVICES, else
/// the device files in `devices`.
int visible_gpus(const std::filesystem::path& devices = "/dev");

/// Leaves GPU `index` of the visible ones the only visible one (as number 0), by setting CUDA_VISIBLE_DEVICES: CUDA
/// takes time for every GPU that a process sees. Before CUDA is started.
void show_only_gpu(int index);

}  // namespace ddptrain
