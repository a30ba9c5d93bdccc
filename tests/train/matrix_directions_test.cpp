#include "runtime/train/step/whole/matrix_directions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "models/decoder/parameters.h"
#include "models/gpt2/gpt2.h"
#include "models/llama/llama.h"
#include "tests/support/values.h"
#include "tests/train/rig.h"

namespace ddptrain {
namespace {

ParameterSpec spec(const std::string& name, const Shape& shape, std::vector<std::int64_t> matrix_rows) {
  ParameterSpec result{name, shape};
  result.matrix_rows = std::move(matrix_rows);
  return result;
}

std::vector<ParameterSpec> some_parameters() {
  return {spec("embedding", {50, 8}, {}), spec("merged", {48, 16}, {16, 16, 16}), spec("grouped", {32, 24}, {4, 2, 2}),
          spec("filters", {12, 3, 3, 4}, {12})};
}

std::vector<float> random_floats(std::int64_t count, std::uint32_t seed) {
  const tests::Values values = tests::random_values(count, seed);
  return {values.begin(), values.end()};
}

/// Every rank ends with what one rank finds for each matrix alone, and other parameters are left alone.
TEST(MatrixDirections, AreOfEachMatrixAloneAndTheSameOnAllRanks) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  Device& device = *rig.device;
  ArenaOptions options;
  options.bucket_bytes = 4000;
  options.units = {{"all", 0, 4}};
  const ParameterArena arena(some_parameters(), options, device, *rig.communicator);
  std::vector<std::vector<float>> expected;
  const std::vector<Tensor> gradients = arena.gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    expected.push_back(random_floats(gradients[i].size(), static_cast<std::uint32_t>(i)));
    device.copy_to_device(gradients[i].data, expected.back().data(), gradients[i].bytes());
  }
  for (const MatrixParameter& parameter : matrix_parameters(arena.specs())) {
    for (const RowBlocks& matrix : parameter.matrices) {
      const std::int64_t rows = matrix.rows(parameter.rows);
      const Buffer workspace = device.allocate(DType::f32, {OrthogonalOps::workspace_size(rows, parameter.columns)});
      const float scale = 0.2f * std::sqrt(static_cast<float>(std::max(rows, parameter.columns)));
      const Tensor values{expected[parameter.parameter].data(), DType::f32, {parameter.rows, parameter.columns}};
      device.get<OrthogonalOps>().orthogonalise(
          values, matrix, scale, workspace.view(DType::f32, {OrthogonalOps::workspace_size(rows, parameter.columns)}));
    }
  }
  MatrixDirections directions(arena);
  directions.find(rig.communicator.get());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    std::vector<float> found(expected[i].size());
    device.copy_to_host(found.data(), gradients[i].data, gradients[i].bytes());
    EXPECT_EQ(found, expected[i]) << arena.specs()[i].name;
  }
}

TEST(MatrixDirections, AreDealtEvenly) {
  std::vector<ParameterSpec> specs;
  for (int layer = 0; layer < 12; ++layer) {
    specs.push_back(spec(std::to_string(specs.size()), {64, 16}, {64}));
    specs.push_back(spec(std::to_string(specs.size()), {48, 16}, {16, 16, 16}));
    specs.push_back(spec(std::to_string(specs.size()), {16, 16}, {16}));
  }
  const std::vector<MatrixParameter> parameters = matrix_parameters(specs);
  for (const int ranks : {1, 2, 3, 8}) {
    std::vector<double> work(static_cast<std::size_t>(ranks), 0.0);
    const std::vector<int> owners = deal(parameters, ranks);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      work[static_cast<std::size_t>(owners[i])] += parameters[i].cost();
    const double mean = std::accumulate(work.begin(), work.end(), 0.0) / ranks;
    EXPECT_LT(*std::ranges::max_element(work), 1.25 * mean) << ranks;
  }
}

TEST(MatrixDirections, NeedWholeMatrices) {
  EXPECT_THROW(matrix_parameters({spec("a", {10, 4}, {4})}), Error) << "rows of no matrix";
  ParameterSpec part = spec("a", {10, 4}, {10});
  part.split = Split{{20, 4}, 0, 40, 80};
  EXPECT_THROW(matrix_parameters({part}), Error);
}

/// Rows of the matrices of the parameters whose names have this in them; empty: AdamW updates them.
std::vector<std::int64_t> rows_in(const std::vector<ParameterSpec>& specs, const std::string& name) {
  const auto found =
      std::ranges::find_if(specs, [&](const ParameterSpec& s) { return s.name.find(name) != std::string::npos; });
  return found == specs.end() ? std::vector<std::int64_t>{-1} : found->matrix_rows;
}

TEST(MatrixDirections, AreOfHiddenLayersAlone) {
  using Rows = std::vector<std::int64_t>;
  const auto gpt = decoder_parameters(gpt2_table({2, 32, 2, 64, 16, 61})).specs;
  EXPECT_EQ(rows_in(gpt, "attn.c_attn.weight"), (Rows{32, 32, 32}));
  EXPECT_EQ(rows_in(gpt, "attn.c_proj.weight"), Rows{32});
  EXPECT_EQ(rows_in(gpt, "mlp.c_fc.weight"), Rows{64});
  EXPECT_EQ(rows_in(gpt, "mlp.c_proj.weight"), Rows{32});
  for (const char* name : {"wte", "wpe", "bias", "ln_1", "ln_f"}) EXPECT_EQ(rows_in(gpt, name), Rows{}) << name;
  LlamaShape shape = {.layers = 2, .width = 32, .heads = 4, .key_heads = 2, .feed_forward = 48};
  shape.sequence = 16;
  shape.vocabulary = 61;
  shape.tied_head = false;
  const auto llama = decoder_parameters(llama_table(shape)).specs;
  std::vector<Rows> found;
  for (const ParameterSpec& s : llama) {
    if (s.name.find("layers.0.") != std::string::npos && !s.matrix_rows.empty()) found.push_back(s.matrix_rows);
  }
  EXPECT_EQ(found, (std::vector<Rows>{{32}, {48, 48}, {32}, {16, 8, 8}})) << "two queries, a key and a value in turn";
  for (const char* name : {"embed", "head", "norm"}) EXPECT_EQ(rows_in(llama, name), Rows{}) << name;
}

}  // namespace
}  // namespace ddptrain
