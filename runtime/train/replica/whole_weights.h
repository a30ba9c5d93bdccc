#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/train/replica/replica.h"

namespace ddptrain {

/// The f32 master weights of a whole model, or its weights if it has none, as one array on rank 0, however the ranks
/// divide them: pipeline stages, split layers, ZeRO. Parameters follow each other in the order of
/// Model::parameters_of_all_stages(), without padding.
class WholeWeights {
 public:
  struct Parameter {
    std::string name;
    Shape shape;         ///< Of the whole parameter.
    std::int64_t begin;  ///< In the array.
  };

  /// `index`: of this rank's replica among the replicas. `world` has the ranks of all replicas. Both outlive the
  /// object. Collective.
  WholeWeights(const Replica& replica, int index, const World& world);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  std::int64_t size() const { return size_; }

  /// Rank 0 gets elements [begin, begin + count) of the array in `values`, which is empty on other ranks. Collective;
  /// waits for the device.
  void read(std::int64_t begin, std::int64_t count, std::span<float> values) const;
  /// All ranks set their weights and master weights to rank 0's `values`. Collective; waits for the device.
  void write(std::int64_t begin, std::int64_t count, std::span<const float> values) const;

 private:
  /// Elements that follow each other in a piece of memory of this rank, and in the array.
  struct Run {
    std::int64_t at;        ///< In the piece.
    std::int64_t in_whole;  ///< In the array.
    std::int64_t count;
  };
  struct Piece {
    Tensor values;
    std::vector<Run> runs;
    bool is_source = false;  ///< read() takes these elements from this rank and this piece.
  };
  /// What a rank sends to rank 0.
  struct Stretch {
    std::int64_t begin;
    std::int64_t count;
  };

  std::vector<Stretch> sources_within(int rank, std::int64_t begin, std::int64_t end) const;
  static std::vector<Run> runs_within(const Piece& piece, std::int64_t begin, std::int64_t end);
  std::vector<float> own_sources(std::int64_t begin, std::int64_t end) const;
  std::vector<float> all_sources(std::int64_t begin, std::int64_t end) const;
  void set(std::int64_t begin, std::span<const float> values) const;

  const World& world_;
  Device& device_;
  std::vector<Parameter> parameters_;
  std::int64_t size_ = 0;
  std::vector<Piece> pieces_;
  std::vector<std::vector<Stretch>> sources_;  ///< Of each rank, in the order of its pieces.
};

}  // namespace ddptrain
