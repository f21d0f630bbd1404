// Which rows of a context a read policy chooses, token by token, in float32 arithmetic.
//
// --help prints the arguments.
//
// The file has the numbers of tokens: N of a context, whole blocks, then those that follow. Prints
// for each that follows a line per layer: for each KV head the chosen rows as hexadecimal digits,
// row t being bit t % 8 of byte t / 8.

#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "benchmarks/micro/reading_programs.h"

namespace cairn::worker {
namespace {

struct Options {
  std::string model, tokens, policy, calibration = "calibration";
  int64_t context = 0;
};

constexpr char kUsage[] =
    "reading_rows --model FILE --tokens FILE --context N --policy POLICY [--calibration FOLDER]";

Options Parse(int argc, char** argv) {
  Options o;
  ReadFlags(argc, argv, kUsage, [&](const std::string& flag, const std::string& value) {
    if (flag == "--context") {
      o.context = std::atoll(value.c_str());
      return true;
    }
    std::string* const to = flag == "--model"         ? &o.model
                            : flag == "--tokens"      ? &o.tokens
                            : flag == "--policy"      ? &o.policy
                            : flag == "--calibration" ? &o.calibration
                                                      : nullptr;
    if (to != nullptr) *to = value;
    return to != nullptr;
  });
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
  ReadingModel model(options.model, {.arithmetic = Arithmetic::kFloat32, .threads = 1});
  const KvLayout& kv = model.kv();
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
  model.Prefill(sequence, std::span(tokens).first(static_cast<size_t>(options.context)));
  const auto reader =
      Must(OpenContext(model.Terms(options.policy, options.calibration), sequence, options.context,
                       all - options.context, model.transformer().thread_pool()));
  KvSequence own = pool->NewSequence();
  own.StartAt(options.context);
  Must(own.Reserve(all));
  for (int64_t i = options.context; i < all; ++i) {
    model.Decode(own, tokens[static_cast<size_t>(i)], reader.get());
    Print(*reader, kv);
  }
}

}  // namespace
}  // namespace cairn::worker

int main(int argc, char** argv) { cairn::worker::Run(cairn::worker::Parse(argc, argv)); }
