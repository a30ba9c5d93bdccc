#include "runtime/comm/world.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "runtime/comm/mesh.h"
#include "runtime/core/error.h"
#include "runtime/core/process/scoped_environment.h"
#include "tests/support/mpi_main.h"
#include "tests/support/says.h"

namespace ddptrain {
namespace {

TEST(World, RanksOfOneHost) {
  World& world = test_world();
  EXPECT_GE(world.rank(), 0);
  EXPECT_LT(world.rank(), world.size());
  EXPECT_EQ(world.sum(world.rank()), world.size() * (world.size() - 1) / 2);
  EXPECT_EQ(world.nodes(), 1);
  EXPECT_EQ(world.node(), 0);
  EXPECT_EQ(world.local_rank(), world.rank());
  EXPECT_EQ(world.local_size(), world.size());
  EXPECT_FALSE(world.hostname().empty());
}

TEST(World, HostsAreNumberedByTheirLowestRank) {
  EXPECT_EQ(number_hosts({7, 7, 8, 8}), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(number_hosts({9, 8, 9, 3, 8}), (std::vector<int>{0, 1, 0, 2, 1}));
}

std::string after_shorten_mpi_start(const char* variable) {
  shorten_mpi_start();
  const char* value = std::getenv(variable);
  return value == nullptr ? "unset" : value;
}

TEST(World, ShortenMpiStartKeepsWhatTheUserSet) {
  ScopedEnvironment user;
  user.set("HWLOC_COMPONENTS", std::nullopt);
  EXPECT_EQ(after_shorten_mpi_start("HWLOC_COMPONENTS"), "-cuda,-nvml,-opencl,-gl");
  user.set("HWLOC_COMPONENTS", "-gl");
  EXPECT_EQ(after_shorten_mpi_start("HWLOC_COMPONENTS"), "-gl");
  using Entries = std::filesystem::directory_iterator;
  std::error_code no_folder;
  const bool has_cards =
      Entries("/sys/class/infiniband", no_folder) != Entries() || std::filesystem::exists("/dev/cxi0");
  user.set("OMPI_MCA_mtl", std::nullopt);
  user.set("OMPI_MCA_pml", std::nullopt);
  EXPECT_EQ(after_shorten_mpi_start("OMPI_MCA_pml"), has_cards ? "unset" : "^cm,ucx");
  user.set("OMPI_MCA_pml", "ob1");
  EXPECT_EQ(after_shorten_mpi_start("OMPI_MCA_pml"), "ob1");
  user.set("OMPI_MCA_pml", std::nullopt);
  user.set("OMPI_MCA_mtl", "ofi");
  EXPECT_EQ(after_shorten_mpi_start("OMPI_MCA_pml"), "unset");
}

TEST(World, Reductions) {
  World& world = test_world();
  const double mine = 1.5 * (world.rank() + 1);
  EXPECT_EQ(world.sum(mine), 0.75 * world.size() * (world.size() + 1));
  EXPECT_EQ(world.max(mine), 1.5 * world.size());
  EXPECT_EQ(world.min(mine), 1.5);
}

TEST(World, BroadcastFromEveryRank) {
  World& world = test_world();
  for (int root = 0; root < world.size(); ++root) {
    std::vector<int> values(1001, world.rank());
    world.broadcast(values.data(), values.size() * sizeof(int), root);
    EXPECT_EQ(values, std::vector<int>(1001, root));
  }
}

TEST(World, AllGatherOfDifferentLengths) {
  World& world = test_world();
  const auto text_of = [](int rank) {
    return std::string(static_cast<std::size_t>(rank * 3), static_cast<char>('a' + rank));
  };
  const auto all = world.all_gather(text_of(world.rank()));
  ASSERT_EQ(all.size(), static_cast<std::size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) EXPECT_EQ(all[static_cast<std::size_t>(rank)], text_of(rank));
}

TEST(World, AllGatherPutsTheValuesOfRanksBehindEachOther) {
  World& world = test_world();
  std::vector<double> expected;
  for (int rank = 0; rank < world.size(); ++rank) {
    expected.insert(expected.end(), static_cast<std::size_t>(rank), 0.5 + rank);
  }
  const std::vector<double> mine(static_cast<std::size_t>(world.rank()), 0.5 + world.rank());
  EXPECT_EQ(world.all_gather(mine), expected);
}

TEST(World, DifferencesNameValuesAndRanks) {
  EXPECT_EQ(differences({"a", "a", "a"}), "");
  EXPECT_EQ(differences({"a", "b"}), "a on rank 0; b on rank 1");
  EXPECT_EQ(differences({"b", "a", "b", "b", "c"}), "b on ranks 0, 2-3; a on rank 1; c on rank 4");
  EXPECT_EQ(differences({"a", "a", "b", "b"}, {"x", "x", "y", "z"}), "a on ranks 0-1 (x); b on ranks 2-3 (y, z)");
}

TEST(World, QuietBarrierWaitsForTheLastRank) {
  using Clock = std::chrono::steady_clock;
  World& world = test_world();
  const auto seconds = [] { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); };
  world.barrier();
  const bool last = world.rank() == world.size() - 1;
  if (last) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double entered = seconds();
  world.quiet_barrier();
  const double left = seconds();
  EXPECT_GE(left, world.max(last ? entered : 0.0));  // all ranks are on one host, and so have one clock
}

/// Of the error that all ranks throw.
template <class Thrown>
std::string message_of_agree(const std::function<void()>& check) {
  return error_message<Thrown>([&] { test_world().agree(check); });
}

TEST(World, AgreeSpreadsTheErrorOfOneRank) {
  World& world = test_world();
  for (int guilty = 0; guilty < world.size(); ++guilty) {
    const auto usage = message_of_agree<UsageError>([&] {
      if (world.rank() == guilty) usage_error("no file on rank {}", guilty);
    });
    EXPECT_EQ(usage, "no file on rank " + std::to_string(guilty));
    const auto error = message_of_agree<Error>([&] {
      if (world.rank() == guilty) throw std::out_of_range("at " + std::to_string(guilty));
    });
    EXPECT_EQ(error, "at " + std::to_string(guilty));
  }
}

TEST(World, AgreeTakesTheLowestOfSeveral) {
  World& world = test_world();
  const int lowest = world.size() > 1 ? 1 : 0;
  const auto message = message_of_agree<Error>([&] {
    if (world.rank() == lowest) fail("rank {} of {}", world.rank(), std::string(5000, 'x'));
    if (world.rank() > lowest) usage_error("rank {}", world.rank());
  });
  EXPECT_EQ(message, "rank " + std::to_string(lowest) + " of " + std::string(5000, 'x'));
}

TEST(Mesh, EveryRankHasOnePlaceAndPartsAreNeighbours) {
  const MeshShape shape = mesh_of(24, 2, 3);
  EXPECT_EQ(shape.replicas, 4);
  for (int rank = 0; rank < 24; ++rank) {
    EXPECT_EQ((shape.stage_of(rank) * 4 + shape.replica_of(rank)) * 3 + shape.tensor_rank_of(rank), rank);
    EXPECT_LT(shape.stage_of(rank), 2);
    EXPECT_LT(shape.replica_of(rank), 4);
  }
  EXPECT_THROW(mesh_of(8, 2, 3), UsageError);
  EXPECT_EQ(shape.place_of(23), "stage 1, replica 3, part 2");
  EXPECT_EQ(mesh_of(4, 2, 2).place_of(2), "stage 1, part 0");
  EXPECT_EQ(mesh_of(4, 1, 1).place_of(2), "");
}

/// A rank outside of the mesh had a stage that the model does not have.
TEST(Mesh, HasNoEmptyAxisAndNoOtherRanks) {
  EXPECT_THROW(MeshShape(0, 1, 1), Error);
  EXPECT_THROW(MeshShape(1, 0, 1), Error);
  EXPECT_THROW(MeshShape(1, 1, -1), Error);
  EXPECT_THROW(mesh_of(4, 0, 1), Error);
  EXPECT_THROW(mesh_of(0, 1, 1), Error);
  EXPECT_THROW(MeshShape{}.stage_of(1), Error);
  EXPECT_THROW(MeshShape{}.replica_of(-1), Error);
  EXPECT_THROW(mesh_of(4, 2, 1).tensor_rank_of(4), Error);
}

TEST(Mesh, GroupsOfAnAxisDifferAlongItAlone) {
  const World& world = test_world();
  if (world.size() != 4) GTEST_SKIP() << "needs four ranks";
  const Mesh mesh(world, mesh_of(4, 1, 2));
  EXPECT_EQ(mesh.stages(), nullptr);
  EXPECT_EQ(mesh.tensor()->sum(world.rank()), world.rank() < 2 ? 0 + 1 : 2 + 3);
  EXPECT_EQ(mesh.tensor()->rank(), mesh.tensor_rank());
  EXPECT_EQ(mesh.replicas().sum(world.rank()), world.rank() % 2 == 0 ? 0 + 2 : 1 + 3);
  const Mesh staged(world, mesh_of(4, 2, 2));
  EXPECT_EQ(staged.replicas().size(), 1);
  EXPECT_EQ(staged.stages()->sum(world.rank()), world.rank() % 2 == 0 ? 0 + 2 : 1 + 3);
  EXPECT_EQ(staged.tensor()->sum(world.rank()), world.rank() < 2 ? 0 + 1 : 2 + 3);
  EXPECT_EQ(&mesh.stage_ranks(), &world);
  EXPECT_EQ(staged.stage_ranks().sum(world.rank()), world.rank() < 2 ? 0 + 1 : 2 + 3);
}

}  // namespace
}  // namespace ddptrain
