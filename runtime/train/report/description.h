#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/mesh_shape.h"
#include "runtime/core/tensor.h"
#include "runtime/train/model.h"
#include "runtime/train/step/store/parameter_arena.h"

/// The compute, communication and memory of a run, as its components report them. For ddptrain --describe and
/// --dry-run, and for the summary. The tools in Python read it and derive nothing themselves.

namespace ddptrain {

struct BucketWork {
  std::int64_t bytes = 0;               ///< Bytes that are sent, with padding.
  std::vector<std::string> parameters;  ///< Names.
  double complete_at = 0.0;             ///< Share of backward's FLOP after which all of its gradients are complete.
};

struct Description {
  std::string model;
  std::string device;     ///< cpu or cuda
  std::string precision;  ///< As --precision names it.
  MeshShape mesh;
  std::int64_t passes = 1;  ///< Micro-batches in a step.
  std::int64_t batch_per_rank = 0;
  std::int64_t grad_accum = 1;
  std::int64_t virtual_ranks = 0;  ///< 0: none.
  std::int64_t parameters = 0;
  std::string unit;
  std::int64_t units_per_sample = 1;
  double flop_per_sample = 0.0;  ///< As MFU counts them.
  std::vector<LayerWork> layers;
  std::string gradient_type;  ///< As --comm-dtype names it.
  std::string hierarchical;   ///< With MPI, as --hierarchical names it; empty with NCCL.
  std::vector<BucketWork> buckets;
  std::vector<Sent> sends;                      ///< The messages of a rank in a step.
  std::vector<MemoryUse> memory;                ///< The memory of one rank: of its device, and with a GPU of its host.
  std::vector<std::string> decides_parameters;  ///< Flags that change the parameters after training.

  std::int64_t gradient_bytes() const;  ///< The sum over all buckets.
  std::size_t device_bytes() const;     ///< The memory of the rank's device.
  std::size_t host_bytes() const;       ///< What a rank with a GPU keeps in the memory of its host.

  std::string json() const;     ///< The whole description, on several lines.
  std::string summary() const;  ///< JSON on one line, without layers and names.
  std::string table() const;    ///< Memory, for people.
};

std::vector<BucketWork> work_of_buckets(const Model& model, const ParameterArena& arena);

}  // namespace ddptrain
