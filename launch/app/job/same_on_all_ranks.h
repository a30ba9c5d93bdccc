#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/core/hash.h"
#include "runtime/train/dataset.h"

namespace ddptrain {

using NamedValues = std::vector<std::pair<std::string, std::string>>;

/// The same UsageError on all ranks where values differ, with the first name that differs, its values and the ranks
/// that have them. Names need not be the same. Collective.
void require_same_values(const World& world, const NamedValues& mine);

/// What a rank has of the data.
struct HeldData {
  int node = 0;
  std::string host;
  std::string size;             ///< In words, of all the data.
  SharedHash::Value hash = {};  ///< Of its share; the ranks of a node have it all.
};

/// In words; empty where all nodes have the same data.
std::string data_differences(const std::vector<HeldData>& of_ranks);

/// Size and hash of the data, in words. The same UsageError on all ranks where sizes differ between ranks or contents
/// between nodes. Collective.
std::string require_same_data(const World& world, const DataContent& content);

}  // namespace ddptrain
