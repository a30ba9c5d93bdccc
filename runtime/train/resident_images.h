#pragma once

#include <cstdint>

#include "data/dataset.h"
#include "runtime/backend/backend.h"

namespace ddptrain {

/// A data set of images, copied once to where the backend computes.
class ResidentImages {
 public:
  ResidentImages(const ImageDataset& dataset, Backend& backend);

  std::int64_t count() const { return count_; }
  ImageBatch batch(const SampleOrder& order, StepRef step, std::int64_t rows) const;

 private:
  std::int64_t count_;
  Buffer images_;
  Buffer labels_;
  Tensor images_view_;
  Tensor labels_view_;
};

}  // namespace ddptrain
