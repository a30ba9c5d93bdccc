#pragma once

#include <cstdint>
#include <memory>

#include "data/dataset.h"
#include "data/tokens.h"
#include "models/model.h"
#include "runtime/device/device.h"

namespace ddptrain {

/// A data set where the device computes, from which batches are drawn there.
class ResidentData {
 public:
  virtual ~ResidentData() = default;

  virtual std::int64_t count() const = 0;  ///< Samples.
  /// Rows `order` of the data set at `step`; a view of this data set.
  virtual Batch batch(const SampleOrder& order, StepRef step, std::int64_t rows) const = 0;
};

/// Data to train and to test on. Outlived by the device.
struct ResidentSplits {
  std::unique_ptr<ResidentData> train;
  std::unique_ptr<ResidentData> test;
};

/// Copies the images once. Error where sizes do not fit together.
std::unique_ptr<ResidentData> make_resident(const ImageDataset& dataset, Device& device);
ResidentSplits make_resident(const ImageData& data, Device& device);

/// Windows of `sequence` tokens. Text of up to kResidentTokenBytes is copied; more is read over the bus where it lies
/// in the host's memory, which is a few kilobytes a step. `part` stays in use. UsageError where no window fits.
inline constexpr std::int64_t kResidentTokenBytes = std::int64_t{4} << 30;
std::unique_ptr<ResidentData> make_resident(const TokenPart& part, std::int64_t sequence, Device& device);
ResidentSplits make_resident(const TokenData& data, std::int64_t sequence, Device& device);

}  // namespace ddptrain
