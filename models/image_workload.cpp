#include "models/image_workload.h"

#include <filesystem>
#include <system_error>
#include <utility>

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

fs::path weights_file(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  if (fs::exists(fs::path(path) / "model.safetensors", ignored)) return fs::path(path) / "model.safetensors";
  usage_error("{}: no model.safetensors in this folder. --save and --export write one.", path);
}

}  // namespace

Flags ImageWorkload::flags() {
  return {{"--data", text(data_, "PATH"),
           "Folder of IDX files (such as MNIST), or synthetic[:COUNT] (default: the folder $DDPTRAIN_DATA, else "
           "Fashion-MNIST in data/downloads/fashion-mnist or /usr/share/datasets/fashion-mnist)"},
          {"--init", text(init_, "PATH"), "Start from these weights: folder of --save or safetensors file"},
          {"--save", text(save_, "DIR"),
           "Write the trained weights to this folder: model.safetensors, with PyTorch's names and layouts",
           Effect::output}};
}

void ImageWorkload::open(const RunFacts& run) {
  run_ = run;
  read_ = about("--data", [&] { return find_images(data_, run.seed, run.local_size); });
  if (init_.empty()) return;
  weights_ = about("--init", [&] { return std::make_shared<SafetensorsFile>(weights_file(init_)); });
}

void ImageWorkload::load() {
  images_ = about("--data", read_);
  images_.hash_share(run_.local_rank, run_.local_size);
  about("--data", [&] { check_sizes(); });
  if (weights_ != nullptr) about("--init", [&] { check_weights(); });
}

std::map<std::string, std::int64_t> ImageWorkload::sizes() const {
  return {{"height", images_.train.height}, {"width", images_.train.width}, {"classes", images_.train.classes}};
}

void ImageWorkload::check_weights() const {
  for (const ParameterSpec& spec : parameters(sizes())) {
    const Shape expected = for_file(sizes(), spec.name, {spec.shape, std::vector<float>(spec.size())}).shape;
    const Shape& stored = weights_->tensor(spec.name).shape;
    if (stored == expected) continue;
    usage_error("{}: {} is [{}], and the model for these images ({}x{}, {} classes) has [{}]", weights_->name(),
                spec.name, fmt::join(stored, ", "), images_.train.height, images_.train.width, images_.train.classes,
                fmt::join(expected, ", "));
  }
}

std::function<std::vector<float>(const std::string& name)> ImageWorkload::pretrained() const {
  if (weights_ == nullptr) return nullptr;
  return [this](const std::string& name) { return from_file(name, weights_->read_f32(name)); };
}

void ImageWorkload::export_weights(const fs::path& folder, const std::map<std::string, std::int64_t>& sizes,
                                   const std::map<std::string, HostTensor>& weights) const {
  std::map<std::string, HostTensor> stored;
  for (const auto& [name, tensor] : weights) stored[name] = for_file(sizes, name, tensor);
  Workload::export_weights(folder, sizes, stored);
}

}  // namespace ddptrain
