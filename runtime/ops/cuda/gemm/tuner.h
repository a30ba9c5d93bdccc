#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/tuned_choices.h"
#include "runtime/ops/cuda/gemm/matmul.h"

namespace ddptrain::cuda {

/// Shorter work is not worth a longer search.
inline constexpr float kLongMilliseconds = 0.05f;

/// Time on `stream` of one run of `work`, the best of a few after a first; ms. Waits.
float milliseconds_of(const std::function<void()>& work, cudaStream_t stream);

/// The same for each of `ways`: infinity if it returns false, which says that it cannot do the work. A way that takes
/// much longer than another one is timed once. After a second of timed runs it tries no more. Runs each several
/// times, so each must give the same when it is repeated.
std::vector<float> milliseconds_of(const std::vector<std::function<bool()>>& ways, cudaStream_t stream);

/// Indices of the finite ones of `times`.
std::vector<std::size_t> fastest_first(const std::vector<float>& times);

/// Index of the fastest of `ways` on `stream`; none if all return false. If it takes kLongMilliseconds, it runs for 50
/// ms, and then the fastest six within 5% of it are timed again, each for 25 ms: under load a GPU lowers its clock, for
/// some ways more than for others. Waits.
std::optional<std::size_t> fastest_of(const std::vector<std::function<bool()>>& ways, cudaStream_t stream);

/// Picks among ways to do the same by timing them when an operation is first seen, unless the device's TunedChoices
/// know the way.
class Tuner {
 public:
  struct Way {
    const char* name;
    /// Queues the work, or does nothing and returns false if this way cannot do it. Gives the same however often it
    /// runs.
    std::function<bool()> run;
  };

  /// Without DeviceOptions::tune the first way is taken, always.
  explicit Tuner(Device& device) : device_(device), choices_(device.get<TunedChoices>()) {}

  /// Whether run() would time its ways.
  bool is_new(const std::string& operation, const Gemm& gemm, const std::vector<Way>& ways) const;
  /// The first way must be able to do everything. Nothing is timed while the stream is being captured.
  void run(const std::string& operation, const Gemm& gemm, const std::vector<Way>& ways);

 private:
  /// For TunedChoices: with the names of the ways, so that a choice among others is none.
  std::string work(const std::string& operation, const Gemm& gemm, const std::vector<Way>& ways) const;
  cudaStream_t stream() const { return static_cast<cudaStream_t>(device_.compute_stream().handle); }
  const Way& fastest(const std::vector<Way>& ways) const;
  std::size_t index(const std::string& operation, const Gemm& gemm, const std::vector<Way>& ways);

  Device& device_;
  TunedChoices& choices_;
  std::map<std::pair<std::string, Gemm>, std::size_t> chosen_;
};

}  // namespace ddptrain::cuda
