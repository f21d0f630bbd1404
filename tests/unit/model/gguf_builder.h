#pragma once
// Writes GGUF files in memory, right ones and wrong ones, for tests.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cairn/kernels/weight_types.h"
#include "model/gguf.h"

namespace cairn::model::testing {

// The number that stands for a weight type in a file.
inline uint32_t FileNumber(kernels::WeightType type) {
  constexpr uint32_t kNumbers[kernels::kWeightTypeCount] = {0, 1, 30, 8, 2, 3, 6, 7, 12, 13, 14};
  return kNumbers[static_cast<int>(type)];
}

class GgufBuilder {
 public:
  GgufBuilder& String(const std::string& key, std::string_view value) {
    Begin(key, GgufValueType::kString);
    Append(values_, value);
    return *this;
  }
  GgufBuilder& U32(const std::string& key, uint32_t value) {
    return Scalar(key, GgufValueType::kUint32, value);
  }
  GgufBuilder& F32(const std::string& key, float value) {
    return Scalar(key, GgufValueType::kFloat32, value);
  }
  GgufBuilder& Bool(const std::string& key, bool value) {
    return Scalar(key, GgufValueType::kBool, static_cast<uint8_t>(value));
  }
  template <typename T>
  GgufBuilder& Scalar(const std::string& key, GgufValueType type, T value) {
    Begin(key, type);
    Append(values_, value);
    return *this;
  }
  GgufBuilder& Strings(const std::string& key, const std::vector<std::string>& values) {
    BeginArray(key, GgufValueType::kString, values.size());
    for (const std::string& value : values) Append(values_, std::string_view(value));
    return *this;
  }
  GgufBuilder& Ints(const std::string& key, const std::vector<int32_t>& values) {
    BeginArray(key, GgufValueType::kInt32, values.size());
    for (const int32_t value : values) Append(values_, value);
    return *this;
  }
  GgufBuilder& Bools(const std::string& key, const std::vector<bool>& values) {
    BeginArray(key, GgufValueType::kBool, values.size());
    for (const bool value : values) Append(values_, static_cast<uint8_t>(value));
    return *this;
  }

  // dims innermost first. Data of the right size, filled with `fill`.
  GgufBuilder& Tensor(const std::string& name, const std::vector<int64_t>& dims,
                      kernels::WeightType type = kernels::WeightType::kF32, uint8_t fill = 0) {
    int64_t numbers = 1;
    for (const int64_t dim : dims) numbers *= dim;
    const auto bytes = static_cast<size_t>(kernels::RowBytes(type, numbers));
    data_.resize((data_.size() + 31) / 32 * 32);
    RawTensor(name, dims, FileNumber(type), data_.size());
    data_.resize(data_.size() + bytes, static_cast<std::byte>(fill));
    return *this;
  }
  // Normally distributed float32 numbers times `scale`, or all `scale` of a vector.
  GgufBuilder& RandomTensor(const std::string& name, const std::vector<int64_t>& dims, float scale,
                            std::mt19937_64& random) {
    Tensor(name, dims);
    int64_t numbers = 1;
    for (const int64_t dim : dims) numbers *= dim;
    std::normal_distribution<float> normal;
    std::byte* at = data_.data() + data_.size() - static_cast<size_t>(numbers) * sizeof(float);
    for (int64_t i = 0; i < numbers; ++i, at += sizeof(float)) {
      const float number = dims.size() == 1 ? scale : scale * normal(random);
      std::memcpy(at, &number, sizeof(number));
    }
    return *this;
  }
  // An entry of the tensor directory with anything in it, and no data.
  GgufBuilder& RawTensor(const std::string& name, const std::vector<int64_t>& dims, uint32_t type,
                         uint64_t offset) {
    Append(tensors_, std::string_view(name));
    Append(tensors_, static_cast<uint32_t>(dims.size()));
    for (const int64_t dim : dims) Append(tensors_, dim);
    Append(tensors_, type);
    Append(tensors_, offset);
    ++tensor_count_;
    return *this;
  }
  GgufBuilder& Version(uint32_t version) {
    version_ = version;
    return *this;
  }

  // Where the data section begins: everything before it is the header.
  size_t HeaderBytes() const { return Header().size(); }

  std::vector<std::byte> Build() const {
    std::vector<std::byte> out = Header();
    out.insert(out.end(), data_.begin(), data_.end());
    return out;
  }

 private:
  template <typename T>
  static void Append(std::vector<std::byte>& out, T value) {
    const auto* raw = reinterpret_cast<const std::byte*>(&value);
    out.insert(out.end(), raw, raw + sizeof(T));
  }
  static void Append(std::vector<std::byte>& out, std::string_view text) {
    Append(out, static_cast<uint64_t>(text.size()));
    const auto* raw = reinterpret_cast<const std::byte*>(text.data());
    out.insert(out.end(), raw, raw + text.size());
  }
  void Begin(const std::string& key, GgufValueType type) {
    Append(values_, std::string_view(key));
    Append(values_, static_cast<uint32_t>(type));
    ++value_count_;
  }
  void BeginArray(const std::string& key, GgufValueType element, size_t count) {
    Begin(key, GgufValueType::kArray);
    Append(values_, static_cast<uint32_t>(element));
    Append(values_, static_cast<uint64_t>(count));
  }
  std::vector<std::byte> Header() const {
    std::vector<std::byte> out;
    for (const char c : std::string_view("GGUF")) out.push_back(static_cast<std::byte>(c));
    Append(out, version_);
    Append(out, tensor_count_);
    Append(out, value_count_);
    out.insert(out.end(), values_.begin(), values_.end());
    out.insert(out.end(), tensors_.begin(), tensors_.end());
    out.resize((out.size() + 31) / 32 * 32);
    return out;
  }

  uint32_t version_ = 3;
  uint64_t value_count_ = 0;
  uint64_t tensor_count_ = 0;
  std::vector<std::byte> values_;
  std::vector<std::byte> tensors_;
  std::vector<std::byte> data_;
};

}  // namespace cairn::model::testing
