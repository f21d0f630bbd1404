// Runs every fuzz target over its corpus, and over fixed mutations of it, without libFuzzer.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <random>
#include <string>
#include <vector>

// CMake writes the list of targets: CAIRN_FUZZ_TARGET(name, mutations) for each.
#define CAIRN_FUZZ_TARGET(name, mutations) \
  extern "C" int cairn_fuzz_##name(const uint8_t* data, size_t size);
#include "fuzz_targets.inc"
#undef CAIRN_FUZZ_TARGET

namespace {

using Input = std::vector<uint8_t>;

struct Target {
  const char* name;  // Also the folder of its corpus.
  int (*run)(const uint8_t* data, size_t size);
  int mutations;
};
void PrintTo(const Target& target, std::ostream* out) { *out << target.name; }

#define CAIRN_FUZZ_TARGET(name, mutations) {#name, cairn_fuzz_##name, mutations},
constexpr Target kTargets[] = {
#include "fuzz_targets.inc"
};
#undef CAIRN_FUZZ_TARGET

void Mutate(std::mt19937& random, const Input& other, Input* input) {
  const auto any = [&](size_t n) { return n == 0 ? 0 : random() % n; };
  switch (random() % 5) {
    case 0:
      if (!input->empty()) (*input)[any(input->size())] ^= static_cast<uint8_t>(1u << any(8));
      break;
    case 1:
      if (!input->empty()) (*input)[any(input->size())] = static_cast<uint8_t>(random());
      break;
    case 2:
      input->resize(any(input->size() + 1));
      break;
    case 3:
      input->insert(input->begin() + static_cast<std::ptrdiff_t>(any(input->size() + 1)),
                    static_cast<uint8_t>(random()));
      break;
    default: {
      const size_t from = any(other.size());
      input->insert(input->end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
    }
  }
}

class FuzzReplayTest : public ::testing::TestWithParam<Target> {};

TEST_P(FuzzReplayTest, SurvivesTheCorpusAndItsMutations) {
  const auto run = GetParam().run;
  const auto directory = std::filesystem::path("tests/fuzz/corpus") / GetParam().name;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    files.push_back(entry.path());
  ASSERT_FALSE(files.empty());
  std::sort(files.begin(), files.end());
  std::vector<Input> corpus;
  for (const auto& path : files) {
    std::ifstream in(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    run(corpus.back().data(), corpus.back().size());
  }
  std::mt19937 random(1);
  for (int i = 0; i < GetParam().mutations; ++i) {
    Input input = corpus[random() % corpus.size()];
    for (uint32_t n = 1 + random() % 4; n > 0; --n)
      Mutate(random, corpus[random() % corpus.size()], &input);
    if (input.size() > 1 << 20) input.resize(1 << 20);
    run(input.data(), input.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzReplayTest, ::testing::ValuesIn(kTargets),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
