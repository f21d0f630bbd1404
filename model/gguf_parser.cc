// Reading a GGUF file front to back:
//
//   "GGUF", u32 version, u64 tensor count, u64 metadata count
//   metadata:  string key, u32 value type, value       (string: u64 length, bytes; array: u32 type,
//   u64 count, values) tensors:   string name, u32 dimensions, u64 each, u32 tensor type, u64
//   offset in the data section padding to general.alignment (32 unless given), then the data
//   section
//
// Every read is checked against the end of the file and every count against what can fit, before
// anything is allocated.

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "model/gguf.h"
#include "model/gguf_values.h"

namespace cairn::model {
namespace {

using gguf_internal::Load;
using gguf_internal::ScalarBytes;
using kernels::WeightType;

constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 1024;
constexpr uint32_t kMaxDims = 4;
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kMaxAlignment = 65536;

// Numbers of the tensor types in the file; those we do not compute with are named for the error
// message.
struct TensorType {
  uint32_t number;
  std::string_view name;
  std::optional<WeightType> type;
};
constexpr TensorType kTensorTypes[] = {
    {0, "F32", WeightType::kF32},
    {1, "F16", WeightType::kF16},
    {2, "Q4_0", WeightType::kQ4_0},
    {3, "Q4_1", WeightType::kQ4_1},
    {6, "Q5_0", WeightType::kQ5_0},
    {7, "Q5_1", WeightType::kQ5_1},
    {8, "Q8_0", WeightType::kQ8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", {}},
    {11, "Q3_K", {}},
    {12, "Q4_K", WeightType::kQ4_K},
    {13, "Q5_K", WeightType::kQ5_K},
    {14, "Q6_K", WeightType::kQ6_K},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", {}},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", {}},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", {}},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", {}},
    {30, "BF16", WeightType::kBF16},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {39, "MXFP4", {}},
};

std::string SupportedTypes() {
  std::string out;
  for (const TensorType& t : kTensorTypes) {
    if (t.type.has_value()) out += (out.empty() ? "" : ", ") + std::string(t.name);
  }
  return out;
}

// Names and keys come from the file: keep what is printable, and not too much of it.
std::string Printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 80)) out += c >= 0x20 && c < 0x7f ? c : '?';
  if (text.size() > 80) out += "...";
  return out;
}

}  // namespace

class GgufFile::Parser {
 public:
  explicit Parser(GgufFile& file) : file_(file), bytes_(file.bytes_) {}

  Status Run(Content content) {
    uint64_t tensor_count = 0, value_count = 0;
    CAIRN_RETURN_IF_ERROR(ReadHeader(&tensor_count, &value_count));
    for (uint64_t i = 0; i < value_count; ++i) {
      CAIRN_RETURN_IF_ERROR(ReadKeyValue(i, value_count));
    }
    if (content == Content::kMetadata) return OkStatus();
    CAIRN_RETURN_IF_ERROR(ReadAlignment());
    for (uint64_t i = 0; i < tensor_count; ++i) {
      CAIRN_RETURN_IF_ERROR(ReadTensorInfo(i, tensor_count));
    }
    return PlaceTensors();
  }

 private:
  struct Pending {
    uint64_t info_at;  // Where the tensor's entry begins in the file.
    uint64_t offset;   // Where its data begins, relative to the data section.
    uint64_t bytes;
  };

  Status Corrupt(uint64_t at, const std::string& what) const {
    return Errorf(StatusCode::kDataLoss, "GGUF file '{}', byte {} of {}: {}", file_.name_, at,
                  bytes_.size(), what);
  }

  uint64_t Left() const { return bytes_.size() - at_; }

  Status Take(uint64_t n, std::string_view what, std::span<const std::byte>* out) {
    if (n > Left()) {
      return Corrupt(at_, fmt::format("{} needs {} bytes, the file has {} more", what, n, Left()));
    }
    *out = bytes_.subspan(at_, n);
    at_ += n;
    return OkStatus();
  }

  template <typename T>
  Status Read(std::string_view what, T* out) {
    std::span<const std::byte> raw;
    CAIRN_RETURN_IF_ERROR(Take(sizeof(T), what, &raw));
    *out = Load<T>(raw.data());
    return OkStatus();
  }

  Status ReadString(std::string_view what, uint64_t max, std::string_view* out) {
    const uint64_t begin = at_;
    uint64_t size = 0;
    CAIRN_RETURN_IF_ERROR(Read(what, &size));
    if (size > max) {
      return Corrupt(begin, fmt::format("{} has length {}, expected at most {}", what, size, max));
    }
    std::span<const std::byte> raw;
    CAIRN_RETURN_IF_ERROR(Take(size, what, &raw));
    *out = {reinterpret_cast<const char*>(raw.data()), raw.size()};
    return OkStatus();
  }

