#pragma once
// The parts that the programs reading_bench and reading_rows share: a model, a context that is
// computed, and tokens that are decoded after it one by one.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cairn/common/clock.h"
#include "model/model.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/methods/reading/open_context.h"
#include "services/worker/methods/reading/rotation_calibration.h"

namespace cairn::worker {

// Ends the program with a message.
[[noreturn]] inline void Stop(const std::string& why) {
  std::fprintf(stderr, "error: %s\n", why.c_str());
  std::exit(1);
}
template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) Stop(ToString(result.status()));
  return *std::move(result);
}
inline void Must(const Status& status) {
  if (!status.ok()) Stop(ToString(status));
}

// Calls take(flag, value) for each pair of arguments; false: there is no such flag. --help prints
// `usage` and ends the program.
inline void ReadFlags(int argc, char** argv, const char* usage,
                      const std::function<bool(const std::string&, const std::string&)>& take) {
  for (int i = 1; i < argc; i += 2) {
    if (std::string_view(argv[i]) == "--help") {
      std::printf("usage: %s\n", usage);
      std::exit(0);
    }
    if (i + 1 == argc) Stop(std::string(argv[i]) + ": expected a value");
    if (!take(argv[i], argv[i + 1])) Stop(std::string("unknown argument ") + argv[i]);
  }
}

// A model that computes. One thread drives it.
class ReadingModel {
 public:
  ReadingModel(const std::string& file, const Transformer::Options& options)
      : model_(Must(model::Model::Load(file))),
        transformer_(Must(Transformer::Create(*model_, options))),
        logits_(static_cast<size_t>(transformer_->vocab())) {}

  const model::Model& model() const { return *model_; }
  Transformer& transformer() { return *transformer_; }
  const Transformer& transformer() const { return *transformer_; }
  const KvLayout& kv() const { return transformer_->kv_layout(); }

  // The terms of this policy, whose calibration files lie in the folder.
  ReadingTerms Terms(const std::string& policy, const std::string& calibration) const {
    ReadingTerms terms;
    terms.policy = Must(ParseReadPolicy(policy));
    terms.heads = model_->hp().heads;
    terms.backend = &kernels::BestCpuBackend();
    terms.clock = &SteadyClock::Get();
    if (terms.policy.rotation != 0) {
      terms.rotations = std::make_shared<const KeyRotations>(Must(LoadKeyRotations(
          calibration,
          {.digest = terms.policy.rotation, .weights = model_->weights_digest(), .kv = kv()})));
    }
    return terms;
  }

  // Computes the tokens that the sequence, which has room for them, does not have yet.
  void Prefill(KvSequence& sequence, std::span<const int32_t> tokens) {
    const int64_t all = std::ssize(tokens);
    while (sequence.length() < all) {
      SequenceChunk chunk;
      chunk.sequence = &sequence;
      const int64_t count = std::min(transformer_->max_rows(), all - sequence.length());
      chunk.tokens =
          tokens.subspan(static_cast<size_t>(sequence.length()), static_cast<size_t>(count));
      Must(transformer_->Forward({&chunk, 1}));
    }
  }

  // `reader` and `before_layer` may be null.
  void Decode(KvSequence& sequence, const int32_t& token, DecodeReader* reader,
              const std::function<Status(int)>& before_layer = nullptr) {
    SequenceChunk chunk;
    chunk.sequence = &sequence;
    chunk.tokens = {&token, 1};
    chunk.phase = Phase::kDecode;
    chunk.logits = logits_.data();
    chunk.reader = reader;
    chunk.before_layer = before_layer;
    Must(transformer_->Forward({&chunk, 1}));
  }

 private:
  const std::unique_ptr<model::Model> model_;
  const std::unique_ptr<Transformer> transformer_;
  std::vector<float> logits_;
};

}  // namespace cairn::worker
