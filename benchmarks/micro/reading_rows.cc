// Which rows of a context a read policy chooses, token by token, in float32 arithmetic.
//
//   reading_rows --model FILE --tokens FILE --context N --policy POLICY [--calibration FOLDER]
//
// The file has the numbers of tokens: N of a context, whole blocks, then those that follow. Prints
// for each that follows a line per layer: for each KV head the chosen rows as hexadecimal digits,
// row t being bit t % 8 of byte t / 8.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "model/model.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/reading/open_context.h"
#include "services/worker/reading/rotation_calibration.h"

namespace cairn::worker {
namespace {

[[noreturn]] void Stop(const std::string& why) {
  std::fprintf(stderr, "reading_rows: %s\n", why.c_str());
  std::exit(1);
}
template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) Stop(ToString(result.status()));
  return *std::move(result);
}
void Must(const Status& status) {
  if (!status.ok()) Stop(ToString(status));
}

struct Options {
  std::string model, tokens, policy, calibration = "calibration";
  int64_t context = 0;
};

Options Parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--model") o.model = value;
    if (flag == "--tokens") o.tokens = value;
    if (flag == "--policy") o.policy = value;
    if (flag == "--calibration") o.calibration = value;
    if (flag == "--context") o.context = std::atoll(value.c_str());
  }
  return o;
}

std::string InHexadecimal(std::span<const int32_t> rows, int64_t context) {
  std::vector<uint8_t> bytes(static_cast<size_t>(context / 8));
  for (const int32_t row : rows) {
    bytes[static_cast<size_t>(row / 8)] |= static_cast<uint8_t>(1 << row % 8);
  }
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

void Print(const ContextReader& reader, const KvLayout& kv) {
  for (int layer = 0; layer < kv.layers; ++layer) {
    for (int head = 0; head < kv.kv_heads; ++head) {
      std::printf("%s%s", head > 0 ? " " : "",
                  InHexadecimal(reader.chosen(layer, head), reader.rows()).c_str());
    }
    std::printf("\n");
  }
}

void Run(const Options& options) {
  std::ifstream file(options.tokens);
  const std::vector<int32_t> tokens{std::istream_iterator<int32_t>(file), {}};
  const auto model = Must(Model::Load(options.model));
  const auto transformer =
      Must(Transformer::Create(*model, {.arithmetic = Arithmetic::kFloat32, .threads = 1}));
  const KvLayout& kv = transformer->kv_layout();
  const int64_t all = std::ssize(tokens);
  if (options.context < kv.block_tokens || options.context % kv.block_tokens != 0 ||
      options.context >= all) {
    Stop(fmt::format("context: got {} of {} tokens, expected whole blocks of {} and tokens behind",
                     options.context, all, kv.block_tokens));
  }
  const auto pool = Must(
      KvPool::Create(kv, static_cast<size_t>(2 * (all / kv.block_tokens) + 4) * kv.page_bytes()));
  KvSequence sequence = pool->NewSequence();
  Must(sequence.Reserve(options.context));
  while (sequence.length() < options.context) {
    SequenceChunk chunk;
    chunk.sequence = &sequence;
    const int64_t count = std::min(transformer->max_rows(), options.context - sequence.length());
    chunk.tokens = std::span(tokens).subspan(static_cast<size_t>(sequence.length()),
                                             static_cast<size_t>(count));
    Must(transformer->Forward({&chunk, 1}));
  }
  ReadingTerms terms;
  terms.policy = Must(ParseReadPolicy(options.policy));
  terms.heads = model->hp().heads;
  terms.backend = &kernels::BestCpuBackend();
  terms.clock = &SteadyClock::Get();
  if (terms.policy.rotation != 0) {
    terms.rotations = std::make_shared<const KeyRotations>(Must(LoadKeyRotations(
        options.calibration,
        {.digest = terms.policy.rotation, .weights = model->weights_digest(), .kv = kv})));
  }
  const auto reader = Must(OpenContext(terms, sequence, options.context, all - options.context,
                                       transformer->thread_pool()));
  KvSequence own = pool->NewSequence();
  own.StartAt(options.context);
  Must(own.Reserve(all));
  std::vector<float> logits(static_cast<size_t>(transformer->vocab()));
  for (int64_t i = options.context; i < all; ++i) {
    SequenceChunk chunk;
    chunk.sequence = &own;
    chunk.tokens = std::span(tokens).subspan(static_cast<size_t>(i), 1);
    chunk.phase = Phase::kDecode;
    chunk.logits = logits.data();
    chunk.reader = reader.get();
    Must(transformer->Forward({&chunk, 1}));
    Print(*reader, kv);
  }
}

}  // namespace
}  // namespace cairn::worker

int main(int argc, char** argv) { cairn::worker::Run(cairn::worker::Parse(argc, argv)); }
