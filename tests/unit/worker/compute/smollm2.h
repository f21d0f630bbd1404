#pragma once
// The real model and its reference (tests/data/smollm2), for tests. Tests run in the repository's
// root folder.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/model.h"

namespace cairn::worker::testing {

inline constexpr int32_t kVocab = 49152;

// CAIRN_TEST_MODEL, or where tools/fetch_model.py puts the file. Empty when there is none.
inline std::string ModelPath() {
  if (const char* path = std::getenv("CAIRN_TEST_MODEL")) return path;
  const std::string fetched = "build/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(fetched) ? fetched : "";
}

// Loaded once per process.
inline const model::Model& SharedModel() {
  static const std::unique_ptr<model::Model> model = [] {
    auto loaded = model::Model::Load(ModelPath());
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", ToString(loaded.status()).c_str());
      std::abort();
    }
    return std::move(loaded).value();
  }();
  return *model;
}

struct Reference {
  struct Prompt {
    std::vector<int32_t> ids;
    std::vector<int32_t> greedy;
    std::vector<float> logits;
  };
  std::map<std::string, Prompt> prompts;
  std::vector<int32_t> kv_ids;
  std::vector<int> kv_layers;
  int64_t kv_tokens = 0;
  std::vector<uint16_t> kv;  // [layer][K, V][3 heads][kv_tokens][64]
};

template <typename T>
std::vector<T> ReadArray(const std::string& path) {
  std::vector<T> values(std::filesystem::file_size(path) / sizeof(T));
  std::ifstream in(path, std::ios::binary);
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(values.size() * sizeof(T)));
  return values;
}

inline const Reference& SharedReference() {
  static const Reference reference = [] {
    const std::string folder = "tests/data/smollm2/";
    std::ifstream in(folder + "reference.json");
    const nlohmann::json json = nlohmann::json::parse(in);
    const std::vector<float> logits = ReadArray<float>(folder + "logits.f32");
    Reference r;
    auto row = logits.begin();
    for (const char* name : {"chat", "prose", "code"}) {
      Reference::Prompt& p = r.prompts[name];
      p.ids = json[name]["ids"].get<std::vector<int32_t>>();
      p.greedy = json[name]["greedy"].get<std::vector<int32_t>>();
      p.logits.assign(row, row + kVocab);
      row += kVocab;
    }
    r.kv_ids = json["kv"]["ids"].get<std::vector<int32_t>>();
    r.kv_layers = json["kv"]["layers"].get<std::vector<int>>();
    r.kv_tokens = json["kv"]["tokens"].get<int64_t>();
    r.kv = ReadArray<uint16_t>(folder + "kv.f16");
    return r;
  }();
  return reference;
}

// Kullback-Leibler divergence, in nat, of softmax(q) from softmax(p).
inline double Divergence(const std::vector<float>& p, const std::vector<float>& q) {
  const auto log_sum = [](const std::vector<float>& x) {
    double top = x[0], sum = 0.0;
    for (const float v : x) top = std::max<double>(top, v);
    for (const float v : x) sum += std::exp(v - top);
    return top + std::log(sum);
  };
  const double p_norm = log_sum(p), q_norm = log_sum(q);
  double kl = 0.0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double lp = p[i] - p_norm;
    kl += std::exp(lp) * (lp - (q[i] - q_norm));
  }
  return kl;
}

}  // namespace cairn::worker::testing

// For the first line of a test that needs the model.
#define CAIRN_REQUIRE_MODEL()                                                     \
  if (cairn::worker::testing::ModelPath().empty()) {                              \
    GTEST_SKIP() << "no model: set CAIRN_TEST_MODEL or run tools/fetch_model.py"; \
  }
