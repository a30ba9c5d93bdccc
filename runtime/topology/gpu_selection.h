#pragma once

#include <filesystem>

namespace ddptrain {

/// The number of GPUs that CUDA would show this process, without starting CUDA: the entries of CUDA_VISIBLE_DEVICES, or
/// without that variable the device files in `devices`.
int visible_gpus(const std::filesystem::path& devices = "/dev");

/// Sets CUDA_VISIBLE_DEVICES so that GPU `index` of the visible GPUs is the only visible one, with number 0. This saves
/// the time that CUDA needs to start on every visible GPU. Call it before CUDA starts.
void show_only_gpu(int index);

}  // namespace ddptrain