  Status ReadHeader(uint64_t* tensor_count, uint64_t* value_count) {
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0) {
      return InvalidArgument(
          "file '{}' is not a GGUF file: it does not begin with \"GGUF\" (byte 0)", file_.name_);
    }
    at_ = 4;
    CAIRN_RETURN_IF_ERROR(Read("version", &file_.version_));
    if (file_.version_ != 2 && file_.version_ != 3) {
      const bool swapped = (file_.version_ & 0xffff) == 0 && file_.version_ != 0;
      return Errorf(StatusCode::kUnimplemented,
                    "GGUF file '{}', byte 4: version {}, expected 2 or 3{}", file_.name_,
                    file_.version_, swapped ? " (the file is big-endian)" : "");
    }
    CAIRN_RETURN_IF_ERROR(Read("tensor count", tensor_count));
    CAIRN_RETURN_IF_ERROR(Read("metadata count", value_count));
    // The shortest tensor entry has 32 bytes, the shortest key 13: larger counts cannot be true.
    if (*tensor_count > Left() / 32) {
      return Corrupt(8, fmt::format("tensor count {} does not fit into the file", *tensor_count));
    }
    if (*value_count > Left() / 13) {
      return Corrupt(16, fmt::format("metadata count {} does not fit into the file", *value_count));
    }
    return OkStatus();
  }

  Status ReadType(std::string_view what, GgufValueType* out) {
    const uint64_t begin = at_;
    uint32_t number = 0;
    CAIRN_RETURN_IF_ERROR(Read(what, &number));
    if (number > static_cast<uint32_t>(GgufValueType::kFloat64)) {
      return Corrupt(begin,
                     fmt::format("{} has unknown value type {}, expected 0 to 12", what, number));
    }
    *out = static_cast<GgufValueType>(number);
    return OkStatus();
  }

  Status ReadKeyValue(uint64_t index, uint64_t count) {
    const uint64_t begin = at_;
    std::string_view key;
    CAIRN_RETURN_IF_ERROR(
        ReadString(fmt::format("metadata key {} of {}", index, count), kMaxKeyBytes, &key));
    const std::string what = fmt::format("metadata '{}'", Printable(key));
    Value value{};
    CAIRN_RETURN_IF_ERROR(ReadType(what, &value.type));
    if (value.type == GgufValueType::kArray) {
      CAIRN_RETURN_IF_ERROR(ReadArray(what, &value));
    } else {
      value.count = 1;
      CAIRN_RETURN_IF_ERROR(ReadElements(what, value.type, 1, &value.data));
    }
    if (value.type == GgufValueType::kBool && Load<uint8_t>(value.data.data()) > 1) {
      return Corrupt(begin, fmt::format("{} is a bool of value {}, expected 0 or 1", what,
                                        Load<uint8_t>(value.data.data())));
    }
    if (!file_.values_.emplace(key, value).second) {
      return Corrupt(begin, fmt::format("{} appears twice", what));
    }
    return OkStatus();
  }

  Status ReadArray(const std::string& what, Value* value) {
    const uint64_t begin = at_;
    CAIRN_RETURN_IF_ERROR(ReadType(what + " (array elements)", &value->element_type));
    if (value->element_type == GgufValueType::kArray) {
      return Corrupt(begin, what + " is an array of arrays, which is not supported");
    }
    CAIRN_RETURN_IF_ERROR(Read(what + " (array length)", &value->count));
    return ReadElements(what, value->element_type, value->count, &value->data);
  }

  Status ReadElements(const std::string& what, GgufValueType type, uint64_t count,
                      std::span<const std::byte>* out) {
    const uint64_t begin = at_;
    if (type != GgufValueType::kString) {
      const uint64_t size = ScalarBytes(type);
      if (count > Left() / size) {
        return Corrupt(begin, fmt::format("{} needs {} values of {} bytes, the file has {} bytes "
                                          "more",
                                          what, count, size, Left()));
      }
      return Take(count * size, what, out);
    }
    for (uint64_t i = 0; i < count; ++i) {
      std::string_view ignored;
      CAIRN_RETURN_IF_ERROR(ReadString(what, bytes_.size(), &ignored));
    }
    *out = bytes_.subspan(begin, at_ - begin);
    return OkStatus();
  }

  Status ReadAlignment() {
    constexpr std::string_view kKey = "general.alignment";
    if (!file_.Has(kKey)) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const int64_t value, file_.GetInt(kKey));
    if (value < 8 || value > kMaxAlignment || !std::has_single_bit(static_cast<uint64_t>(value))) {
      return Corrupt(0, fmt::format("{} is {}, expected a power of two from 8 to {}", kKey, value,
                                    kMaxAlignment));
    }
    alignment_ = static_cast<uint64_t>(value);
    return OkStatus();
  }

  Status ReadTensorInfo(uint64_t index, uint64_t count) {
    const uint64_t begin = at_;
    GgufTensor tensor;
    CAIRN_RETURN_IF_ERROR(ReadString(fmt::format("name of tensor {} of {}", index, count),
                                     kMaxTensorNameBytes, &tensor.name));
    const std::string what = fmt::format("tensor '{}'", Printable(tensor.name));
    uint32_t dims = 0;
    CAIRN_RETURN_IF_ERROR(Read(what, &dims));
    if (dims < 1 || dims > kMaxDims) {
      return Corrupt(begin, fmt::format("{} has {} dimensions, expected 1 to 4", what, dims));
    }
    for (uint32_t i = 0; i < dims; ++i) {
      uint64_t dim = 0;
      CAIRN_RETURN_IF_ERROR(Read(what, &dim));
      tensor.dims.push_back(static_cast<int64_t>(dim));
    }
    uint32_t type = 0;
    uint64_t offset = 0;
    CAIRN_RETURN_IF_ERROR(Read(what, &type));
    CAIRN_RETURN_IF_ERROR(Read(what, &offset));
    CAIRN_ASSIGN_OR_RETURN(tensor.type, SupportedType(what, begin, type));
    uint64_t size = 0;
    CAIRN_RETURN_IF_ERROR(DataBytes(what, begin, tensor, &size));
    if (!file_.tensor_index_.emplace(tensor.name, file_.tensors_.size()).second) {
      return Corrupt(begin, what + " appears twice");
    }
    file_.tensors_.push_back(std::move(tensor));
    pending_.push_back({begin, offset, size});
    return OkStatus();
  }

  Result<WeightType> SupportedType(const std::string& what, uint64_t begin, uint32_t number) const {
    for (const TensorType& t : kTensorTypes) {
      if (t.number != number) continue;
      if (t.type.has_value()) return *t.type;
      return Errorf(StatusCode::kUnimplemented,
                    "GGUF file '{}', byte {}: {} has type {} ({}), which is not supported; "
                    "supported are {}",
                    file_.name_, begin, what, t.name, number, SupportedTypes());
    }
    return Errorf(StatusCode::kUnimplemented,
                  "GGUF file '{}', byte {}: {} has unknown type {}; supported are {}", file_.name_,
                  begin, what, number, SupportedTypes());
  }

  // Size of the data; every dimension is positive and their product fits into the file.
  Status DataBytes(const std::string& what, uint64_t begin, const GgufTensor& tensor,
                   uint64_t* size) const {
    const int64_t block = kernels::BlockElements(tensor.type);
    if (tensor.dims[0] % block != 0) {
      return Corrupt(begin, fmt::format("{} of type {} has rows of {} numbers, expected a multiple "
                                        "of {}",
                                        what, kernels::Name(tensor.type), tensor.dims[0], block));
    }
    // No weight type takes less than half a byte per number, so a tensor in this file has fewer
    // numbers than this.
    const uint64_t most = bytes_.size() * 2;
    uint64_t numbers = 1;
    for (const int64_t signed_dim : tensor.dims) {
      const auto dim = static_cast<uint64_t>(signed_dim);
      if (dim == 0 || dim > most / numbers) {
        return Corrupt(begin, fmt::format("{} has a dimension of {}: {}", what, dim,
                                          dim == 0 ? "expected at least 1"
                                                   : "more numbers than the file can hold"));
      }
      numbers *= dim;
    }
    *size = static_cast<uint64_t>(kernels::RowBytes(tensor.type, static_cast<int64_t>(numbers)));
    return OkStatus();
  }

  Status PlaceTensors() {
    const uint64_t base = (at_ + alignment_ - 1) / alignment_ * alignment_;
    for (size_t i = 0; i < pending_.size(); ++i) {
      const Pending& p = pending_[i];
      GgufTensor& tensor = file_.tensors_[i];
      const std::string what = fmt::format("tensor '{}'", Printable(tensor.name));
      if (p.offset % alignment_ != 0) {
        return Corrupt(p.info_at, fmt::format("{} has data offset {}, expected a multiple of {}",
                                              what, p.offset, alignment_));
      }
      if (base > bytes_.size() || p.offset > bytes_.size() - base ||
          p.bytes > bytes_.size() - base - p.offset) {
        return Corrupt(p.info_at,
                       fmt::format("data of {} ({} bytes at offset {} of the data section, which "
                                   "begins at {}) ends beyond the end of the file",
                                   what, p.bytes, p.offset, base));
      }
      tensor.data = bytes_.subspan(base + p.offset, p.bytes);
    }
    return CheckOverlap();
  }

  Status CheckOverlap() const {
    std::vector<size_t> order(pending_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return pending_[a].offset < pending_[b].offset; });
    for (size_t i = 1; i < order.size(); ++i) {
      const Pending &before = pending_[order[i - 1]], &here = pending_[order[i]];
      if (here.offset < before.offset + before.bytes) {
        return Corrupt(here.info_at, fmt::format("data of tensor '{}' overlaps that of '{}'",
                                                 Printable(file_.tensors_[order[i]].name),
                                                 Printable(file_.tensors_[order[i - 1]].name)));
      }
    }
    return OkStatus();
  }

  GgufFile& file_;
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  std::vector<Pending> pending_;
};

Status GgufFile::ParseBytes(Content content) { return Parser(*this).Run(content); }

}  // namespace cairn::model
