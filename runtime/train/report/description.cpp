#include "runtime/train/report/description.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

using Json = nlohmann::ordered_json;

double sum(const std::vector<LayerWork>& layers, double LayerWork::*flop) {
  double total = 0.0;
  for (const LayerWork& layer : layers) total += layer.*flop;
  return total;
}

std::size_t sum(const std::vector<MemoryUse>& memory, bool on_host) {
  std::size_t total = 0;
  for (const MemoryUse& use : memory) total += use.on_host == on_host ? use.bytes : 0;
  return total;
}

Json json_of(const LayerWork& layer) {
  return {{"name", layer.name},
          {"flop_forward", layer.forward},
          {"flop_backward", layer.backward},
          {"flop_forward_causal", layer.forward_causal},
          {"flop_backward_causal", layer.backward_causal}};
}

Json json_of(const Description& d, bool whole) {
  Json json = {{"model", d.model},
               {"device", d.device},
               {"precision", d.precision},
               {"world_size", d.mesh.ranks()},
               {"stages", d.mesh.stages},
               {"tensor", d.mesh.tensor},
               {"batch_per_rank", d.batch_per_rank},
               {"grad_accum", d.grad_accum},
               {"virtual_ranks", d.virtual_ranks},
               {"parameters", d.parameters},
               {"unit", d.unit},
               {"units_per_sample", d.units_per_sample},
               {"flop_per_sample", d.flop_per_sample},
               {"flop_forward_per_sample", sum(d.layers, &LayerWork::forward)},
               {"flop_backward_per_sample", sum(d.layers, &LayerWork::backward)}};
  if (whole) {
    for (const LayerWork& layer : d.layers) json["layers"].push_back(json_of(layer));
  }
  json["gradient_dtype"] = d.gradient_type;
  if (!d.hierarchical.empty()) json["hierarchical"] = d.hierarchical;
  json["comm_bytes_per_step"] = d.gradient_bytes();
  for (const BucketWork& bucket : d.buckets) {
    Json& made = json["buckets"].emplace_back(Json{{"bytes", bucket.bytes}, {"complete_at", bucket.complete_at}});
    if (whole) made["parameters"] = bucket.parameters;
  }
  json["sends"] = Json::array();
  for (const auto& [axis, when, times, bytes] : d.sends) {
    json["sends"].push_back({{"axis", axis}, {"when", when}, {"times", times}, {"bytes", bytes}});
  }
  for (const auto& [purpose, bytes, on_host] : d.memory) json[on_host ? "host_memory" : "memory"][purpose] = bytes;
  json["decides_parameters"] = d.decides_parameters;
  return json;
}

}  // namespace

std::vector<BucketWork> work_of_buckets(const Model& model, const ParameterArena& arena) {
  const ModelWork work = model.work();
  const std::vector<ParameterSpec>& specs = arena.specs();
  DDP_CHECK(work.ready_after.size() == specs.size(), "work of {} parameters, and there are {}", work.ready_after.size(),
            specs.size());
  const double backward = sum(work.layers, &LayerWork::backward);
  std::vector<BucketWork> buckets;
  for (const Bucket& bucket : arena.plan().buckets) {
    BucketWork& made = buckets.emplace_back();
    made.bytes = bucket.size * static_cast<std::int64_t>(size_of(arena.gradient_type()));
    for (std::size_t i = bucket.first_parameter; i < bucket.first_parameter + bucket.parameter_count; ++i) {
      made.parameters.push_back(specs[i].name);
      made.complete_at = std::max(made.complete_at, work.ready_after[i] / backward);
    }
  }
  return buckets;
}

std::int64_t Description::gradient_bytes() const {
  std::int64_t bytes = 0;
  for (const BucketWork& bucket : buckets) bytes += bucket.bytes;
  return bytes;
}

std::size_t Description::device_bytes() const { return sum(memory, false); }
std::size_t Description::host_bytes() const { return sum(memory, true); }

std::string Description::json() const { return json_of(*this, true).dump(1) + "\n"; }
std::string Description::summary() const { return json_of(*this, false).dump(); }

std::string Description::table() const {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [purpose, bytes, on_host] : memory) {
    if (bytes > 0 && !on_host) rows.push_back({purpose, size_text(bytes)});
  }
  rows.push_back({"all", size_text(device_bytes())});
  for (const auto& [purpose, bytes, on_host] : memory) {
    if (bytes > 0 && on_host) rows.push_back({"host: " + purpose, size_text(bytes)});
  }
  if (host_bytes() > 0) rows.push_back({"host: all", size_text(host_bytes())});
  return text_table(rows);
}

}  // namespace ddptrain
