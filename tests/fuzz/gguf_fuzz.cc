// Any bytes as a GGUF file: an error, or keys and tensors that lie in the file. A file that is a
// model, or only a vocabulary, is loaded, and gives text for ids and ids for text.

#include "model/gguf.h"
#include "model/model.h"
#include "model/utf8.h"
#include "tests/fuzz/input.h"

namespace {

using namespace cairn;
using namespace cairn::model;
using fuzz::Expect;

bool Inside(const void* at, size_t bytes, std::span<const std::byte> file) {
  const auto* begin = static_cast<const std::byte*>(at);
  return bytes == 0 || (begin >= file.data() && begin + bytes <= file.data() + file.size());
}

void ReadKeys(const GgufFile& file) {
  for (const std::string_view key : file.Keys()) {
    Expect(file.Has(key) && Inside(key.data(), key.size(), file.bytes()));
    (void)file.GetInt(key);
    (void)file.GetFloat(key);
    (void)file.GetBool(key);
    if (const auto text = file.GetString(key); text.ok()) {
      Expect(Inside(text->data(), text->size(), file.bytes()));
    }
    if (const auto texts = file.GetStringArray(key); texts.ok()) {
      for (const std::string_view text : *texts) {
        Expect(Inside(text.data(), text.size(), file.bytes()));
      }
    }
    (void)file.GetIntArray(key);
    (void)file.GetBoolArray(key);
  }
}

void ReadTensors(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    Expect(file.FindTensor(tensor.name) != nullptr);
    Expect(Inside(tensor.data.data(), tensor.data.size(), file.bytes()));
    Expect(!tensor.dims.empty() && tensor.dims.size() <= 4);
    int64_t rows = 1;
    for (size_t i = 1; i < tensor.dims.size(); ++i) rows *= tensor.dims[i];
    Expect(static_cast<size_t>(rows * kernels::RowBytes(tensor.type, tensor.dims[0])) ==
           tensor.data.size());
  }
}

void UseVocabulary(const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  for (TokenId id = -1; id <= std::min(tokenizer.vocab_size(), 64); ++id) ids.push_back(id);
  StreamDecoder stream(tokenizer);
  std::string text;
  for (const TokenId id : ids) text += stream.Add(id);
  text += stream.Finish();
  Expect(ValidUtf8Prefix(text) == text.size());
  if (const auto encoded = tokenizer.Encode(text.substr(0, 256), true); encoded.ok()) {
    for (const TokenId id : *encoded) Expect(id >= 0 && id < tokenizer.vocab_size());
  }
}

}  // namespace

CAIRN_FUZZ_ENTRY(gguf)(const uint8_t* data, size_t size) {
  const std::vector<std::byte> bytes = fuzz::Copy(fuzz::Text(data, size));
  const auto metadata = GgufFile::ParseMetadata(bytes, "input");
  if (metadata.ok()) {
    ReadKeys(**metadata);
    Expect((*metadata)->tensors().empty());
  }
  const auto file = GgufFile::Parse(bytes, "input");
  if (!file.ok()) return 0;
  Expect(metadata.ok() && (*metadata)->Keys() == (*file)->Keys());
  ReadKeys(**file);
  ReadTensors(**file);
  const auto tokenizer = Tokenizer::FromGguf(**file);
  if (!tokenizer.ok()) return 0;
  UseVocabulary(**tokenizer);
  const auto model = Model::Parse(bytes, "input");
  if (!model.ok()) return 0;
  const Hyperparameters& hp = (*model)->hp();
  Expect(hp.layers >= 1 && hp.heads >= 1 && hp.kv_heads >= 1 && hp.heads % hp.kv_heads == 0);
  Expect((*model)->token_embedding().rows == hp.vocab);
  for (int layer = 0; layer < hp.layers; ++layer) {
    for (const Tensor* tensor : {&(*model)->layer(layer).q, &(*model)->layer(layer).down}) {
      Expect(static_cast<size_t>(tensor->rows * tensor->row_bytes()) == tensor->data.size());
    }
  }
  return 0;
}
