#pragma once
// Text of strangers, which counts in a budget for as long as it lives, wherever it goes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/common/status.h"
#include "common/memory/fair_budget.h"

namespace cairn {

// It counts the memory that it owns, which may be more than its text needs: memory is taken for
// text that is still to come. Movable, and not copyable. One thread at a time.
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

  // The text counts from now on. RESOURCE_EXHAUSTED: as ByteShare::Charge.
  static Result<ChargedString> Charge(ByteShare share, std::string text) {
    CAIRN_RETURN_IF_ERROR(share.Charge(Owned(text)));
    ChargedString charged(std::move(text));
    charged.share_ = std::move(share);
    return charged;
  }

  // RESOURCE_EXHAUSTED: as ByteShare::Charge, and nothing has changed.
  Status Append(std::string_view more) {
    const size_t needed = text_.size() + more.size();
    if (needed > text_.capacity()) CAIRN_RETURN_IF_ERROR(Grow(needed));
    text_ += more;
    return OkStatus();
  }
  // The text is expected to become so long, so it gets the memory for that in few steps.
  void Expect(size_t bytes) { expected_ = bytes; }
  const std::string& text() const { return text_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  // Memory besides the object itself, in which a short text lies.
  uint64_t owned() const { return Owned(text_); }
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
  // A client that only declares a length gets so many times the memory of what it sent.
  static constexpr size_t kMostGrowth = 4;

  static size_t InObject() { return std::string().capacity(); }
  static uint64_t Owned(const std::string& text) {
    return text.capacity() <= InObject() ? 0 : text.capacity();
  }

  // Gets memory for `needed` bytes, and for some that will come: each smaller copy is a hole in the
  // heap afterwards.
  Status Grow(size_t needed) {
    const size_t least = std::max(needed, 2 * InObject());  // The library gives no less.
    const uint64_t before = owned();
    size_t bytes = needed <= expected_ ? std::min(expected_, kMostGrowth * needed) : 2 * before;
    bytes = std::max(bytes, least);
    // Old and new memory exist at the same time.
    if (!share_.Resize(before + bytes)) {
      bytes = least;
      CAIRN_RETURN_IF_ERROR(share_.Charge(before + bytes));
    }
    {
      std::string larger;
      larger.reserve(bytes);
      larger += text_;
      text_.swap(larger);
    }
    share_.ShrinkTo(owned());
    return OkStatus();
  }

  // In this order: the bytes go before what counts them.
  ByteShare share_;
  std::string text_;
  size_t expected_ = 0;
};

}  // namespace cairn
