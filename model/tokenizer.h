#pragma once
// Byte-level BPE (the "gpt2" tokenizer family of GGUF): text to token ids and back.
//
// Text is split at special tokens, then by the pre-tokenizer that tokenizer.ggml.pre names, then
// each piece's bytes are merged by rank. Pieces are independent, which is why ids are exact for any
// length. Immutable after construction and thread-safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::model {

class GgufFile;

using TokenId = int32_t;

// A run of prompt text. Special tokens written in `text` count as such only when parse_special is
// true, so text that comes from a user cannot open or close a turn.
struct PromptPiece {
  std::string text;
  bool parse_special = false;

  bool operator==(const PromptPiece&) const = default;
};

class Tokenizer {
 public:
  // UNIMPLEMENTED names the tokenizer model or pre-tokenizer that is not supported. DATA_LOSS or
  // INVALID_ARGUMENT, for a vocabulary that contradicts itself, names the key.
  static Result<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);
  ~Tokenizer();

  // Token ids of `text`. INVALID_ARGUMENT, which names the byte offset: the text is not UTF-8. No
  // begin-of-text token is added: see bos(). Special (control) tokens in the text are recognised
  // when parse_special is true; otherwise they are ordinary characters.
  Result<std::vector<TokenId>> Encode(std::string_view text, bool parse_special) const;
  // Pieces in order, with the begin-of-text token in front when the file asks for one (add_bos).
  Result<std::vector<TokenId>> EncodePrompt(std::span<const PromptPiece> pieces) const;

  // The bytes of one token: not necessarily valid UTF-8 by itself. A control token's bytes are its
  // name, "<|im_end|>". REQUIRES: 0 <= id < vocab_size().
  std::string_view TokenBytes(TokenId id) const;
  // Concatenated bytes; control tokens are left out unless with_special. Ids outside the vocabulary
  // are left out.
  std::string Decode(std::span<const TokenId> ids, bool with_special = false) const;

  // Bytes of the longest token: a text of `n` bytes has at least n / max_token_bytes() tokens.
  size_t max_token_bytes() const;
  TokenId vocab_size() const;
  bool IsControl(TokenId id) const;
  // True for the tokens that end a reply: the file's eos, eot and eom ids.
  bool IsEndOfGeneration(TokenId id) const;
  // Id of a token by its name as spelled in the file ("<|im_end|>").
  std::optional<TokenId> Find(std::string_view name) const;

  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  // True when the file asks for a begin-of-text token in front of a prompt
  // (tokenizer.ggml.add_bos_token).
  bool add_bos() const;

 private:
  friend class TextEncoding;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The tokens of one text, as Tokenizer::Encode makes them, in steps: a text of any length holds up
// nothing else for long. The tokenizer and the text must outlive it. Not thread-safe.
class TextEncoding {
 public:
  TextEncoding(const Tokenizer& tokenizer, std::string_view text, bool parse_special);
  ~TextEncoding();
  TextEncoding(const TextEncoding&) = delete;
  TextEncoding& operator=(const TextEncoding&) = delete;

  // Does the work of about `bytes` bytes. True: all is done. Errors as Encode's. Not after it is
  // done, nor after an error.
  Result<bool> Step(size_t bytes);
  // Those so far; all of them once it is done.
  const std::vector<TokenId>& ids() const { return ids_; }
  std::vector<TokenId> TakeIds() { return std::move(ids_); }
  // Bytes of the text that no step has come to yet.
  size_t left() const;
  // Bytes of memory that it takes now, the ids included.
  size_t memory() const;

 private:
  struct Part;
  Status CheckUtf8(size_t* budget);
  void FindPart(size_t* budget);
  Status StepPart(size_t* budget);
  void EncodePiece(std::string_view piece);

  const Tokenizer::Impl& tokenizer_;
  const std::string_view text_;
  const bool parse_special_;
  size_t checked_ = 0;              // Bytes that are UTF-8.
  size_t at_ = 0;                   // Bytes in which special tokens were looked for.
  size_t begin_ = 0;                // Where the text between special tokens begins.
  std::optional<TokenId> special_;  // The special token that follows the part.
  std::unique_ptr<Part> part_;      // Text between special tokens that is encoded now.
  std::vector<TokenId> ids_;
};

// Turns a stream of tokens into text, holding back bytes of a character that is not complete yet,
// so that every returned string is valid UTF-8. Bytes that can never become a character are
// replaced by U+FFFD. Not thread-safe; one per reply. The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool with_special = false)
      : tokenizer_(tokenizer), with_special_(with_special) {}

  // The text that became complete with this token; may be empty.
  std::string Add(TokenId id);
  // The rest at the end of the reply: an incomplete character becomes one U+FFFD.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  const bool with_special_;
  std::string pending_;
};

}  // namespace cairn::model
