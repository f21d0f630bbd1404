#pragma once
// Text of strangers, which counts in a budget for as long as it lives, wherever it goes.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/memory/fair_budget.h"

namespace cairn {

// Movable, and not copyable. One thread at a time.
class ChargedString {
 public:
  // Empty, of no budget.
  ChargedString() = default;
  // Empty, of the share's budget. REQUIRES: the share holds nothing.
  explicit ChargedString(ByteShare share) : share_(std::move(share)) {}
  // Text that counts nowhere: our own, or that of a test.
  ChargedString(std::string text) : text_(std::move(text)) {}
  ChargedString(const char* text) : text_(text) {}
  ChargedString(ChargedString&& other) noexcept = default;
  ChargedString& operator=(ChargedString&& other) noexcept = default;

  // The text counts from now on. nullopt: the share's budget has no room for it.
  static std::optional<ChargedString> Charge(ByteShare share, std::string text) {
    if (!share.Resize(text.size())) return std::nullopt;
    ChargedString charged(std::move(text));
    charged.share_ = std::move(share);
    return charged;
  }

  // False: the budget has no room for it, and nothing has changed.
  [[nodiscard]] bool Append(std::string_view more) {
    if (!share_.Resize(text_.size() + more.size())) return false;
    text_ += more;
    return true;
  }
  // The text is expected to become so long. It counts what it has, as before.
  void Expect(size_t bytes) {
    if (bytes > text_.capacity()) text_.reserve(bytes);
  }
  const std::string& text() const { return text_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  // An empty share of its budget, for what is made of the text.
  ByteShare AnotherShare() const { return share_.Another(); }

  // The text goes, and what it counted stays for what was made of it.
  static ByteShare IntoShare(ChargedString text) {
    ByteShare share = std::move(text.share_);
    return share;
  }
  // For several readers: it counts until the last of them has let go.
  static std::shared_ptr<const std::string> Shared(ChargedString text) {
    auto owner = std::make_shared<const ChargedString>(std::move(text));
    const std::string* const inside = &owner->text();
    return {std::move(owner), inside};
  }

 private:
  // In this order: the bytes go before what counts them.
  ByteShare share_;
  std::string text_;
};

}  // namespace cairn
