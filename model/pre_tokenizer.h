#pragma once
// Splits text into the pieces that byte-pair merges may not cross, as tokenizer.ggml.pre names
// them.
//
// Known: "gpt-2"; "smollm" (every digit alone, then the GPT-2 split of what is between);
// "llama-bpe" (Llama 3). Immutable, thread-safe.

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::model {

class PreTokenizer {
 public:
  // UNIMPLEMENTED, which names the pre-tokenizer, when it is not known.
  static Result<std::unique_ptr<const PreTokenizer>> Create(std::string_view name);
  ~PreTokenizer();

  // Appends the pieces of `text` in order; together they are the whole text. They point into it.
  // REQUIRES: text is valid UTF-8.
  Status Split(std::string_view text, std::vector<std::string_view>* pieces) const;

  // The same pieces, one after the other. The pre-tokenizer and the text must outlive it. Not
  // thread-safe.
  class Pieces {
   public:
    Pieces(const PreTokenizer& pre, std::string_view text);
    ~Pieces();
    Pieces(Pieces&&) noexcept;
    Pieces& operator=(Pieces&&) noexcept;
    // nullopt: there are no more.
    Result<std::optional<std::string_view>> Next();

   private:
    struct Level;
    Result<std::optional<std::string_view>> NextAt(size_t level);
    std::vector<Level> levels_;  // One for each pattern.
  };

  // A piece that is itself a token becomes that token, whatever the merges say.
  bool whole_pieces_first() const { return whole_pieces_first_; }
  // The value of tokenizer.ggml.add_bos_token for files that do not have it.
  bool default_add_bos() const { return default_add_bos_; }

 private:
  class Pattern;
  PreTokenizer();

  // Applied one after the other. Each splits the pieces of the one before into its matches and the
  // text between them.
  std::vector<Pattern> patterns_;
  bool whole_pieces_first_ = false;
  bool default_add_bos_ = false;
};

}  // namespace cairn::model
