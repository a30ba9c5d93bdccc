#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include "models/workload.h"

// How rank 0 puts together the weights that stages and slices have.

namespace ddptrain {
namespace {

/// A parameter, or one rank's part of it.
struct Part {
  Split split;
  std::vector<float> values;
};
using Parts = std::map<std::string, Part>;

/// The parts that this rank stores. Replicas but the first have none. Collective.
Parts own_parts(const TrainingState& state, bool is_first_replica) {
  Parts parts;
  state.visit_parameters([&](const ParameterSpec& spec, std::int64_t begin, std::span<const float> values) {
    if (!is_first_replica || spec.is_copy) return;
    Part& part = parts[spec.name];
    part.split = spec.slice();
    if (begin == 0) part.values.reserve(static_cast<std::size_t>(spec.size()));
    part.values.insert(part.values.end(), values.begin(), values.end());
  });
  return parts;
}

/// A line per part: name, elements, split. Names have no spaces.
std::string list_of(const Parts& parts) {
  std::string list;
  for (const auto& [name, part] : parts) {
    const Split& split = part.split;
    list += fmt::format("{} {} {} {} {} {}\n", name, part.values.size(), split.first, split.run, split.stride,
                        fmt::join(split.whole, " "));
  }
  return list;
}

/// A line of list_of().
struct ListedPart {
  std::string name;
  std::size_t size = 0;
  Split split;
};

std::vector<ListedPart> parts_in(const std::string& list) {
  std::vector<ListedPart> parts;
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    ListedPart& part = parts.emplace_back();
    std::istringstream words(line);
    words >> part.name >> part.size >> part.split.first >> part.split.run >> part.split.stride;
    for (std::int64_t dimension = 0; words >> dimension;) part.split.whole.push_back(dimension);
  }
  return parts;
}

void put_into(std::map<std::string, HostTensor>& weights, const std::string& name, Part part) {
  HostTensor& tensor = weights[name];
  tensor.shape = part.split.whole;
  if (part.split.has_all()) {
    tensor.values = std::move(part.values);
    return;
  }
  tensor.values.resize(static_cast<std::size_t>(element_count(tensor.shape)));
  const auto size = std::ssize(part.values);
  part.split.visit(0, size, [&](std::int64_t at, std::int64_t in_whole, std::int64_t count) {
    std::copy_n(part.values.begin() + at, count, tensor.values.begin() + in_whole);
  });
}

void broadcast(const World& world, std::vector<float>& values, int root) {
  constexpr std::size_t kPiece = std::size_t{1} << 26;
  for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
    const std::size_t count = std::min(kPiece, values.size() - begin);
    world.broadcast(values.data() + begin, count * sizeof(float), root);
  }
}

/// The f32 values of all parameters, by name, on rank 0; empty on the others. The ranks of `world` are a mesh of this
/// shape: the stages and slices of the first replica are put together. Collective.
std::map<std::string, HostTensor> whole_weights(const TrainingState& state, const World& world, const MeshShape& mesh) {
  std::map<std::string, HostTensor> weights;
  const bool is_first_replica = mesh.replica_of(world.rank()) == 0;
  Parts mine = own_parts(state, is_first_replica);
  if (mesh.replica_is_one_rank()) {
    if (world.rank() != 0) return weights;
    for (auto& [name, part] : mine) put_into(weights, name, std::move(part));
    return weights;
  }
  const std::unique_ptr<World> replica = world.split(is_first_replica ? 0 : 1);
  const std::vector<std::string> lists = replica->all_gather(list_of(mine));
  for (int root = 0; root < replica->size(); ++root) {
    for (const ListedPart& listed : parts_in(lists[static_cast<std::size_t>(root)])) {
      Part part{listed.split, {}};
      if (replica->rank() == root) part = std::move(mine.at(listed.name));
      part.values.resize(listed.size);
      broadcast(*replica, part.values, root);
      if (world.rank() == 0) put_into(weights, listed.name, std::move(part));
    }
  }
  return weights;
}

}  // namespace

void Workload::finish(const TrainingState& state, const World& world, const MeshShape& mesh) const {
  if (save_.empty()) return;
  std::map<std::string, HostTensor> weights = whole_weights(state, world, mesh);
  world.agree([&] {
    if (world.rank() == 0) save(save_, std::move(weights));
  });
}

}  // namespace ddptrain
