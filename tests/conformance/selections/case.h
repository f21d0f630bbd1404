#pragma once
// Code that the selection tests share: keys and values in pages, and runs of a selection over them.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/selections/registry.h"
#include "tests/conformance/kernels/case.h"
#include "tests/support/half.h"

namespace cairn::selections::testing {

using kernels::PagedKv;

using cairn::testing::FromHalf;
using cairn::testing::ToHalf;

// One layer's keys and values in pages with gaps and guards around the rows: NaN, so that reading a
// number too many is seen in the result.
class Pages {
 public:
  Pages(int64_t tokens, int64_t heads, int64_t dim, int64_t block) {
    kv_.block_tokens = block;
    kv_.head_dim = dim;
    kv_.head_stride = static_cast<size_t>(block * dim * 2 + 32);
    kv_.k_offset = 64;
    kv_.v_offset = kv_.k_offset + static_cast<size_t>(heads) * kv_.head_stride + 64;
    const size_t bytes = kv_.v_offset + static_cast<size_t>(heads) * kv_.head_stride + 64;
    for (int64_t t = 0; t < tokens; t += block) {
      blocks_.emplace_back(bytes / 2, uint16_t{0x7e00});
      pages_.push_back(reinterpret_cast<const std::byte*>(blocks_.back().data()));
    }
    kv_.pages = pages_.data();
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  const PagedKv& kv() const { return kv_; }
  // In the memory of a device.
  PagedKv In(kernels::testing::Device& device) const {
    return device.In(kv_, std::ssize(blocks_) * kv_.block_tokens,
                     blocks_.empty() ? 0 : blocks_[0].size() * sizeof(uint16_t));
  }
  uint16_t* K(int64_t head, int64_t token) { return const_cast<uint16_t*>(kv_.K(head, token)); }
  uint16_t* V(int64_t head, int64_t token) { return const_cast<uint16_t*>(kv_.V(head, token)); }

 private:
  PagedKv kv_;
  std::vector<std::vector<uint16_t>> blocks_;
  std::vector<const std::byte*> pages_;
};

// A whole model's segment: keys, values and queries of every layer.
struct TestSegment {
  ModelShape shape;
  int64_t tokens = 0;
  int64_t first_position = 0;
  std::vector<std::unique_ptr<Pages>> layers = {};
  std::vector<std::vector<float>> queries = {};     // By layer: [tokens][query_heads][head_dim]
  std::vector<std::vector<float>> projection = {};  // By layer: [query_heads * head_dim][hidden]
  std::vector<int32_t> token_ids = {};
  std::vector<int32_t> separators = {};

  // Normal numbers; keys have a few large channels, as real ones do.
  static TestSegment Normal(const ModelShape& shape, int64_t tokens, uint32_t seed,
                            int64_t block = 64) {
    TestSegment s{.shape = shape, .tokens = tokens};
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    for (int32_t l = 0; l < shape.layers; ++l) {
      s.layers.push_back(std::make_unique<Pages>(tokens, shape.kv_heads, shape.head_dim, block));
      for (int64_t h = 0; h < shape.kv_heads; ++h) {
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t c = 0; c < shape.head_dim; ++c) {
            s.layers.back()->K(h, t)[c] = ToHalf(normal(rng) * (c % 16 == 3 ? 4.0f : 1.0f));
            s.layers.back()->V(h, t)[c] = ToHalf(normal(rng));
          }
        }
      }
      s.queries.emplace_back(static_cast<size_t>(tokens * shape.query_heads * shape.head_dim));
      for (float& x : s.queries.back()) x = normal(rng);
      s.projection.emplace_back(
          static_cast<size_t>(shape.query_heads * shape.head_dim * shape.hidden));
      for (float& x : s.projection.back()) x = 0.1f * normal(rng);
    }
    for (int64_t t = 0; t < tokens; ++t) s.token_ids.push_back(static_cast<int32_t>(rng() % 100));
    s.separators = {7, 11, 13};
    return s;
  }

  // Runs a selection; queries arrive in cuts of `cut` rows. False when it refuses.
  bool Run(const Selection& selection, KeptRows* kept, int threads = 2, int64_t cut = 37) const {
    std::vector<PagedKv> views;
    for (const auto& layer : layers) views.push_back(layer->kv());
    const SegmentKv kv{tokens, first_position, views, token_ids};
    ModelAccess model;
    model.output_projection = [this](int32_t layer, float* out) {
      const std::vector<float>& p = projection[static_cast<size_t>(layer)];
      std::copy(p.begin(), p.end(), out);
    };
    model.separators = separators;
    kernels::ThreadPool pool(threads);
    const std::unique_ptr<SelectionRun> run = selection.Begin(shape, model, tokens);
    const int64_t width = int64_t{shape.query_heads} * shape.head_dim;
    for (int64_t row = selection.FirstObserved(tokens); row < tokens; row += cut) {
      for (int32_t layer = 0; layer < shape.layers; ++layer) {
        run->Observe({layer, row, std::min(cut, tokens - row),
                      queries[static_cast<size_t>(layer)].data() + row * width, width},
                     kv, pool);
      }
    }
    return run->Select(kv, pool, kept);
  }
};

// Scores of heads that rank them in a mixed order: heads (0, 0) and (1, 2) come first where there
// are three a layer.
inline HeadScores ScoresFor(int32_t layers, int32_t kv_heads) {
  HeadScores heads{layers, kv_heads, {}};
  for (int32_t i = 0; i < layers * kv_heads; ++i) {
    heads.scores.push_back(static_cast<float>((i * 7 + 11) % 12));
  }
  return heads;
}

// Each selection with its defaults and the given share, and parameters that choose other code.
struct SelectionCase {
  std::string name;
  std::vector<int64_t> values;
  HeadScores heads = ScoresFor(4, 3);  // The scores of the calibration, where it names one.

  std::string Label() const {
    std::string label = name;
    for (const int64_t v : values) label += "_" + std::to_string(v);
    for (char& c : label) c = c == '-' ? '_' : c;
    return label;
  }
};

inline std::vector<SelectionCase> AllCases() {
  std::vector<SelectionCase> cases;
  for (const SelectionInfo& info : AllSelections()) {
    SelectionCase c{std::string(info.name), {}};
    for (const ParameterInfo& p : info.parameters) c.values.push_back(p.fallback.value_or(400));
    // Windows and blocks of rows that fit the small segments of these tests.
    for (size_t i = 0; i < info.parameters.size(); ++i) {
      const ParameterInfo& p = info.parameters[i];
      const bool rows = p.name == "window" || p.name == "lag" || p.name == "recent";
      if (rows && p.decimals == 0) c.values[i] = 16;
    }
    cases.push_back(c);
    const auto with = [&](size_t parameter, int64_t value) {
      if (value == c.values[parameter]) return;
      SelectionCase other = c;
      other.values[parameter] = value;
      cases.push_back(other);
    };
    for (size_t i = 0; i < info.parameters.size(); ++i) {
      const std::string_view name = info.parameters[i].name;
      if (name == "reuse") with(i, 2);
      if (name == "chunked") with(i, 500);
      if (name == "maxpool") with(i, 2);
      for (const std::string_view form : {"maxpool", "beside", "mix", "relative"}) {
        if (name == form) with(i, 1 - std::min<int64_t>(1, c.values[i]));
      }
    }
  }
  return cases;
}

inline std::unique_ptr<Selection> Make(
    const SelectionCase& c, const kernels::Backend& backend = kernels::BestCpuBackend()) {
  return MakeSelection(c.name, c.values, &c.heads, *backend.selections);
}

}  // namespace cairn::selections::testing
